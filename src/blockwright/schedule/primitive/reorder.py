"""reorder: loops of one nest change places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.any_order import affine_within
from blockwright.schedule.legality.checks import (
    refuse_in_kernel,
    require_affine,
    require_compact_flow,
    require_once,
)
from blockwright.schedule.legality.guards import evaluated_early, require_lasting
from blockwright.schedule.legality.reduction import require_any_order, require_first_terms
from blockwright.schedule.rewrite.distribution import beside, loose_chain, require_distributable


class Reorder(Primitive, frozen=True, eq=False):
    """Put loops of one nest into the given order; other loops of the nest keep their places.

    Statements that stand beside one of these loops, inside another, get loops of their own before
    or after the nest (the loop is *distributed*): the nest alone is reordered.

    Args:
        ordered_loops: the loops, the new outermost first.

    Requires:
    - the loops lie on one path, with no block or condition between them (BW310);
    - where other statements stand beside them, the loops outside are serial and not annotated
      (BW312), and the blocks of these statements and those of the nest meet in an element that one
      of them writes only within one iteration of these loops (BW316);
    - no bound of a loop uses a loop that would come inside it, or is loaded from what the loops
      write; where that loop may not run, the bound can be evaluated all the same (BW350);
    - no parallel loop would come inside one that is bound to a thread axis (BW312);
    - every block inside is complete, a reduction, an update or nothing but atomic updates, and
      reads in an iteration only what is written in the same one or before the nest; its iterators
      are bound by an iterator map of all loops, or of the nest alone for each iteration of the
      loops around it, as those of a tile that `compute_at` computes again for each of its readers;
    - the loops run each instance of a reduction with initial value once; those that number its
      elements and its terms together, as parts of a fused loop do, keep their order (BW316);
    - where loops that reduce change places among each other, the block combines by a builtin
      reducer or the one it declares (BW330); floating-point sums are then added in another order.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1.0

    Steps::

        i, j = sch.get_loops(sch.get_block("B"))
        sch.reorder(j, i)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for j, i in T.grid(8, 16):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1.0
    """

    method: ClassVar[str] = "reorder"
    variadic: ClassVar[str] = "ordered_loops"

    ordered_loops: tuple[LoopRV, ...]

    def apply(self, state: StepState) -> StepResult:
        if not self.ordered_loops:
            state.fail(
                "no loops are given",
                code="BW304",
                help="give the loops in their new order, outermost first",
            )
        wanted = [state.loop(handle) for handle in self.ordered_loops]
        path = loose_chain(state, wanted)
        places = iter(wanted)
        moving = set(wanted)
        order = [next(places) if loop in moving else loop for loop in path]
        if order == path:
            return StepResult(state.func)
        path, order = _trimmed(path, order)
        _require_outside_of_kernels(state, order)
        require_distributable(state, path)
        seen: set[ir.Var] = set()
        for loop in reversed(order):
            if seen and any(ir.uses_var(e, seen) for e in (loop.min, loop.extent)):
                state.fail(
                    f"the bounds of loop {loop.loop_var.name} use a loop that would come inside it",
                    code="BW350",
                    guilty=[loop],
                    help="keep that loop outside of this one",
                )
            seen.add(loop.loop_var)
        blocks = require_compact_flow(state, path[-1], atomic=True)
        flow = state.flow_at(path[-1])
        for block in blocks:
            inside = [
                f
                for f in state.tree.loops_above(block)
                if f is path[0] or state.tree.is_below(f, path[0])
            ]
            if not affine_within(state, block, inside):
                require_affine(state, flow, block)
            require_once(state, block, inside, "that change places")
            require_any_order(state, block, path, order)
            require_first_terms(state, block, path, order)
        require_lasting(state, path, [path[0]])
        early = {f: evaluated_early(state, f, _outer(path, order, f)) for f in order}
        order = [early[f] for f in order]
        edit = Edit(state)
        body = path[-1].body
        for loop in reversed(order):
            body = loop.replace(body=body)
        before, after = beside(edit, path)
        edit.replace(path[0], ir.seq([*before, body, *after]))
        return edit.finish()


def _require_outside_of_kernels(state: StepState, order: Sequence[ir.For]) -> None:
    """No parallel loop comes inside one that is bound to a thread axis."""
    bound: ir.For | None = None
    for loop in order:
        if loop.thread is not None:
            bound = loop
        elif bound is not None and bound.thread and loop.kind is ir.ForKind.PARALLEL:
            refuse_in_kernel(state, loop, bound, bound.thread.thread_tag)


def _outer(path: list[ir.For], order: Sequence[ir.For], loop: ir.For) -> list[ir.For]:
    """Loops around a loop that come inside of it."""
    return [f for f in path[: path.index(loop)] if f in order[order.index(loop) :]]


def _trimmed(path: list[ir.For], order: list[ir.For]) -> tuple[list[ir.For], list[ir.For]]:
    """Both without the loops at either end that stay where they are."""
    changed = [k for k, (a, b) in enumerate(zip(path, order, strict=True)) if a is not b]
    part = slice(changed[0], changed[-1] + 1)
    return path[part], order[part]
