"""The graph compilation pipeline: eight named stages, each a list of passes.

The stages and their order follow the Relax design. `STAGES` is data: print it, copy it, insert
passes, and hand it to `run_pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.passes.add_roots import add_roots
from blockwright.passes.context import Pass, PassContext
from blockwright.passes.drop_marks import drop_marks
from blockwright.passes.fold_affine import fold_scales
from blockwright.passes.fold_constants import fold_constants
from blockwright.passes.fusion.annotate_patterns import annotate_patterns
from blockwright.passes.fusion.duplicate_data_movement import repeat_movement
from blockwright.passes.fusion.fuse_ops import fuse_ops
from blockwright.passes.fusion.fuse_tir import fuse_tir
from blockwright.passes.hoist_weight_prepack import lift_packing
from blockwright.passes.host.lower_host import lower_host
from blockwright.passes.layout.channels_last import channels_last
from blockwright.passes.legalize import legalize
from blockwright.passes.normalize import normalize
from blockwright.passes.schedule_programs import schedule_programs
from blockwright.passes.select.choose_split_kv import choose_key_pieces
from blockwright.passes.select.choose_winograd import choose_winograd
from blockwright.passes.simplify_graph import eliminate_common, eliminate_dead

Stage = tuple[str, tuple[tuple[str, Pass], ...]]

STAGES: tuple[Stage, ...] = (
    ("PartialLibraryLowering", ()),
    (
        "LowerOperatorToTensorProgram",
        (
            ("normalize", normalize),
            ("drop_marks", drop_marks),
            ("add_roots", add_roots),
            ("fold_scales", fold_scales),
            ("channels_last", channels_last),
            ("eliminate_common", eliminate_common),
            ("eliminate_dead", eliminate_dead),
            ("choose_winograd", choose_winograd),
            ("choose_key_pieces", choose_key_pieces),
            ("legalize", legalize),
            ("fold_constants", fold_constants),
        ),
    ),
    (
        "CrossLevelDynShapeAwareOperatorFusion",
        (
            ("annotate_patterns", annotate_patterns),
            ("repeat_movement", repeat_movement),
            ("fuse_ops", fuse_ops),
            ("fuse_tir", fuse_tir),
        ),
    ),
    ("TensorProgramOptim", (("schedule_programs", schedule_programs),)),
    (
        "CrossLevelTensorProgramWorkspaceLift",
        (("lift_packing", lift_packing), ("fold_packing", fold_constants)),
    ),
    # The memory plan depends only on the final graph: `lower_host` computes it for its functions.
    ("DynShapeAwareMemoryPlanning", (("lower_host", lower_host),)),
    ("CUDAGraphOffloading", ()),
    ("BuildRunnableModule", ()),
)


def run_pipeline(
    module: ir.IRModule, ctx: PassContext, stages: Sequence[Stage] = STAGES, until: str = ""
) -> ir.IRModule:
    """Run the stages in order; with `until`, stop after the stage of that name."""
    for done, (name, passes) in enumerate(stages):
        ctx.progress(name, done, len(stages))
        module = ctx.run(passes, module)
        if name == until:
            break
    return module
