"""Expand software pipelines from the annotations of `software_pipeline` and `double_buffer`.

Before::

    for i in T.serial(16, annotations={"software_pipeline_stage": [0, 1],
                                       "software_pipeline_order": [0, 1]}):
        load(i)
        use(i)

After::

    load(0)
    for i in range(15):
        load(i + 1)
        use(i)
    use(15)
"""

from __future__ import annotations

from blockwright.ir import PrimFunc
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.schedule.rewrite.pipeline_annotations import with_pipelines


@lowering_pass
def make_pipelines(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Expand annotated pipelines; ScheduleError BW3xx where one would change the meaning."""
    return with_pipelines(func)
