"""cache_inplace: let a block update a cached copy of a buffer, copied in and copied back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    require_in_blocks,
    require_scope_name,
    require_seen,
)
from blockwright.schedule.legality.buffers import (
    accessed_buffer,
    home,
    readers,
    region_of,
    whole_box,
    writers,
)
from blockwright.schedule.legality.checks import earlier_writers
from blockwright.schedule.rewrite.copies import accessed_box, anchor, concurrent, copied_nest
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name


class CacheInplace(Primitive, frozen=True, eq=False):
    """Let a block that updates a buffer in place work on a copy in another storage scope.

    Args:
        block: a block that reads and writes the buffer.
        read_buffer_index: position among its read regions, or the buffer's name.
        storage_scope: scope of the copy.

    Requires:
    - the block reads and writes the buffer, and the buffer is used in blocks only (BW313, BW320);
    - the elements that the block accesses, in one iteration of the loops that it shares with other
      users of the buffer, are written before it, unless the buffer is an input without a writer
      (BW322, BW323); no inner block initializes elements (BW362);
    - these loops are serial, or the block writes all of its bounding box; parallel, vectorized and
      bound loops stay legal with the copies inside (BW317);
    - a buffer with atomic updates is not cached in a thread-private scope (BW338);
    - in a nested scope, the accessed part does not depend on a division by a size that may be 0
      (BW363).

    Returns: the block that copies in, and the block that copies back.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32")):
            for i, j in T.grid(64, 64):
                with T.block("A"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    A[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.cache_inplace(sch.get_block("A"), 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32")):
            A_local = T.alloc_buffer((64, 64), "float32", scope="local")
            for ax0, ax1 in T.grid(64, 64):
                with T.block("A_local"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A_local[v0, v1] = A[v0, v1]
            for i, j in T.grid(64, 64):
                with T.block("A"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    A_local[vi, vj] = A_local[vi, vj] * 2.0
            for ax0, ax1 in T.grid(64, 64):
                with T.block("A_local_back"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A[v0, v1] = A_local[v0, v1]
    """

    method: ClassVar[str] = "cache_inplace"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV
    read_buffer_index: int | str
    storage_scope: str

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        if not any(r.buffer is buffer for r in block.writes):
            state.fail(
                f"block {block.name} does not write {buffer.name}",
                code="BW320",
                guilty=[block],
                help=f'cache_read("{block.name}", "{buffer.name}", '
                f'"{self.storage_scope}") copies a buffer that is only read',
            )
        require_seen(state, [block], buffer, self.storage_scope)
        for inner in ir.blocks(block.body):
            starts = inner.init is not None or all(r.buffer is not buffer for r in inner.reads)
            if starts and any(r.buffer is buffer for r in inner.writes):
                state.fail(
                    f"block {inner.name} inside {block.name} initializes {buffer.name}, "
                    "so there may be no values to copy in",
                    code="BW362",
                    guilty=[inner],
                    help="cache_write that block, or cache_inplace the inner blocks that update "
                    "the buffer",
                )
        scope = state.scope(block)
        require_in_blocks(state, scope, buffer)
        users = [*writers(state, scope, buffer), *readers(state, scope, buffer)]
        others = [b for b in dict.fromkeys(users) if b is not block]
        at = anchor(state, state.realize(block), scope, map(state.realize, others))
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        edit = Edit(state)
        first, copied = self._read(state, edit, block, at, cache)
        second = self._store(state, edit, block, at, cache, copied)
        edit.replace_block(block, edit.substitute(block, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.refresh_signatures()
        return concurrent(state, edit.finish(first, second))

    def _read(
        self, state: StepState, edit: Edit, block: ir.Block, at: ir.Stmt, cache: ir.Buffer
    ) -> tuple[ir.Block, Sequence[ir.Range]]:
        """Insert the block that copies in; return it and the box that it copies.

        The box covers everything the block accesses, so that copying back changes nothing else.
        """
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        scope = state.scope(block)
        needs = [(block, region_of(r, buffer)) for r in (block.reads, block.writes)]
        order = state.tree.order
        makers = [
            (b, region_of(b.writes, buffer))
            for b in writers(state, scope, buffer)
            if order[b] < order[block]
        ]
        if not _has_values(state, block, buffer):
            state.fail(
                f"nothing writes {buffer.name} before block {block.name} reads it",
                code="BW322",
                guilty=[state.realize(block)],
                help=f"write the initial values of {buffer.name} in a block before it",
            )
        box = accessed_box(state, scope, needs, whole_box(state, scope, buffer, "touch"))
        whole, result = copy_nest(
            cache.name,
            cache,
            lambda v: v,
            lambda v: ir.BufferLoad(buffer, tuple(v)),
            box,
            state.analyzer(state.scope(block).body),
        )
        nest, copied = copied_nest(state, scope, at, result, whole, box, needs, makers)
        edit.insert_before(at, nest)
        return result, copied

    def _store(
        self,
        state: StepState,
        edit: Edit,
        block: ir.Block,
        at: ir.Stmt,
        cache: ir.Buffer,
        copied: Sequence[ir.Range],
    ) -> ir.Block:
        """Insert the block that copies back the box that the block writes, within `copied`."""
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        scope = state.scope(block)
        own = [(block, region_of(block.writes, buffer))]
        together = [n for n in state.tree.loops_above(at) if n.kind is not ir.ForKind.SERIAL]
        flow = state.data_flow(scope)
        fixed = state.tree.loops_above(at)
        if together and not flow.is_exact(fixed, *own[0], state.analyzer(at)):
            state.fail(
                f"block {block.name} does not write all of the box of {buffer.name} that would "
                f"be stored, and iterations of {together[0].loop_var.name} run concurrently",
                code="BW317",
                guilty=[state.realize(block), together[0]],
                help=f"use cache_inplace before loop {together[0].loop_var.name} is made "
                f"{together[0].kind.value}, or let block {block.name} write all of that "
                "box",
            )
        box = accessed_box(state, scope, own, whole_box(state, scope, buffer, "write"))
        name = fresh_name(state, f"{cache.name}_back")
        whole, result = copy_nest(
            name,
            buffer,
            lambda v: v,
            lambda v: ir.BufferLoad(cache, tuple(v)),
            box,
            state.analyzer(state.scope(block).body),
        )
        nest, _ = copied_nest(state, scope, at, result, whole, box, own, [], copied)
        edit.insert_after(at, nest)
        return result


def _has_values(state: StepState, block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether the buffer has values before a block that updates it: from the caller, from an
    earlier block, or from the init of an enclosing block."""
    if home(state, buffer) is None and buffer not in state.func.outputs:
        return True
    around = (b for b in state.tree.ancestors(block) if isinstance(b, ir.Block))
    begun = (b for b in around if b.init is not None)
    return any(r.buffer is buffer for b in begun for r in b.writes) or bool(
        earlier_writers(state, block, buffer)[1]
    )
