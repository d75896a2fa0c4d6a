"""reverse_compute_inline: a consumer's expression is applied where its producer stores."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.arith import bound_region, jointly_cover
from blockwright.schedule.checks import require_complete
from blockwright.schedule.edit import Edit, with_signature
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.move import require_implied_predicate
from blockwright.schedule.primitive.compute_inline import require_element_reads, single_store
from blockwright.schedule.record import Primitive
from blockwright.schedule.renew import copied_expr
from blockwright.schedule.state import State, Step


class ReverseComputeInline(Primitive, frozen=True, eq=False):
    """Apply a consumer's expression to the value its producer stores, and drop the consumer.

    Args:
        block: the consumer.

    Requires:
    - the block and the producers of the buffer that it takes up (several may write parts of it)
      are complete, each with one store as body;
    - the block reads the producer's result at one index, its own iterators, each once;
    - nobody else reads the producer's result, and it lives in the scope;
    - nothing between the two blocks touches what the consumer reads or writes.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
            B = T.alloc_buffer((64,), "float32")
            for i in range(64):
                with T.block("B"):
                    vi = T.axis.spatial(64, i)
                    B[vi] = A[vi] * 2.0
            for i in range(64):
                with T.block("C"):
                    vi = T.axis.spatial(64, i)
                    C[vi] = B[vi] + 1.0

    Steps::

        sch.reverse_compute_inline(sch.get_block("C"))

    After::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
            for i in range(64):
                with T.block("B"):
                    vi = T.axis.spatial(64, i)
                    C[vi] = A[vi] * 2.0 + 1.0
    """

    method: ClassVar[str] = "reverse_compute_inline"

    block: BlockRV

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        realize = state.realize(block)
        scope = state.scope(block)
        flow = state.data_flow(scope)
        require_complete(state, flow, block)
        require_implied_predicate(state, block)
        store = single_store(state, block)
        producers = self._producers(state, flow, block)
        mappings = [self._iterators(state, block, store, made) for _, made in producers]
        self._reach_all(state, flow, [p for p, _ in producers], block, mappings)
        self._quiet_between(state, flow, [p for p, _ in producers], block)
        edit = Edit(state)
        for (producer, made), mapping in zip(producers, mappings, strict=True):
            self._apply_to(state, edit, block, store, producer, made, mapping)
        edit.replace(realize, None)
        edit.free(scope, producers[0][1].buffer)
        edit.refresh_signatures()
        return edit.finish()

    @staticmethod
    def _apply_to(
        state: State, edit: Edit, block: ir.Block, store: ir.BufferStore, producer: ir.Block,
        made: ir.BufferStore, mapping: dict[ir.Var, ir.Expr],
    ) -> None:  # fmt: skip
        """Let one producer store the consumer's value, where there is an instance of it."""
        value = _Replace(made.buffer, copied_expr(made.value))(
            ir.substitute(copied_expr(store.value), mapping))  # fmt: skip
        index = tuple(ir.substitute(i, mapping) for i in store.indices)
        body = ir.BufferStore(store.buffer, value, index)
        old = state.tree.realize(producer)
        new = with_signature(producer.replace(body=body), state.analyzer(old))
        edit.forward[producer] = new
        values = {it.var: v for it, v in zip(producer.iter_vars, old.iter_values, strict=True)}
        predicate = old.predicate
        analyzer = state.analyzer(old)
        for it in producer.iter_vars:
            analyzer.bind(it.var, it.dom)
        for it in block.iter_vars:
            at = mapping[it.var]
            for condition in (
                ir.GE(*ir.match_types(at, it.dom.min)),
                ir.LT(*ir.match_types(at, it.dom.min + it.dom.extent)),
            ):
                if not analyzer.prove(condition):
                    predicate = ir.logical_and(predicate, ir.substitute(condition, values))
        edit.replace(old, old.replace(block=new, predicate=predicate))

    @staticmethod
    def _producers(
        state: State, flow: Scope, block: ir.Block
    ) -> list[tuple[ir.Block, ir.BufferStore]]:
        """The blocks that can take the expression: all that write what the last producer writes."""
        own = set(flow.block.alloc_buffers)
        before = flow.producers(block)
        if not before:
            state.fail(f"block {block.name} has no producer in its scope", code="BW322",
                       guilty=[state.tree.realize(block)])  # fmt: skip
        require_complete(state, flow, before[-1])
        buffer = single_store(state, before[-1]).buffer
        found: list[tuple[ir.Block, ir.BufferStore]] = []
        for producer in flow.writers[buffer]:
            require_complete(state, flow, producer)
            found.append((producer, single_store(state, producer)))
        others = [r for r in flow.readers[buffer] if r is not block]
        if buffer not in own or others:
            who = f"block {others[0].name} reads it too" if others else "it outlives the scope"
            state.fail(
                f"{buffer.name} must be read by block {block.name} alone, but {who}",
                code="BW322",
                guilty=[state.tree.realize(x) for x in (before[-1], *others)],
            )
        require_element_reads(state, block, buffer)
        return found

    @staticmethod
    def _iterators(
        state: State, block: ir.Block, store: ir.BufferStore, made: ir.BufferStore
    ) -> dict[ir.Var, ir.Expr]:
        """The consumer's iterators in terms of the producer's."""
        loads = [n for n in ir.collect(store, ir.BufferLoad) if n.buffer is made.buffer]
        own = {it.var: it for it in block.iter_vars}
        mapping: dict[ir.Var, ir.Expr] = {}
        for position, index in enumerate(loads[0].indices):
            if isinstance(index, ir.Var) and index in own and index not in mapping:
                mapping[index] = ir.cast_to(made.indices[position], index.type)
            elif not (ir.is_const_int(index, 0)
                      and ir.is_const_int(made.buffer.shape[position], 1)):  # fmt: skip
                state.fail(f"block {block.name} does not read {made.buffer.name} at its own "
                           "iterators, each once", code="BW324",
                           guilty=[state.tree.realize(block)])  # fmt: skip
        for other in loads[1:]:
            if not ir.structural_equal(other.replace(span=None), loads[0].replace(span=None)):
                state.fail(f"block {block.name} reads {made.buffer.name} at several indices",
                           code="BW324", guilty=[state.tree.realize(block)])  # fmt: skip
        for var, it in own.items():
            if var not in mapping:
                if not ir.is_const_int(it.dom.extent, 1):
                    state.fail(f"iterator {var.name} of block {block.name} does not index "
                               f"{made.buffer.name}", code="BW324", guilty=[it])  # fmt: skip
                mapping[var] = it.dom.min
        return mapping

    @staticmethod
    def _reach_all(
        state: State, flow: Scope, producers: list[ir.Block], block: ir.Block,
        mappings: list[dict[ir.Var, ir.Expr]],
    ) -> None:  # fmt: skip
        """The producers' instances give the consumer's iterators every value they take."""
        boxes: list[tuple[ir.Range, ...]] = []
        analyzer = state.analyzer(flow.block.body)
        for producer, mapping in zip(producers, mappings, strict=True):
            domains = {it.var: it.dom for it in producer.iter_vars}
            points = [ir.Range(mapping[it.var], ir.const(1, it.var.type)) for it in block.iter_vars]
            if flow.is_exact([], producer, producer.writes[0], analyzer):
                boxes.append(bound_region(points, domains, analyzer))
        if not jointly_cover(boxes, [it.dom for it in block.iter_vars], analyzer):
            names = " and ".join(p.name for p in producers)
            state.fail(f"block {names} does not run where block {block.name} does", code="BW324",
                       guilty=[state.tree.realize(x) for x in (*producers, block)],
                       help="inline the producer instead")  # fmt: skip

    @staticmethod
    def _quiet_between(
        state: State, flow: Scope, producers: list[ir.Block], block: ir.Block
    ) -> None:
        low, high = flow.position[producers[0]], flow.position[block]
        made = {r.buffer for p in producers for r in p.writes}
        written = {r.buffer for r in block.writes}
        touched = written | {r.buffer for r in block.reads}
        for other in flow.blocks[low:high]:
            changes = {r.buffer for r in other.writes} & touched
            uses = {r.buffer for r in other.reads} & written
            if other in producers:
                changes -= made
            if changes or uses:
                name = next(iter(changes | uses)).name
                state.fail(f"block {other.name} stands between and touches {name}", code="BW316",
                           guilty=[state.tree.realize(other)])  # fmt: skip


class _Replace(ir.Mutator):
    """Loads of one buffer become a value."""

    def __init__(self, buffer: ir.Buffer, value: ir.Expr) -> None:
        super().__init__()
        self.buffer, self.value = buffer, value

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        return self.value if node.buffer is self.buffer else self.descend(node)
