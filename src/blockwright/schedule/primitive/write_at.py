"""write_at: in each iteration of a loop, one block stores what its body wrote of a buffer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import (
    accessed_buffer,
    fresh_name,
    readers,
    region_of,
    require_in_blocks,
    require_scope_name,
    require_seen,
    require_shared,
    writers,
)
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
from blockwright.schedule.rewrite.move import body_parts


class WriteAt(Primitive, frozen=True, eq=False):
    """Let a loop's body write a copy of a buffer, and store it at its end, in one block.

    Args:
        loop: where the copy is stored.
        block: a block below the loop that writes the buffer.
        write_buffer_index: position among its write regions, or the buffer's name.
        storage_scope: scope of the copy.

    Requires:
    - the block stands below the loop, in the same scope (BW310); neither it nor a block
      inside of it goes on with the sums of earlier visits of the scope, which the copy would not
      hold (BW314);
    - blocks that write the buffer in the loop fill a box in each iteration, and those that read it
      there find what they read (BW323);
    - no block outside the loop writes the buffer, unless those in the loop never look at it again
      (BW323);
    - the loop, and those around it, run at least one iteration where a block below begins its sums
      in their first one: over no elements its result is the initial value (BW314);
    - the extents of the loops around do not depend on one another (BW350);
    - loops around that are parallel, vectorized or bound may run so with the copy in them (BW317);
    - no loop inside of that one is parallel or bound and has, in each iteration, the buffer for
      itself (BW317);
    - what is updated atomically gets no copy in a scope of one thread (BW338);
    - the buffer is used in blocks only (BW313).

    Returns: the block that stores. All blocks below the loop use the copy.

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
        """The copy holds whatever the blocks below the loop look for in it."""
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
    """Fail if a reduction loop around the copy may run nothing: initial values are stored then
    too, and no copy would bring them to the buffer."""
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
                    f"loop {loop.loop_var.name} is a reduction of block {block.name} and "
                    "may run no iteration, where the result is the initial value",
                    code="BW314",
                    guilty=[loop, realize],
                    help="store the copy at a loop outside of the reduction",
                )


def _behind_all(state: StepState, block: ir.Block, other: ir.Block, buffer: ir.Buffer) -> str:
    """What copies a buffer back that a block outside of the loop writes too."""
    way = first_legal(state, [f'cache_write("{block.name}", "{buffer.name}", "local")'])
    return (
        f"{way} copies the whole buffer behind both blocks"
        if way
        else f"let block {block.name} write a buffer of its own, or move block {other.name} into "
        "the loop"
    )
