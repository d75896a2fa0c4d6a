"""write_at: cache what a loop iteration writes of a buffer, and copy it back in one block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    require_in_blocks,
    require_scope_name,
    require_seen,
    require_shared,
)
from blockwright.schedule.legality.buffers import accessed_buffer, readers, region_of, writers
from blockwright.schedule.legality.try_remedies import first_legal
from blockwright.schedule.primitive.cache_write import require_own_values, require_written
from blockwright.schedule.primitive.read_at import blocks_below
from blockwright.schedule.rewrite.copies import (
    box_at,
    box_block,
    concurrent,
    fail_unwritten,
    is_held,
)
from blockwright.schedule.rewrite.copy_nest import fresh_name
from blockwright.schedule.rewrite.move import body_parts


class WriteAt(Primitive, frozen=True, eq=False):
    """Let a loop body write a copy of a buffer, and copy it back in one block at its end.

    Args:
        loop: the loop at whose end the copy is stored.
        block: a block below the loop that writes the buffer.
        write_buffer_index: position among its write regions, or the buffer's name.
        storage_scope: scope of the copy.

    Requires:
    - the block is below the loop, in the same scope (BW310); neither it nor a block inside it
      accumulates onto results of earlier executions of the scope, which the copy would not contain
      (BW314);
    - the blocks that write the buffer in the loop write all of a box in each iteration; the blocks
      that read it there read only what has been written (BW323);
    - no block outside the loop writes the buffer, unless the blocks in the loop do not read it
      again in a later iteration (BW323);
    - the loop and its outer loops run at least once if they drive a reduction below them: a
      reduction over no elements results in the initial value, which no copy would store (BW314);
    - the extents of the enclosing loops do not depend on one another (BW350);
    - enclosing parallel, vectorized and bound loops stay legal with the copy inside (BW317);
    - the buffer is not private to the iterations of a parallel or bound loop inside this one
      (BW317);
    - a buffer with atomic updates is not cached in a thread-private scope (BW338);
    - the buffer is used in blocks only (BW313).

    Returns: the block that copies back. All blocks below the loop use the copy.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            for i0, i1, j in T.grid(16, 8, 64):
                with T.block("B"):
                    vi = T.axis.spatial(128, i0 * 8 + i1)
                    vj = T.axis.spatial(64, j)
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        block = sch.get_block("B")
        sch.write_at(sch.get_loops(block)[0], block, 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            B_local = T.alloc_buffer((128, 64), "float32", scope="local")
            for i0 in range(16):
                for i1, j in T.grid(8, 64):
                    with T.block("B"):
                        vi = T.axis.spatial(128, i0 * 8 + i1)
                        vj = T.axis.spatial(64, j)
                        B_local[vi, vj] = A[vi, vj] * 2.0
                with T.block("B_local"):
                    T.block_attr({"auto_copy": 1})
                    v0 = T.axis.spatial(16, i0)
                    for ax0, ax1 in T.grid(8, 64):
                        B[v0 * 8 + ax0, ax1] = B_local[v0 * 8 + ax0, ax1]
    """

    method: ClassVar[str] = "write_at"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    loop: LoopRV
    block: BlockRV
    write_buffer_index: int | str
    storage_scope: str

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        loop, block = state.loop(self.loop), state.block(self.block)
        buffer = accessed_buffer(state, block, self.write_buffer_index, "write")
        scope = state.scope(block)
        below = blocks_below(state, loop, block)
        require_in_blocks(state, scope, buffer)
        inner = (s for s in ir.walk(loop.body) if isinstance(s, ir.For))
        require_shared(state, inner, buffer, "a store after it")
        makers = [b for b in writers(state, scope, buffer) if b in below]
        require_seen(state, makers, buffer, self.storage_scope)
        self._require_own(state, scope, below, makers, buffer)
        fixed = [*state.tree.loops_above(loop), loop]
        _require_begun(state, fixed, makers)
        own = [(b, region_of(b.writes, buffer)) for b in makers]
        box = box_at(state, scope, fixed, own)
        analyzer = state.analyzer(loop.body)
        if not is_held(state, scope, buffer, fixed, box, own, [], ir.const(True, "bool"), analyzer):
            fail_unwritten(state, scope, buffer, own)
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        realize, result = box_block(state, name, buffer, cache, box, fixed)
        edit = Edit(state)
        for user in below:
            if any(r.buffer is buffer for r in (*user.reads, *user.writes)):
                edit.replace_block(user, edit.substitute(user, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.insert_after(body_parts(loop)[-1], realize)
        edit.refresh_signatures()
        return concurrent(state, edit.finish(result))

    @staticmethod
    def _require_own(
        state: StepState,
        scope: ir.Block,
        below: list[ir.Block],
        makers: list[ir.Block],
        buffer: ir.Buffer,
    ) -> None:
        """Require that blocks below the loop read only elements that the copy contains."""
        require_own_values(state, scope, makers, buffer)
        for reader in readers(state, scope, buffer):
            if reader in below and reader not in makers:
                require_written(state, scope, makers, reader, buffer)
        outside = [b for b in writers(state, scope, buffer) if b not in below]
        again = [b for b in makers if b.init is not None]
        if outside and again:
            state.fail(
                f"block {again[0].name} adds to {buffer.name} in more than one iteration, "
                f"while block {outside[0].name} writes it outside the loop",
                code="BW323",
                guilty=[state.realize(again[0]), state.realize(outside[0])],
                help=_behind_all(state, again[0], outside[0], buffer),
            )


def _require_begun(state: StepState, fixed: list[ir.For], makers: list[ir.Block]) -> None:
    """Require that reduction loops around the copy run at least once.

    Otherwise the result is the initial value, which no copy would store to the buffer.
    """
    for block in (b for b in makers if b.init is not None):
        realize = state.realize(block)
        steps = [
            value
            for it, value in zip(block.iter_vars, realize.iter_values, strict=True)
            if it.iter_type is not ir.IterType.SPATIAL
        ]
        for loop in fixed:
            runs = ir.GE(*ir.match_types(loop.extent, 1))
            if any(ir.uses_var(step, loop.loop_var) for step in steps) and not state.analyzer(
                loop
            ).prove(runs):
                state.fail(
                    f"loop {loop.loop_var.name} drives the reduction of block {block.name} and "
                    "may run no iteration, in which case the result is the initial value",
                    code="BW314",
                    guilty=[loop, realize],
                    help="use write_at on a loop outside the reduction",
                )


def _behind_all(state: StepState, block: ir.Block, other: ir.Block, buffer: ir.Buffer) -> str:
    """Suggest how to cache a buffer that a block outside the loop also writes."""
    way = first_legal(state, [f'cache_write("{block.name}", "{buffer.name}", "local")'])
    return (
        f"{way} copies the whole buffer back after both blocks"
        if way
        else f"let block {block.name} write a separate buffer, or move block {other.name} into "
        "the loop"
    )
