"""The pipeline for CPUs: the eight stages of Relax in their order.

A pass is added by its file, where a decorator such as `@graph_pass` registers the function, and a
line here.
"""

from __future__ import annotations

from blockwright.passes.context import passes
from blockwright.passes.pipeline import Pipeline

PIPELINE = Pipeline((
    ("PartialLibraryLowering", passes(
        "check_graphs.check_graphs", "library.lower_to_libraries.lower_to_libraries",
    )),
    ("LowerOperatorToTensorProgram", passes(
        "functions.inline_functions.inline_functions",
        "functions.lift_closures.lift_closures",
        "bind_sizes.bind_sizes",
        "functions.outline_branches.outline_branches",
        "normalize.normalize",
        "functions.flatten_tuples.flatten_tuples",
        "host.protect_updates.own_inplace_programs",
        "drop_marks.drop_marks",
        "add_roots.add_roots",
        "fold_affine.fold_affine",
        "hoist_slices.hoist_slices",
        "layout.channels_last.channels_last",
        "eliminate_common.eliminate_common",
        "eliminate_dead.eliminate_dead",
        "select.choose_implementations.choose_implementations",
        "devices.realize_devices.realize_devices",
        "legalize.legalize",
        "devices.place_programs.place_programs",
        "fold_constants.fold_constants",
    )),
    ("CrossLevelDynShapeAwareOperatorFusion", passes(
        "fusion.annotate_patterns.annotate_patterns",
        "fusion.duplicate_data_movement.duplicate_data_movement",
        "fusion.fuse_ops.fuse_ops",
        "fusion.fuse_tir.fuse_tir",
        "devices.share_memory.share_memory",
    )),
    ("TensorProgramOptim", passes("schedule_programs.schedule_programs")),
    ("CrossLevelTensorProgramWorkspaceLift", passes(
        "hoist_weight_prepack.hoist_weight_prepack",
        "fold_constants.fold_constants as fold_packing",
        "lift_workspaces.lift_workspaces",
    )),
    ("DynShapeAwareMemoryPlanning", passes(
        "library.python_functions.python_functions",
        "library.library_programs.library_programs",
        "host.repeat_loads.repeat_loads",
        "host.write_through.write_through",
        "host.protect_updates.protect_updates",
        "host.tail_calls.tail_calls",
        "host.loop_memory.loop_memory",
        "host.plan_storage.plan_storage",
    )),
    ("CUDAGraphOffloading", ()),
    ("BuildRunnableModule", passes("host.lower_host.lower_host")),
))  # fmt: skip
