"""The graph compilation pipeline: eight named stages, each a list of passes.

The stages and their order follow the Relax design. `STAGES` is data: print it, copy it, insert
passes, and hand it to `run_pipeline`. Adding a pass takes its file, where `@graph_pass` registers
the function, and a line here.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.passes.context import Pass, PassContext, passes

Stage = tuple[str, tuple[tuple[str, Pass], ...]]

STAGES: tuple[Stage, ...] = (
    ("PartialLibraryLowering", ()),
    (
        "LowerOperatorToTensorProgram",
        passes(
            "check_graphs.check_graphs",
            "functions.inline_functions.inline_functions",
            "functions.outline_branches.outline_branches",
            "normalize.normalize",
            "functions.flatten_tuples.flatten_tuples",
            "host.protect_updates.own_inplace_programs",
            "drop_marks.drop_marks",
            "add_roots.add_roots",
            "fold_affine.fold_affine",
            "hoist_slices.hoist_slices",
            "layout.channels_last.channels_last",
            "simplify_graph.eliminate_common",
            "simplify_graph.eliminate_dead",
            "select.choose_implementations.choose_implementations",
            "legalize.legalize",
            "fold_constants.fold_constants",
        ),
    ),
    (
        "CrossLevelDynShapeAwareOperatorFusion",
        passes(
            "fusion.annotate_patterns.annotate_patterns",
            "fusion.duplicate_data_movement.duplicate_data_movement",
            "fusion.fuse_ops.fuse_ops",
            "fusion.fuse_tir.fuse_tir",
        ),
    ),
    ("TensorProgramOptim", passes("schedule_programs.schedule_programs")),
    (
        "CrossLevelTensorProgramWorkspaceLift",
        passes(
            "hoist_weight_prepack.hoist_weight_prepack",
            "fold_constants.fold_constants as fold_packing",
        ),
    ),
    # The memory plan depends only on the final graph: `lower_host` computes it for its functions.
    (
        "DynShapeAwareMemoryPlanning",
        passes("host.protect_updates.protect_updates", "host.lower_host.lower_host"),
    ),
    ("CUDAGraphOffloading", ()),
    ("BuildRunnableModule", ()),
)


def pass_names() -> list[str]:
    """Names of all passes of the pipeline, in order."""
    return [name for _, stage in STAGES for name, _ in stage]


def run_pipeline(
    module: ir.IRModule, ctx: PassContext, stages: Sequence[Stage] = STAGES, until: str = ""
) -> ir.IRModule:
    """Run the stages in order; with `until`, stop after the stage of that name."""
    for done, (name, stage) in enumerate(stages):
        ctx.progress(name, done, len(stages))
        module = ctx.run(stage, module)
        if name == until:
            break
    return module
