"""reverse_compute_inline: inline a consumer into its producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.fresh_copy import copied_expr, with_own_lets
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_in_blocks
from blockwright.schedule.legality.checks import require_complete
from blockwright.schedule.legality.guards import narrowed
from blockwright.schedule.legality.kept_values import Unmarked, as_value, inside
from blockwright.schedule.primitive.compute_inline import (
    element_store,
    in_own_types,
    iterators_of,
    require_element_reads,
    single_store,
)
from blockwright.schedule.rewrite.motion import (
    neighbours,
    require_alone,
    require_everywhere,
    require_idempotent,
    require_quiet,
    require_reads_inside,
    require_sound,
    require_straight,
)


class ReverseComputeInline(Primitive, frozen=True, eq=False):
    """Inline a consumer: apply its expression to the value its producer stores, and drop the block.

    Args:
        block: the consumer.

    Requires:
    - the block and its producers are complete, each with one store as body (BW314, BW360); a
      reduction would apply the expression to each partial sum;
    - the block reads the producer's result at one index (BW325), which is an injective map of its
      iterators, for example the iterators in any order, or `vi // 8, vi % 8` (BW324);
    - no other block reads that result, and its buffer is allocated in the scope (BW322);
    - the loops cover the whole domain of the block (BW361); the producers write all that it reads,
      and each read is inside the buffer (BW358);
    - no statement between the block and its producers uses what the block writes, or writes what it
      reads; later iterations do not recompute the producer's result (BW316).

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
    siblings: ClassVar[bool] = True

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        realize = state.realize(block)
        scope = state.scope(block)
        flow = state.data_flow(scope)
        require_complete(state, flow, block)
        require_idempotent(state, flow, block)
        store = single_store(state, block)
        result = self._producers(state, flow, block)
        producers, buffer = [p for p, _ in result], result[0][1].buffer
        require_straight(state, scope, [state.tree.realize(b) for b in (block, *producers)])
        require_alone(state, scope, block)
        require_everywhere(state, block)
        require_reads_inside(state, block, {buffer})
        load = self._load(state, block, store, buffer)
        read = load.indices
        mappings = [iterators_of(state, block, load, read, stored.indices) for _, stored in result]
        self._makes_all(state, flow, producers, block, buffer)
        problem = flow.uncovered(block, {buffer})
        if problem:  # producers overwrite the result after the block has read it
            state.fail(
                problem,
                code="BW316",
                guilty=[state.tree.realize(x) for x in (*producers, block)],
                help="keep the blocks separate: a later iteration recomputes what each one reads",
            )
        self._undisturbed(state, flow, producers, block)
        edit = Edit(state)
        for (producer, stored), mapping in zip(result, mappings, strict=True):
            self._apply_to(state, edit, block, store, producer, stored, mapping, read)
        edit.replace(realize, None)
        edit.free(scope, buffer)
        edit.refresh_signatures()
        step = edit.finish()
        for producer in producers:
            read = {r.buffer for r in block.reads}  # the producer's own reads do not move
            require_sound(state, step, edit.latest(producer), block, among=read)
        return step

    @staticmethod
    def _apply_to(
        state: StepState,
        edit: Edit,
        block: ir.Block,
        store: ir.BufferStore,
        producer: ir.Block,
        made: ir.BufferStore,
        mapping: dict[ir.Var, ir.Expr],
        read: Sequence[ir.Expr],
    ) -> None:
        """Let a producer store the consumer's value, masked to points of the consumer's domain."""
        typed = in_own_types(mapping)
        consumer = ir.substitute(copied_expr(store.value), typed)
        old = state.tree.realize(producer)
        sorts = ir.Sorts(ir.value_variables(state.func))
        stored = as_value(copied_expr(made.value), sorts)
        inlined = _Replace(made.buffer, stored)(consumer)
        value = with_own_lets(Unmarked(sorts, inside(state, old))(inlined))
        index = tuple(
            mapping[i] if isinstance(i, ir.Var) and i in mapping else ir.substitute(i, typed)
            for i in store.indices
        )
        body = ir.BufferStore(store.buffer, value, index)
        new = with_signature(producer.replace(body=body), state.signature_facts(old))
        edit.forward[producer] = new
        values = {it.var: v for it, v in zip(producer.iter_vars, old.iter_values, strict=True)}
        more: list[ir.Expr] = []
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
                    more.append(ir.substitute(condition, values))
        for index, output in zip(read, made.indices, strict=True):  # only elements that are read
            hit = ir.EQ(*ir.match_types(ir.substitute(index, typed), output))
            if not analyzer.prove(hit):
                more.append(ir.substitute(hit, values))
        edit.replace(old, narrowed(old.replace(block=new), more, state.facts(old)))

    @staticmethod
    def _producers(
        state: StepState, flow: BlockScope, block: ir.Block
    ) -> list[tuple[ir.Block, ir.BufferStore]]:
        """Return the blocks to inline into: all writers of the last producer's buffer."""
        own = set(flow.block.alloc_buffers)
        before = flow.producers(block)
        if not before:
            state.fail(
                f"block {block.name} has no producer in its scope",
                code="BW322",
                guilty=[state.tree.realize(block)],
                help="the block reads inputs only: use compute_inline to inline it into its "
                "consumers",
            )
        require_complete(state, flow, before[-1])
        buffer = element_store(state, before[-1]).buffer
        result: list[tuple[ir.Block, ir.BufferStore]] = []
        for producer in flow.writers[buffer]:
            require_complete(state, flow, producer)
            result.append((producer, element_store(state, producer)))
        others = [r for r in flow.readers[buffer] if r is not block]
        if buffer not in own or others:
            who = f"block {others[0].name} reads it too" if others else "it outlives the scope"
            state.fail(
                f"{buffer.name} must be read by block {block.name} alone, but {who}",
                code="BW322",
                guilty=[state.tree.realize(x) for x in (before[-1], *others)],
                help="use reverse_compute_at, which keeps the buffer, or compute_inline "
                "the producer",
            )
        require_in_blocks(state, flow.block, buffer)
        require_element_reads(state, block, buffer)
        return result

    @staticmethod
    def _load(
        state: StepState, block: ir.Block, store: ir.BufferStore, buffer: ir.Buffer
    ) -> ir.BufferLoad:
        """Return the consumer's load of the buffer; fails if loads differ in their indices."""
        loads = [n for n in ir.collect(store, ir.BufferLoad) if n.buffer is buffer]
        for other in loads[1:]:
            if not ir.structural_equal(other.replace(span=None), loads[0].replace(span=None)):
                state.fail(
                    f"block {block.name} reads {buffer.name} at several indices",
                    code="BW325",
                    guilty=[state.tree.realize(block)],
                    help="use compute_at on the producer, which computes all that the block reads",
                )
        return loads[0]

    @staticmethod
    def _makes_all(
        state: StepState,
        flow: BlockScope,
        producers: list[ir.Block],
        block: ir.Block,
        buffer: ir.Buffer,
    ) -> None:
        """Require that the producers write every element that the block reads.

        They may write more: a predicate masks the points without an instance of the block.
        """
        read = next(r for r in block.reads if r.buffer is buffer)
        if not flow.covers(producers, block, read):
            names = " and ".join(p.name for p in producers)
            state.fail(
                f"block {names} does not write everything that block {block.name} reads",
                code="BW358",
                guilty=[state.tree.realize(x) for x in (*producers, block)],
                help=f"compute_inline({producers[0].name}) inlines the producer into block "
                f"{block.name} instead, if it writes each element once; "
                f"reverse_compute_at({block.name}, loop) keeps the buffer",
            )

    @staticmethod
    def _undisturbed(
        state: StepState, flow: BlockScope, producers: list[ir.Block], block: ir.Block
    ) -> None:
        """Require no conflicting accesses between the block and its producers."""
        here = flow.position[block]
        for producer in producers:
            around = neighbours(state, flow, block, state.tree.realize(producer))
            last = flow.position[producer]
            writers = [b for b in around if flow.position[b] > last and b not in producers]
            users = [b for b in around if flow.position[b] < here]
            require_quiet(state, flow, block, writers=writers, users=users)


class _Replace(ir.Mutator):
    """Replace the loads of one buffer by a value."""

    def __init__(self, buffer: ir.Buffer, value: ir.Expr) -> None:
        super().__init__()
        self.buffer, self.value = buffer, value

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        return self.value if node.buffer is self.buffer else self.descend(node)
