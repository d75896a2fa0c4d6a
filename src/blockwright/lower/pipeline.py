"""The lowering pipeline: a named list of passes from scheduled programs to flat loops.

The flat form is the input of code generation: no blocks, only serial and parallel loops, no nested
parallel loops, one-dimensional buffers, explicit vectors. Each pass is a plain function
`(PrimFunc, LowerContext) -> PrimFunc` in a file of its own, registered by `@lowering_pass`. Adding
one takes its file and a line in `LOWERING`.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright.ir import PrimFunc
from blockwright.lower.context import LowerContext, LowerOptions, Pass, passes
from blockwright.support import BuildError
from blockwright.support.stack import deep
from blockwright.target import Target, target_of

LOWERING: list[tuple[str, Pass]] = passes(
    "fix_sorts.fix_sorts",
    "view_checks.check_views",
    "fold_views.fold_views",
    "pipelines.make_pipelines",
    "blocks.lower_blocks",
    "name_effects.name_effects",
    "simplify.simplify",
    "merge_guards.merge_guards",
    "simplify.simplify as simplify_guards",
    "allocate.place_allocations",
    "allocate.compact_buffers",
    "partition.partition_loops",
    "check_indices.check_indices",
    "sanitize.insert_checks",
    "flatten.flatten_buffers",
    "simplify.simplify as simplify_flat",
    "demote.demote_local",
    "vectorize.vectorize_loops",
    "cpu.split_vectors.split_vectors",
    "cpu.register_transpose.transpose_tiles",
    "hoist.hoist_allocations",
    "unroll.unroll_loops",
    "cpu.tail_specialization.specialize_tails",
    "cpu.clamp_masked_address.clamp_masked_reads",
    "cpu.forward_masked_store.forward_masked_stores",
    "sizes.clamp_sizes",
    "widths.choose_widths",
    "finalize.finalize",
)
"""Names and passes in order, each entry `file.function [as name]`; `on_pass` reports the names."""

OnPass = Callable[[str, PrimFunc, PrimFunc], None]


def lower(
    func: PrimFunc,
    target: Target | str = "native",
    *,
    options: LowerOptions | None = None,
    on_pass: OnPass | None = None,
) -> PrimFunc:
    """Lower the function to flat form.

    Args:
        func: a tensor program with a root block, scheduled or not.
        target: the target to lower for, unless the program names one (see `target_of`).
        options: checks to insert, limits; see `LowerOptions`.
        on_pass: called as `on_pass(name, before, after)` after every pass, for dumps and checks.

    Raises:
        BuildError: BW60x, BW61x; the message names the loop or buffer, the rule and the remedy.
    """
    machine = Target(target)
    if machine.kind != "cpu":
        raise BuildError(
            f"programs cannot be lowered for {machine} yet",
            code="BW602",
            help="choose a CPU target; see Target",
        )
    context = LowerContext(target_of(func, machine), options or LowerOptions())
    for name, pass_ in LOWERING:
        after = deep(pass_)(func, context)
        if on_pass is not None:
            on_pass(name, func, after)
        func = after
    return func
