"""reverse_compute_inline: a consumer's expression is applied where its producer stores."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.arith import covers
from blockwright.schedule.buffers import require_in_blocks
from blockwright.schedule.checks import require_complete
from blockwright.schedule.edit import Edit, with_signature
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.order import (
    neighbours,
    require_everywhere,
    require_idempotent,
    require_quiet,
    require_reads_inside,
    require_sound,
    require_straight,
)
from blockwright.schedule.primitive.compute_inline import (
    iterators_of,
    require_element_reads,
    require_only_writer,
    single_store,
)
from blockwright.schedule.record import Primitive
from blockwright.schedule.renew import copied_expr
from blockwright.schedule.state import State, Step


class ReverseComputeInline(Primitive, frozen=True, eq=False):
    """Apply a consumer's expression to the value its producer stores, and drop the consumer.

    Args:
        block: the consumer.

    Requires:
    - the block and its last producer are complete, each with one store as body (BW314, BW324): a
      reduction would apply the expression to each partial sum;
    - the block reads the producer's result at one index, a one-to-one map of its iterators, such
      as the iterators themselves in any order, or `vi // 8, vi % 8` (BW324);
    - nobody else reads or writes that result, and it lives in the scope (BW322, BW324);
    - the loops reach the whole domain of the block (BW325), and the producer makes all that it
      reads (BW324), each read being of an element that exists (BW323);
    - nothing between the two places uses what the block writes, or writes what it reads (BW316).

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
        require_idempotent(state, flow, block)
        store = single_store(state, block)
        producer, made = self._producer(state, flow, block)
        require_straight(state, scope, [realize, state.tree.realize(producer)])
        require_everywhere(state, block)
        require_reads_inside(state, block, {made.buffer})
        mapping = self._iterators(state, block, store, made)
        self._makes_all(state, flow, producer, block, made.buffer)
        self._undisturbed(state, flow, producer, block)
        value = _Replace(made.buffer, copied_expr(made.value))(ir.substitute(store.value, mapping))
        index = tuple(ir.substitute(i, mapping) for i in store.indices)
        body = ir.BufferStore(store.buffer, value, index)
        edit = Edit(state)
        old = state.tree.realize(producer)
        new = with_signature(producer.replace(body=body), state.analyzer(old))
        edit.forward[producer] = new
        edit.replace(old, self._guarded(state, producer, block, mapping).replace(block=new))
        edit.replace(realize, None)
        edit.free(scope, made.buffer)
        edit.refresh_signatures()
        step = edit.finish()
        require_sound(state, step, new, block)
        return step

    @staticmethod
    def _guarded(
        state: State, producer: ir.Block, block: ir.Block, mapping: dict[ir.Var, ir.Expr]
    ) -> ir.BlockRealize:
        """The producer's realize where the consumer has an instance."""
        realize = state.tree.realize(producer)
        values = {it.var: v for it, v in zip(producer.iter_vars, realize.iter_values, strict=True)}
        predicate = realize.predicate
        analyzer = state.analyzer(realize)
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
        return realize.replace(predicate=predicate)

    @staticmethod
    def _producer(state: State, flow: Scope, block: ir.Block) -> tuple[ir.Block, ir.BufferStore]:
        """The block that can take the expression: the last producer of something read here."""
        own = set(flow.block.alloc_buffers)
        producers = flow.producers(block)
        if not producers:
            state.fail(f"block {block.name} has no producer in its scope", code="BW322",
                       guilty=[state.tree.realize(block)])  # fmt: skip
        producer = producers[-1]
        require_complete(state, flow, producer)
        made = single_store(state, producer)
        others = [r for r in flow.readers[made.buffer] if r is not block]
        if made.buffer not in own or others:
            who = f"block {others[0].name} reads it too" if others else "it outlives the scope"
            state.fail(
                f"{made.buffer.name} must be read by block {block.name} alone, but {who}",
                code="BW322",
                guilty=[state.tree.realize(x) for x in (producer, *others)],
            )
        require_only_writer(state, flow, producer, made.buffer)
        require_in_blocks(state, flow.block, made.buffer)
        require_element_reads(state, block, made.buffer)
        return producer, made

    @staticmethod
    def _iterators(
        state: State, block: ir.Block, store: ir.BufferStore, made: ir.BufferStore
    ) -> dict[ir.Var, ir.Expr]:
        """The consumer's iterators in terms of the producer's."""
        loads = [n for n in ir.collect(store, ir.BufferLoad) if n.buffer is made.buffer]
        for other in loads[1:]:
            if not ir.structural_equal(other.replace(span=None), loads[0].replace(span=None)):
                state.fail(f"block {block.name} reads {made.buffer.name} at several indices",
                           code="BW324", guilty=[state.tree.realize(block)])  # fmt: skip
        return iterators_of(state, block, loads[0], loads[0].indices, made.indices)

    @staticmethod
    def _makes_all(
        state: State, flow: Scope, producer: ir.Block, block: ir.Block, buffer: ir.Buffer
    ) -> None:
        """The producer makes every element that the block reads; those it makes beyond are left
        out by the domains of the block's iterators, one by one."""
        read = next(r for r in block.reads if r.buffer is buffer)
        written = next(r for r in producer.writes if r.buffer is buffer)
        analyzer = state.analyzer(flow.block.body)
        wanted = flow.region_under((), block, read, analyzer)
        have = flow.region_under((), producer, written, analyzer)
        plain = all(isinstance(r.min, ir.Var) or ir.is_const_int(r.min) for r in read.region)
        fits = plain or covers(wanted.region, have.region, analyzer)
        if not fits or not flow.covered(block, read, [producer]):
            state.fail(f"block {producer.name} does not run where block {block.name} does",
                       code="BW324", guilty=[state.tree.realize(x) for x in (producer, block)],
                       help="inline the producer instead")  # fmt: skip

    @staticmethod
    def _undisturbed(state: State, flow: Scope, producer: ir.Block, block: ir.Block) -> None:
        """Nobody writes what the block reads, or uses what it writes, between the two places."""
        around = neighbours(state, flow, block, state.tree.realize(producer))
        last, here = flow.position[producer], flow.position[block]
        writers = [b for b in around if flow.position[b] > last]
        users = [b for b in around if flow.position[b] < here]
        require_quiet(state, flow, block, writers=writers, users=users)


class _Replace(ir.Mutator):
    """Loads of one buffer become a value."""

    def __init__(self, buffer: ir.Buffer, value: ir.Expr) -> None:
        super().__init__()
        self.buffer, self.value = buffer, value

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        return self.value if node.buffer is self.buffer else self.descend(node)
