"""The lowering pipeline: a named list of passes from scheduled programs to flat loops.

The flat form is the input of code generation: no blocks, only serial and parallel loops, no nested
parallel loops, one-dimensional buffers, explicit vectors. Each pass is a plain function
`(PrimFunc, LowerContext) -> PrimFunc` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from blockwright.ir import PrimFunc
from blockwright.lower.allocate import compact_buffers, place_allocations
from blockwright.lower.blocks import lower_blocks
from blockwright.lower.check_indices import check_indices
from blockwright.lower.context import LowerContext, LowerOptions, Pass
from blockwright.lower.cpu.clamp_masked_address import clamp_masked_reads
from blockwright.lower.cpu.forward_masked_store import pass_on_tails
from blockwright.lower.cpu.register_transpose import transpose_tiles
from blockwright.lower.cpu.split_vectors import split_vectors
from blockwright.lower.cpu.tail_specialization import specialize_tails
from blockwright.lower.finalize import finalize
from blockwright.lower.flatten import flatten_buffers
from blockwright.lower.fold_views import fold_views
from blockwright.lower.hoist import hoist_allocations
from blockwright.lower.merge_guards import merge_guards
from blockwright.lower.partition import partition_loops
from blockwright.lower.pipelines import make_pipelines
from blockwright.lower.sanitize import insert_checks
from blockwright.lower.simplify import simplify
from blockwright.lower.sizes import clamp_sizes
from blockwright.lower.unroll import unroll_loops
from blockwright.lower.vectorize import vectorize_loops
from blockwright.lower.widths import choose_widths
from blockwright.support import BuildError
from blockwright.support.stack import deep
from blockwright.target import Target

LOWERING: list[tuple[str, Pass]] = [
    ("fold_views", fold_views),
    ("make_pipelines", make_pipelines),
    ("lower_blocks", lower_blocks),
    ("simplify", simplify),
    ("merge_guards", merge_guards),
    ("simplify_guards", simplify),
    ("place_allocations", place_allocations),
    ("compact_buffers", compact_buffers),
    ("partition_loops", partition_loops),
    ("check_indices", check_indices),
    ("insert_checks", insert_checks),
    ("flatten_buffers", flatten_buffers),
    ("simplify_flat", simplify),
    ("vectorize_loops", vectorize_loops),
    ("split_vectors", split_vectors),
    ("transpose_tiles", transpose_tiles),
    ("hoist_allocations", hoist_allocations),
    ("unroll_loops", unroll_loops),
    ("specialize_tails", specialize_tails),
    ("clamp_masked_reads", clamp_masked_reads),
    ("pass_on_tails", pass_on_tails),
    ("clamp_sizes", clamp_sizes),
    ("choose_widths", choose_widths),
    ("finalize", finalize),
]
"""Names and passes in order; `on_pass` reports under these names."""

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
        target: the target to lower for.
        options: checks to insert, limits; see `LowerOptions`.
        on_pass: called as `on_pass(name, before, after)` after every pass, for dumps and checks.

    Raises:
        BuildError: BW60x, BW61x; the message names the loop or buffer, the rule and the remedy.
    """
    context = LowerContext(Target(target), options or LowerOptions())
    if context.target.kind != "cpu":
        raise BuildError(
            f"programs cannot be lowered for {context.target} yet",
            code="BW602",
            help="choose a CPU target; see Target",
        )
    _require_own_target(func, context.target)
    for name, pass_ in LOWERING:
        after = deep(pass_)(func, context)
        if on_pass is not None:
            on_pass(name, func, after)
        func = after
    return func


_CPU_NAMES = ("llvm", "c", "cpu", "native")


def _require_own_target(func: PrimFunc, target: Target) -> None:
    """Reject a program whose attribute "target" (classic TIR sets it) names no CPU."""
    stated: object = func.attrs.get("target")
    if isinstance(stated, Mapping):
        stated = cast("Mapping[str, object]", stated).get("kind")
    if not isinstance(stated, str) or not stated.split():
        return
    kind = stated.split()[0]
    if kind not in _CPU_NAMES and not kind.startswith(("x86", "aarch64", target.name)):
        raise BuildError(
            f'the attribute "target" of the program is {kind}, and it is built for {target.name}',
            code="BW602",
            help="build it for that target, or remove the attribute",
        )
