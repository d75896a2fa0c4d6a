"""read_at: copy the region of a buffer that a loop iteration reads, in one block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    or_inplace,
    require_in_blocks,
    require_scope_name,
)
from blockwright.schedule.legality.buffers import accessed_buffer, region_of
from blockwright.schedule.rewrite.copies import (
    box_at,
    box_block,
    concurrent,
    fail_unwritten,
    is_held,
)
from blockwright.schedule.rewrite.copy_nest import fresh_name
from blockwright.schedule.rewrite.move import body_parts


class ReadAt(Primitive, frozen=True, eq=False):
    """Copy the region of a buffer that a loop body reads, in one block at the start of the body.

    The block copies a whole box. The annotation `auto_copy` marks it for a later step, which
    schedules its inner loops.

    Args:
        loop: the loop in which the copy is made.
        block: a consumer below the loop.
        read_buffer_index: position among its read regions, or the buffer's name.
        storage_scope: scope of the copy.

    Requires:
    - the block is below the loop, in the same scope (BW310);
    - no block below the loop writes the buffer, and blocks before the loop have written the box
      that one iteration reads (BW323);
    - the extents of the enclosing loops do not depend on one another (BW350);
    - enclosing parallel, vectorized and bound loops stay legal with the copy inside (BW317);
    - the buffer is used in blocks only (BW313).

    Returns: the copying block. All blocks below the loop read the copy.

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
        sch.read_at(sch.get_loops(block)[0], block, 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            A_local = T.alloc_buffer((128, 64), "float32", scope="local")
            for i0 in range(16):
                with T.block("A_local"):
                    T.block_attr({"auto_copy": 1})
                    v0 = T.axis.spatial(16, i0)
                    for ax0, ax1 in T.grid(8, 64):
                        A_local[v0 * 8 + ax0, ax1] = A[v0 * 8 + ax0, ax1]
                for i1, j in T.grid(8, 64):
                    with T.block("B"):
                        vi = T.axis.spatial(128, i0 * 8 + i1)
                        vj = T.axis.spatial(64, j)
                        B[vi, vj] = A_local[vi, vj] * 2.0
    """

    method: ClassVar[str] = "read_at"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    loop: LoopRV
    block: BlockRV
    read_buffer_index: int | str
    storage_scope: str

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        loop, block = state.loop(self.loop), state.block(self.block)
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        scope = state.scope(block)
        below = blocks_below(state, loop, block)
        require_in_blocks(state, scope, buffer)
        consumers = [b for b in below if any(r.buffer is buffer for r in b.reads)]
        rivals = [b for b in below if any(r.buffer is buffer for r in b.writes)]
        if rivals:
            state.fail(
                f"block {rivals[0].name} below loop {loop.loop_var.name} writes "
                f"{buffer.name}: a copy would be stale",
                code="BW323",
                guilty=[state.realize(rivals[0]), loop],
                help=f"choose a loop of {block.name} that does not contain "
                f"{rivals[0].name}" + or_inplace(state, rivals[0], buffer),
            )
        fixed = [*state.tree.loops_above(loop), loop]
        needs = [(b, region_of(b.reads, buffer)) for b in consumers]
        box = box_at(state, scope, fixed, needs)
        order = state.tree.order
        makers = [
            b for b in state.data_flow(scope).writers.get(buffer, ()) if order[b] < order[loop]
        ]
        own = [(b, region_of(b.writes, buffer)) for b in makers]
        analyzer = state.analyzer(loop.body)
        if not is_held(
            state, scope, buffer, fixed, box, own, needs, ir.const(True, "bool"), analyzer
        ):
            fail_unwritten(state, scope, buffer, own)
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        realize, result = box_block(state, name, cache, buffer, box, fixed)
        edit = Edit(state)
        for consumer in consumers:
            edit.replace_block(consumer, edit.substitute(consumer, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.insert_before(body_parts(loop)[0], realize)
        edit.refresh_signatures()
        return concurrent(state, edit.finish(result))


def blocks_below(state: StepState, loop: ir.For, block: ir.Block) -> list[ir.Block]:
    """Return the blocks below a loop, in its scope; fails unless the given block is among them."""
    below = state.tree.child_blocks(loop)
    if block not in below:
        state.fail(
            f"block {block.name} is not below loop {loop.loop_var.name}",
            code="BW310",
            guilty=[state.realize(block), loop],
            help=f'choose one of get_loops("{block.name}"): {state.loops_of(block)}',
        )
    return below
