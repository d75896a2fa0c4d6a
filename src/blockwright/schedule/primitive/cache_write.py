"""cache_write: let a block write a cached copy of a buffer, copied back afterwards."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    require_in_blocks,
    require_no_readback,
    require_scope_name,
    require_seen,
)
from blockwright.schedule.legality.buffers import (
    accessed_buffer,
    readers,
    region_of,
    whole_box,
    writers,
)
from blockwright.schedule.legality.checks import require_known_kind
from blockwright.schedule.primitive.cache_read import require_all_in
from blockwright.schedule.rewrite.copies import accessed_box, anchor, concurrent, copied_nest
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name


class CacheWrite(Primitive, frozen=True, eq=False):
    """Let a block write a copy in another storage scope, and copy the result back after it.

    Args:
        block: a block that writes the buffer; other writers in the scope write the copy too.
        write_buffer_index: position among its write regions, or the buffer's name.
        storage_scope: scope of the copy.
        consumer_blocks: blocks that read the copy instead of the buffer; default: none.

    Requires:
    - the writers read only elements of the buffer that they have written (BW323); no reduction of
      theirs, or of blocks inside them, accumulates onto values from earlier executions of the
      scope (BW314);
    - they write all of a box, or, if they share loops with readers of the buffer, all of a box in
      each iteration of these loops (BW323);
    - `consumer_blocks`, and readers between the writers, follow a writer and read only what the
      writers before them have written (BW323);
    - enclosing parallel, vectorized and bound loops stay legal with the copy inside (BW317);
    - a buffer with atomic updates is not cached in a thread-private scope (BW338);
    - the buffer is used in blocks only (BW313);
    - in a nested scope, the accessed part does not depend on a division by a size that may be 0
      (BW363).

    Returns: the block that copies back.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.cache_write(sch.get_block("B"), 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            B_local = T.alloc_buffer((128, 64), "float32", scope="local")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B_local[vi, vj] = A[vi, vj] * 2.0
            for ax0, ax1 in T.grid(128, 64):
                with T.block("B_local"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    B[v0, v1] = B_local[v0, v1]
    """

    method: ClassVar[str] = "cache_write"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    write_buffer_index: int | str
    storage_scope: str
    consumer_blocks: tuple[BlockRV, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.write_buffer_index, "write")
        scope = state.scope(block)
        require_in_blocks(state, scope, buffer)
        makers = writers(state, scope, buffer)
        require_seen(state, makers, buffer, self.storage_scope)
        require_own_values(state, scope, makers, buffer)
        for maker in makers:
            if maker.init is not None:
                require_known_kind(state, state.data_flow(scope), maker)
        wanted = self._consumers(state, scope, makers, buffer)
        own = [(b, region_of(b.writes, buffer)) for b in makers]
        domain = accessed_box(state, scope, own, whole_box(state, scope, buffer, "write"))
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        plain, result = copy_nest(
            name,
            buffer,
            lambda v: v,
            lambda v: ir.BufferLoad(cache, tuple(v)),
            domain,
            state.analyzer(state.scope(block).body),
        )
        users = [b for b in readers(state, scope, buffer) if b not in makers]
        at = anchor(state, state.realize(makers[-1]), scope, map(state.realize, users))
        _require_reached_copy(state, scope, at, makers, users, buffer)
        nest, _ = copied_nest(state, scope, at, result, plain, domain, own, own)
        edit = Edit(state)
        for user in dict.fromkeys([*makers, *wanted]):
            edit.replace_block(user, edit.substitute(user, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.insert_after(at, nest)
        edit.refresh_signatures()
        return concurrent(state, edit.finish(result))

    def _consumers(
        self, state: StepState, scope: ir.Block, makers: list[ir.Block], buffer: ir.Buffer
    ) -> list[ir.Block]:
        """Return the readers of the copy: the chosen consumers, and all readers between writers.

        Fails if one of them reads elements that the writers before it have not written.
        """
        chosen = list(dict.fromkeys(state.block(h) for h in self.consumer_blocks or ()))
        result = readers(state, scope, buffer)
        require_all_in(state, chosen, result, buffer)
        order = state.tree.order
        chosen += [
            b
            for b in result
            if b not in chosen
            and b not in makers
            and order[makers[0]] < order[b] < order[makers[-1]]
        ]
        for reader in chosen:
            require_written(state, scope, makers, reader, buffer)
        return chosen


def _require_reached_copy(
    state: StepState,
    scope: ir.Block,
    at: ir.Stmt,
    makers: list[ir.Block],
    users: list[ir.Block],
    buffer: ir.Buffer,
) -> None:
    """Require that the copy runs whenever its result is read.

    If a loop around the copy may have no iterations, or a condition guards it, elements written
    before it and read after it or outside the scope would not be copied back.
    """
    analyzer = state.analyzer()
    decide = set(state.tree.deciding(at, scope))
    for above in state.tree.ancestors(at):
        if above is scope:
            return
        if above in decide:
            where = "under a condition"
        elif isinstance(above, ir.For) and not analyzer.prove(
            ir.GE(*ir.match_types(above.extent, 1))
        ):
            where = f"in loop {above.loop_var.name}, which may run no iteration"
        else:
            continue
        outside = [b for b in makers if not state.tree.is_below(state.realize(b), above)]
        late = [b for b in users if not state.tree.is_below(state.realize(b), above)]
        stays = buffer not in scope.alloc_buffers  # visible outside the scope
        if outside and (late or stays):
            state.fail(
                f"the copy of {buffer.name} is {where}; block {outside[0].name} writes "
                "it before, and "
                + (f"block {late[0].name} reads it after" if late else "it is read outside"),
                code="BW323",
                guilty=[above, state.realize(outside[0]), *map(state.realize, late[:1])],
                help="use cache_write before the writers are split up by "
                "double_buffer, software_pipeline or decompose_padding",
            )


def require_own_values(
    state: StepState, scope: ir.Block, makers: list[ir.Block], buffer: ir.Buffer
) -> None:
    """Require that writers read only elements that earlier writers wrote in the same execution of
    the scope."""
    for maker in makers:
        if state.data_flow(scope).continued(maker):
            state.fail(
                f"block {maker.name} accumulates onto results of earlier executions of its scope, "
                "which a copy made in each execution does not contain",
                code="BW314",
                guilty=[state.realize(maker)],
                help="apply the step before the reduction is wrapped in a block, or "
                "decompose_reduction first",
            )
    require_no_readback(state, makers[0], buffer)
    for position, block in enumerate(makers[1:], 1):
        if any(r.buffer is buffer for r in block.reads):
            require_written(state, scope, makers[:position], block, buffer)


def require_written(
    state: StepState, scope: ir.Block, makers: list[ir.Block], reader: ir.Block, buffer: ir.Buffer
) -> None:
    """Require that the writers before a block have written all that it reads."""
    flow = state.data_flow(scope)
    region = region_of(reader.reads, buffer)
    before = [b for b in makers if flow.position[b] < flow.position[reader]]
    if not before or not flow.covers(before, reader, region):
        names = ", ".join(b.name for b in makers)
        state.fail(
            f"block {reader.name} reads elements of {buffer.name} that block {names} has "
            "not written",
            code="BW323",
            guilty=[state.realize(reader), *map(state.realize, makers)],
            help="remove that block from consumer_blocks, or write all of the "
            "buffer before it is read",
        )
