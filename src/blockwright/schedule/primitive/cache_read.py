"""cache_read: let consumers read a cached copy of a buffer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    or_inplace,
    require_in_blocks,
    require_scope_name,
)
from blockwright.schedule.legality.buffers import (
    accessed_buffer,
    readers,
    region_of,
    whole_box,
    writers,
)
from blockwright.schedule.legality.own_loops import first_of
from blockwright.schedule.rewrite.copies import accessed_box, anchor, concurrent, copied_nest
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name


class CacheRead(Primitive, frozen=True, eq=False):
    """Copy a buffer into another storage scope and let consumers read the copy.

    Args:
        block: a consumer.
        read_buffer_index: position among its read regions, or the buffer's name.
        storage_scope: scope of the copy.
        consumer_blocks: the blocks that read the copy; default: every reader in the block's scope.

    Requires:
    - blocks of the scope that write the buffer precede the consumers (BW323); in a nested scope,
      blocks before the enclosing block have written its whole read region (BW323);
    - the copied region has been written. It is the region that the consumers read, or, if producers
      and consumers share loops, the region they read in one iteration of these loops (BW323);
    - all consumers are inside the loops that the first of them shares with a producer, and do not
      write the buffer themselves (BW323);
    - enclosing parallel, vectorized and bound loops stay legal with the copy inside (BW317);
    - the buffer is used in blocks only (BW313);
    - in a nested scope, the accessed part does not depend on a division by a size that may be 0
      (BW363).

    Returns: the copying block, placed after the producers, or first in the scope.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.cache_read(sch.get_block("B"), 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            A_local = T.alloc_buffer((128, 64), "float32", scope="local")
            for ax0, ax1 in T.grid(128, 64):
                with T.block("A_local"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A_local[v0, v1] = A[v0, v1]
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A_local[vi, vj] * 2.0
    """

    method: ClassVar[str] = "cache_read"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    read_buffer_index: int | str
    storage_scope: str
    consumer_blocks: tuple[BlockRV, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        scope = state.scope(block)
        require_in_blocks(state, scope, buffer)
        producers = writers(state, scope, buffer)
        consumers = readers(state, scope, buffer)
        if self.consumer_blocks is not None:
            chosen = [state.block(h) for h in self.consumer_blocks]
            require_all_in(state, chosen, consumers, buffer)
            consumers = [b for b in consumers if b in set(chosen)]
        order = state.tree.order
        for consumer in consumers:
            early = any(order[consumer] < order[producer] for producer in producers)
            if early or any(r.buffer is buffer for r in consumer.writes):
                state.fail(
                    f"block {consumer.name} changes {buffer.name}, or reads it before it is "
                    "written, and cannot read a copy",
                    code="BW323",
                    guilty=[state.realize(consumer)],
                    help="pass other consumers in consumer_blocks"
                    + or_inplace(state, consumer, buffer),
                )
        if not consumers:
            state.fail(
                f"no block would read the copy of {buffer.name}",
                code="BW322",
                guilty=[block],
                help="pass consumers that come after the writer and read the "
                "buffer, or omit consumer_blocks",
            )
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        needs = [(c, region_of(c.reads, buffer)) for c in consumers]
        kind = "read" if scope.init is None else "touch"
        domain = accessed_box(state, scope, needs, whole_box(state, scope, buffer, kind))
        whole, result = copy_nest(
            name,
            cache,
            lambda v: v,
            lambda v: ir.BufferLoad(buffer, tuple(v)),
            domain,
            state.analyzer(state.scope(block).body),
        )
        at = self._place(state, scope, producers, consumers)
        makers = [(p, region_of(p.writes, buffer)) for p in producers]
        nest, _ = copied_nest(state, scope, at, result, whole, domain, needs, makers)
        edit = Edit(state)
        for consumer in consumers:
            edit.replace_block(consumer, edit.substitute(consumer, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.insert_before(at, nest)
        edit.refresh_signatures()
        return concurrent(state, edit.finish(result))

    def _place(
        self,
        state: StepState,
        scope: ir.Block,
        producers: list[ir.Block],
        consumers: list[ir.Block],
    ) -> ir.Stmt:
        """Return the statement before which to insert the copy."""
        if not producers:
            return first_of(scope)
        result = map(state.realize, producers)
        at = anchor(state, state.realize(consumers[0]), scope, result)
        around = state.tree.parent[at]
        for consumer in consumers[1:]:
            if not state.tree.is_below(state.realize(consumer), around):
                state.fail(
                    f"block {consumer.name} reads {buffer_name(consumers, producers)} "
                    "outside the loops that its producer shares with the other consumers",
                    code="BW323",
                    guilty=[state.realize(consumer)],
                    help="pass only consumers in the same loop in consumer_blocks: ["
                    + ", ".join(
                        c.name for c in consumers if state.tree.is_below(state.realize(c), around)
                    )
                    + "]",
                )
        return at


def require_all_in(
    state: StepState, chosen: list[ir.Block], readers: list[ir.Block], buffer: ir.Buffer
) -> None:
    """Require that the chosen consumers all read the buffer in the scope."""
    for block in chosen:
        if block not in readers:
            names = ", ".join(b.name for b in readers) or "none"
            state.fail(
                f"block {block.name} does not read {buffer.name} in this scope",
                code="BW322",
                guilty=[block],
                help=f"blocks that do: {names}",
            )


def buffer_name(consumers: list[ir.Block], producers: list[ir.Block]) -> str:
    """Return the names of the buffers that producers write and consumers read, for messages."""
    written = {r.buffer for p in producers for r in p.writes}
    return ", ".join(
        dict.fromkeys(r.buffer.name for c in consumers for r in c.reads if r.buffer in written)
    )
