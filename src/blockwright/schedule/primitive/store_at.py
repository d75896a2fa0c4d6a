"""store_at: allocate a buffer per loop iteration, shrunk to what the iteration accesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope
from blockwright.analysis.kernels import shares
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import Analyzer
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_known_kind
from blockwright.schedule.legality.reduction import require_initial_values
from blockwright.schedule.rewrite.copy_nest import fresh_name
from blockwright.schedule.rewrite.motion import require_straight
from blockwright.schedule.rewrite.storage import (
    moved_accesses,
    require_owned,
    touched_box,
    users_below,
)


class StoreAt(Primitive, frozen=True, eq=False):
    """Allocate a buffer in each iteration of a loop, with the size that the iteration accesses.

    The body of the loop becomes a block that allocates the buffer. Indices become relative to the
    box that the iteration accesses. The loop may be outside the loop at which the buffer is
    computed; values are then kept while the inner loops run.

    Args:
        block: a block that writes the buffer.
        loop: a loop around every use of the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.

    Returns: the block that allocates the buffer.

    Requires:
    - the buffer is allocated in the program, with its default layout (BW321, BW328), and accessed
      element by element in blocks (BW359, BW313), all of them inside the loop (BW322);
    - no value is carried between iterations of the loop: the loop drives no reduction into the
      buffer, and every element read is written earlier in the same iteration of the shared loops
      (BW316);
    - an outer loop that drives the reduction of another block runs at least once; otherwise the
      initial value of that block would be lost with the new block (BW365);
    - extents of the outer loops depend on no loop (BW350), and none of these loops is bound to a
      thread axis whose threads share the buffer's memory (BW352).

    Use it after `compute_at` and similar steps, and on outer loops before inner ones: the loop body
    becomes a scope, and blocks cannot move between scopes.

    Before::

        @T.prim_func
        def main(A: T.Buffer((66, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((66, 64), "float32")
            for i in range(64):
                for r, j in T.grid(3, 64):
                    with T.block("B"):
                        vi = T.axis.spatial(66, i + r)
                        vj = T.axis.spatial(64, j)
                        B[vi, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = B[vi, vj] + B[vi + 2, vj]

    Steps::

        b = sch.get_block("B")
        sch.store_at(b, sch.get_loops(b)[0])

    After::

        @T.prim_func
        def main(A: T.Buffer((66, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            for i in range(64):
                with T.block("B_store"):
                    v_i = T.axis.spatial(64, i)
                    B = T.alloc_buffer((3, 64), "float32")
                    for r, j in T.grid(3, 64):
                        with T.block("B"):
                            vi = T.axis.spatial(66, v_i + r)
                            vj = T.axis.spatial(64, j)
                            B[vi - v_i, vj] = A[vi, vj] * 2.0
                    for j in range(64):
                        with T.block("C"):
                            vi = T.axis.spatial(64, v_i)
                            vj = T.axis.spatial(64, j)
                            C[vi, vj] = B[vi - v_i, vj] + B[vi - v_i + 2, vj]
    """

    method: ClassVar[str] = "store_at"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    loop: LoopRV
    buffer_index: int | str = 0

    def apply(self, state: StepState) -> StepResult:
        block, loop = state.block(self.block), state.loop(self.loop)
        scope = state.scope(block)
        if state.scope(loop) is not scope:
            state.fail(
                f"block {block.name} and loop {loop.loop_var.name} are in different scopes",
                code="BW310",
                guilty=[state.realize(block), loop],
                help="choose a loop in the block's own scope; use store_at on "
                "outer loops before inner ones",
            )
        flow = state.data_flow(scope)
        buffer, owner = require_owned(state, scope, block, self.buffer_index)
        writers, readers = users_below(state, flow, buffer, loop)
        require_straight(
            state, scope, [loop, *(state.tree.realize(b) for b in (*writers, *readers))]
        )
        fixed = [*state.tree.loops_above(loop), loop]
        _require_own_memory(state, buffer, fixed)
        _require_contained(state, flow, buffer, fixed, writers, readers)
        require_initial_values(state, loop, fixed)
        analyzer = state.analyzer(loop.body)
        box = [
            _useful(rng, dim, fixed, analyzer)
            for rng, dim in zip(
                touched_box(state, flow, buffer, fixed, analyzer), buffer.shape, strict=True
            )
        ]
        fresh: ir.Buffer = buffer.replace(
            shape=tuple(nonnegative(rng.extent, analyzer) for rng in box)
        )
        edit = Edit(state)

        def from_start(dim: int, index: ir.Expr) -> ir.Expr:
            start = box[dim].min
            return (
                index
                if ir.is_const_int(start, 0)
                else analyzer.simplify(ir.sub(*ir.match_types(index, start)))
            )

        body = moved_accesses(loop.body, buffer, fresh, from_start, edit.forward)
        iters = _iterators(state, loop, fixed)
        body = edit.substitute(body, {f.loop_var: it.var for f, it in iters.items()})
        result = with_signature(
            ir.Block(
                fresh_name(state, f"{buffer.name}_store"),
                tuple(iters.values()),
                (),
                (),
                body,
                alloc_buffers=(fresh,),
            ),
            state.signature_facts(loop),
        )
        values = tuple(f.loop_var for f in iters)
        edit.replace(loop.body, ir.BlockRealize(values, ir.const(True, "bool"), result))
        edit.free(owner, buffer)
        edit.refresh_signatures()
        return edit.finish(result)


def _require_own_memory(state: StepState, buffer: ir.Buffer, fixed: Sequence[ir.For]) -> None:
    """Require that each iteration has private memory: no thread axis shares the buffer's scope."""
    for loop in fixed:
        bound = loop.kind is ir.ForKind.THREAD_BINDING and loop.thread is not None
        if bound and loop.thread is not None and shares(buffer.scope, loop.thread.thread_tag):
            state.fail(
                f"{buffer.name} in {buffer.scope} memory is shared by the threads of loop "
                f"{loop.loop_var.name}",
                code="BW352",
                guilty=[loop],
                help=f'choose a loop outside {loop.loop_var.name}, or set_scope "local" first',
            )


def _require_contained(
    state: StepState,
    flow: BlockScope,
    buffer: ir.Buffer,
    fixed: Sequence[ir.For],
    writers: Sequence[ir.Block],
    readers: Sequence[ir.Block],
) -> None:
    """Require that each read element is written in the same iteration of the loops `fixed`."""
    loop = fixed[-1]
    outer = {f.loop_var for f in fixed}
    for writer in writers:
        if flow.kind_alone(writer) is BlockKind.OTHER:
            require_known_kind(state, flow, writer)
        realize = state.tree.realize(writer)
        for it, value in zip(writer.iter_vars, realize.iter_values, strict=True):
            if it.iter_type is ir.IterType.REDUCE and ir.uses_var(value, outer):
                state.fail(
                    f"the loops down to {loop.loop_var.name} drive the reduction of block "
                    f"{writer.name}, whose partial results are carried between iterations",
                    code="BW316",
                    guilty=[realize, loop],
                    help=f"choose another loop of {writer.name}, outside its "
                    f"reduction loops: {state.loops_of(writer)}",
                )
    for reader in readers:
        makers = [w for w in writers if w is not reader]
        late = [w for w in makers if flow.position[w] > flow.position[reader]]
        region = next(r for r in reader.reads if r.buffer is buffer)
        if late or not flow.covers(makers, reader, region):
            state.fail(
                f"block {reader.name} may read elements of {buffer.name} that an earlier "
                f"iteration of {loop.loop_var.name} wrote",
                code="BW316",
                guilty=[state.tree.realize(b) for b in (reader, *makers)],
                help=f"choose a loop outside {loop.loop_var.name} whose iterations "
                "share nothing; or "
                f"compute_at block {makers[-1].name if makers else reader.name} in loop "
                f"{loop.loop_var.name} first, which computes all that an "
                "iteration reads",
            )


def _useful(rng: ir.Range, dim: ir.Expr, fixed: Sequence[ir.For], analyzer: Analyzer) -> ir.Range:
    """Return the range to allocate of a dimension: of loop-invariant extent, at most the whole."""
    whole = ir.Range(ir.const(0, dim.dtype), dim)
    extent = rng.extent
    if ir.uses_var(extent, {f.loop_var for f in fixed}):
        largest = analyzer.const_bounds(extent)[1]
        if largest is None:
            return whole
        extent = ir.const(largest, dim.dtype)
    extent = ir.cast_to(extent, dim.dtype)
    return whole if analyzer.prove(ir.GE(extent, dim)) else ir.Range(rng.min, extent)


def _iterators(state: StepState, loop: ir.For, fixed: Sequence[ir.For]) -> dict[ir.For, ir.IterVar]:
    """Create iterators for the outer loops that the body of `loop` uses, of matching kinds."""
    used = {v for v in ir.walk(loop.body) if isinstance(v, ir.Var)}
    inside = [r for r in ir.walk(loop.body) if isinstance(r, ir.BlockRealize)]
    outer = {f.loop_var for f in fixed}
    result: dict[ir.For, ir.IterVar] = {}
    for each in fixed:
        var = each.loop_var
        if var not in used:
            continue
        if any(ir.uses_var(e, outer) for e in (each.min, each.extent)):
            state.fail(
                f"the range of loop {var.name} depends on another loop, so it cannot become a "
                "block iterator",
                code="BW350",
                guilty=[each],
                help="choose a loop outside it, or a loop of independent range",
            )
        kinds = {
            it.iter_type
            for r in inside
            for it, value in zip(r.block.iter_vars, r.iter_values, strict=True)
            if ir.uses_var(value, var)
        }
        kind = (
            ir.IterType.SPATIAL
            if not kinds
            else (kinds.pop() if len(kinds) == 1 else ir.IterType.OPAQUE)
        )
        iterator = ir.Var(f"v_{var.name}", var.type)
        result[each] = ir.IterVar(iterator, each.dom, kind)
    return result
