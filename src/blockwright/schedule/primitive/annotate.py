"""annotate: add an annotation to a block or loop."""

from __future__ import annotations

from typing import Any, ClassVar

from blockwright import ir
from blockwright.analysis.access.region_annotations import explicit_problem
from blockwright.analysis.access.stride_alignment import alignment_problem
from blockwright.ir.annotations import (
    CACHE_HINTS,
    PIPELINE_ORDER,
    PIPELINE_STAGE,
    cache_hint_problem,
    current_key,
)
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.pipeline_annotations import asked_plan


class Annotate(Primitive, frozen=True, eq=False):
    """Add an annotation, a key and a value, to a block or loop.

    Args:
        block_or_loop: the block or loop to annotate.
        ann_key: the key.
        ann_val: a number, string, expression, or lists and mappings of them.

    Requires:
    - the block or loop has no annotation of this key yet;
    - cache and register hints are on a serial or parallel loop and have a valid value (BW304).
      `nontemporal_stores` is a number of bytes: results of at least that size that are written
      below the loop and not read there use non-temporal stores. `prefetch_read` is a number of
      iterations of the enclosing loop by which reads are prefetched ahead; `prefetch_write` is the
      same for lines that are written. `register_pressure` is 1: values that the loop does not use
      are spilled before it;
    - once both the stages and the order of a software pipeline are annotated, they describe a
      legal pipeline (see `software_pipeline`; BW304, BW312, BW313, BW370, BW371).

    Before::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        sch.annotate(sch.get_block("B"), "note", 1)

    After::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    T.block_attr({"note": 1})
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "annotate"

    block_or_loop: BlockRV | LoopRV
    ann_key: str
    ann_val: Any

    def apply(self, state: StepState) -> StepResult:
        node, key = state.stmt(self.block_or_loop), current_key(self.ann_key)
        if key in node.annotations:
            state.fail(
                f"{key!r} is annotated already",
                code="BW319",
                guilty=[node],
                help=f'unannotate(…, "{key}") first, or use another key',
            )
        if key in CACHE_HINTS:
            problem = cache_hint_problem(node, key, self.ann_val)
            if problem:
                state.fail(
                    problem,
                    code="BW304",
                    guilty=[node],
                    help=f'annotate(loop, "{key}", number) on a serial or parallel loop',
                )
        values = {**node.annotations, key: self.ann_val}
        if isinstance(node, ir.Block):
            result = node.replace(annotations=values)
            problem = alignment_problem(result) or explicit_problem(result)
            if problem:
                state.fail(
                    problem,
                    code="BW304",
                    guilty=[node],
                    help="use storage_align or annotate_buffer_access to set this annotation",
                )
        if isinstance(node, ir.For) and {PIPELINE_STAGE, PIPELINE_ORDER} <= values.keys():
            asked_plan(state, node, values)
        return with_annotations(state, node, values)


def with_annotations(
    state: StepState, node: ir.Block | ir.For, values: dict[str, Any]
) -> StepResult:
    """Return the step that replaces the annotations of a block or loop."""
    edit = Edit(state)
    if isinstance(node, ir.Block):
        edit.replace_block(node, node.replace(annotations=values))
    else:
        edit.replace(node, node.replace(annotations=values))
    return edit.finish()
