"""reorder: reorder the loops of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.any_order import affine_within
from blockwright.schedule.legality.carried import keeps_carried_order
from blockwright.schedule.legality.checks import (
    refuse_in_kernel,
    require_affine,
    require_compact_flow,
    require_once,
    require_only_blocks,
)
from blockwright.schedule.legality.guards import evaluated_early, require_lasting
from blockwright.schedule.legality.reduction import require_any_order, require_first_terms
from blockwright.schedule.rewrite.distribution import beside, loose_chain, require_distributable


class Reorder(Primitive, frozen=True, eq=False):
    """Reorder loops of one nest; other loops of the nest keep their positions.

    If the nest is imperfect, the outer loop is distributed: sibling statements of an inner loop get
    their own copy of the loops before or after the nest, and only the nest is reordered.

    Args:
        ordered_loops: the loops, the new outermost first.

    Requires:
    - the loops lie on one path, with no block or condition between them (BW310);
    - distributed loops are serial and not annotated (BW312); if a sibling statement and the nest
      access the same element and one of them writes it, both accesses are in the same iteration
      of the distributed loops (BW316);
    - no bound of a loop uses a loop that would move inside it, or is loaded from memory that the
      loops write; if a loop that moves inside may have no iterations, the bound is still safe to
      evaluate (BW350);
    - no parallel loop would move inside a loop that is bound to a thread axis (BW312);
    - every block inside is complete, a reduction, an update, or consists of atomic updates only,
      and reads in an iteration only values written in the same iteration or before the nest. Its
      iterators are bound by an iterator map of all loops; a map of the nest alone for each
      iteration of the outer loops is also accepted, as for a tile that `compute_at` recomputes for
      each reader. Recurrences and scatters, whose iterations depend on one another, are accepted
      if the loops that carry a dependence keep their relative order: all loops but those whose
      values follow from indices that all accesses to a written buffer share;
    - the loops run each instance of a reduction with an initial value once; loops that drive
      spatial and reduction iterators together, such as parts of a fused loop, keep their relative
      order (BW316);
    - if the relative order of reduction loops changes, the block uses a builtin or declared
      reducer (BW330); floating-point sums are then accumulated in another order.

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
                help="pass the loops in their new order, outermost first",
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
                    f"the bounds of loop {loop.loop_var.name} use a loop that would move inside it",
                    code="BW350",
                    guilty=[loop],
                    help="keep that loop outside this one",
                )
            seen.add(loop.loop_var)
        if not keeps_carried_order(state, path, order, require_only_blocks(state, path[-1])):
            _require_free_order(state, path, order)
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


def _require_free_order(state: StepState, path: Sequence[ir.For], order: Sequence[ir.For]) -> None:
    """Require that the instances of every block inside may run in the new order."""
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


def _require_outside_of_kernels(state: StepState, order: Sequence[ir.For]) -> None:
    """Reject a parallel loop inside a loop that is bound to a thread axis."""
    bound: ir.For | None = None
    for loop in order:
        if loop.thread is not None:
            bound = loop
        elif bound is not None and bound.thread and loop.kind is ir.ForKind.PARALLEL:
            refuse_in_kernel(state, loop, bound, bound.thread.thread_tag)


def _outer(path: list[ir.For], order: Sequence[ir.For], loop: ir.For) -> list[ir.For]:
    """Return the loops outside `loop` that move inside it."""
    return [f for f in path[: path.index(loop)] if f in order[order.index(loop) :]]


def _trimmed(path: list[ir.For], order: list[ir.For]) -> tuple[list[ir.For], list[ir.For]]:
    """Drop the loops at both ends whose positions do not change from `path` and `order`."""
    changed = [k for k, (a, b) in enumerate(zip(path, order, strict=True)) if a is not b]
    part = slice(changed[0], changed[-1] + 1)
    return path[part], order[part]
