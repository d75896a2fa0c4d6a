"""fuse_reduction_epilogue: fold an epilogue into the initial value of a reduction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NoReturn

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, Reduction, match_all, step, stores
from blockwright.arith import bound_region, covers
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_in_blocks
from blockwright.schedule.legality.buffers import home
from blockwright.schedule.legality.checks import require_complete
from blockwright.schedule.legality.reduction import iterators_at, outermost_own, reduction_of
from blockwright.schedule.legality.try_remedies import called, first_legal
from blockwright.schedule.primitive.compute_inline import require_element_reads, single_store
from blockwright.schedule.rewrite.motion import (
    require_alone,
    require_everywhere,
    require_implied_predicate,
)


class FuseReductionEpilogue(Primitive, frozen=True, eq=False):
    """Fold an epilogue into a reduction: use its other operand as the initial value.

    Args:
        reduction_block: the reduction.
        epilogue_block: a block that combines the result with another value by the reducer of the
            reduction: for example a bias added to a sum, or a lower bound of a maximum.

    Requires, otherwise BW337:
    - the first block is a reduction of one element that starts from the identity value. Only the
      epilogue reads its result, which is allocated in the scope and has the epilogue's type;
    - the epilogue is complete and a single store. It reads the result at its own iterators, each
      used once, and either copies the result or combines it by the same reducer with values that
      do not depend on it;
    - in every iteration of the shared loops, the reduction is finished before the epilogue;
    - the reduction covers every element that the epilogue computes, and the epilogue runs on its
      whole domain (BW356, BW361);
    - no statement in between accesses what the epilogue writes, or changes what it reads.

    Other epilogues are rejected: a general function of the result cannot be applied to partial
    results, as `max(a + b, 0)` is not `max(a, 0) + max(b, 0)`. A factor would have to be
    distributed over the terms, which changes floating-point results (even for powers of two, if
    results overflow or are denormal). Use `reverse_compute_at` for such a block, which moves it to
    the iteration that finishes its element.

    The epilogue's value is added first instead of last, so the order of floating-point additions
    changes.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), b: T.Buffer((16,), "float32"),
                 D: T.Buffer((16,), "float32")):
            C = T.alloc_buffer((16,), "float32")
            for i, k in T.grid(16, 64):
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        C[vi] = T.float32(0)
                    C[vi] = C[vi] + A[vi, vk]
            for i in range(16):
                with T.block("D"):
                    vi = T.axis.spatial(16, i)
                    D[vi] = C[vi] + b[vi]

    Steps::

        sch.fuse_reduction_epilogue(sch.get_block("C"), sch.get_block("D"))

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), b: T.Buffer((16,), "float32"),
                 D: T.Buffer((16,), "float32")):
            for i, k in T.grid(16, 64):
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        D[vi] = b[vi]
                    D[vi] = D[vi] + A[vi, vk]
    """

    method: ClassVar[str] = "fuse_reduction_epilogue"
    siblings: ClassVar[bool] = True

    reduction_block: BlockRV
    epilogue_block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block, epilogue = state.block(self.reduction_block), state.block(self.epilogue_block)
        scope = state.scope(block)
        if state.scope(epilogue) is not scope or block is epilogue:
            state.fail(
                f"blocks {block.name} and {epilogue.name} are not two blocks of one scope",
                code="BW337",
                guilty=[block, epilogue],
                help="pass the reduction first and the block that reads its "
                "result second, both in one scope",
            )
        fuse = _Fuse(state, state.data_flow(scope), block, epilogue)
        fuse.check_flow()
        fuse.check_quiet()
        result, predicate = fuse.fused()
        edit = Edit(state)
        old = state.realize(block)
        edit.forward[block] = result
        edit.replace(old, old.replace(block=result, predicate=predicate))
        edit.replace(state.realize(epilogue), None)
        edit.free(scope, fuse.result.buffer)
        edit.refresh_signatures()
        return edit.finish()


class _Fuse:
    def __init__(
        self, state: StepState, flow: BlockScope, block: ir.Block, epilogue: ir.Block
    ) -> None:
        self.state, self.flow, self.block, self.epilogue = state, flow, block, epilogue
        self.guilty = [state.realize(b) for b in (block, epilogue)]
        if flow.kind(block) is not BlockKind.REDUCTION:
            why = flow.why_other(block) or "it has no initial value"
            self.fail(f"block {block.name} is not a reduction: {why}")
        self.reduction: Reduction = reduction_of(state, block)
        self.result, *more = self.reduction.elements
        if more:
            self.fail(f"block {block.name} reduces a tuple, and an epilogue reads only one part")
        require_complete(state, flow, epilogue)
        require_implied_predicate(state, epilogue)
        require_everywhere(state, epilogue)
        self.store = single_store(state, epilogue)
        if self.store.buffer.dtype is not self.result.dtype:
            self.fail(
                f"{self.result.buffer.name} has type {self.result.dtype}, the epilogue's "
                f"{self.store.buffer.name} has {self.store.buffer.dtype}, so partial results "
                "would be rounded differently"
            )
        if not self.reduction.starts_neutral:
            self.fail(
                f"block {block.name} does not start from the identity value, and its initial "
                "value would be lost"
            )

    def fail(self, rule: str, help: str | None = None) -> NoReturn:
        self.state.fail(rule, code="BW337", guilty=self.guilty, help=help or self._apart())

    def _apart(self) -> str:
        """Suggest a loop at which the epilogue reads finished elements."""
        loops = reversed(self.state.tree.loops_above(self.block))
        way = first_legal(
            self.state,
            (f'reverse_compute_at("{self.epilogue.name}", {called(self.state, f)})' for f in loops),
        )
        if not way:
            return "keep the block separate: it cannot move into a loop of the reduction as it is"
        result = ", ".join(r.buffer.name for r in self.block.writes)
        return (
            f"keep the block separate, and move it to where its elements are finished: {way}; "
            f"{result} stays in the program, but lowering shrinks it to what one iteration "
            "accesses"
        )

    # ------------------------------------------------------------------ dataflow
    def check_flow(self) -> None:
        """Require that the epilogue is the only reader of the result, and reads it finished."""
        buffer = self.result.buffer
        if home(self.state, buffer) is not self.flow.block:
            self.fail(f"{buffer.name} outlives the scope", "keep both blocks")
        for other in (*self.flow.readers.get(buffer, ()), *self.flow.writers.get(buffer, ())):
            if other not in (self.block, self.epilogue):
                self.guilty.append(self.state.realize(other))
                self.fail(
                    f"block {other.name} uses {buffer.name} too",
                    "keep both blocks, because it needs the result without the epilogue",
                )
        require_in_blocks(self.state, self.flow.block, buffer)
        require_element_reads(self.state, self.epilogue, buffer)
        if self.flow.position[self.block] > self.flow.position[self.epilogue]:
            self.fail(f"block {self.epilogue.name} comes before block {self.block.name}")
        region = next((r for r in self.epilogue.reads if r.buffer is buffer), None)
        if region is None:
            self.fail(f"block {self.epilogue.name} does not read {buffer.name}")
        if not self.flow.covers([self.block], self.epilogue, region):
            self.fail(
                f"block {self.epilogue.name} may read {buffer.name} before block "
                f"{self.block.name} has finished it"
            )

    def check_quiet(self) -> None:
        """Require that the result may be written, and the other operands read, earlier."""
        low, high = (self.flow.position[b] for b in (self.block, self.epilogue))
        around = [
            outermost_own(self.state, self.block, self.epilogue),
            outermost_own(self.state, self.epilogue, self.block),
        ]
        target = self.store.buffer
        require_alone(self.state, self.flow.block, self.epilogue)
        sources = {r.buffer for r in self.epilogue.reads} - {self.result.buffer}
        if any(r.buffer is target for r in self.block.reads):
            self.fail(f"block {self.block.name} reads {target.name}, which it would write")
        for other in self.flow.blocks:
            if other in (self.block, self.epilogue):
                continue
            here = self.state.tree.realize(other)
            inside = any(here is s or self.state.tree.is_below(here, s) for s in around)
            if not inside and not low < self.flow.position[other] < high:
                continue
            uses = {r.buffer for r in other.writes} & {*sources, target}
            early = {r.buffer for r in other.reads} & {target}
            covered = self.flow.position[other] > high and not self.flow.uncovered(other)
            if uses or (early and not covered):
                name = next(iter(uses | early)).name
                self.guilty.append(here)
                self.fail(f"block {other.name} accesses {name}, and the order would change")

    # ------------------------------------------------------------------ the new reduction
    def fused(self) -> tuple[ir.Block, ir.Expr]:
        """Build the reduction that starts from the epilogue's values, and its predicate."""
        at, predicate = self._iterators()
        term = self._first_term()
        first = self.reduction.initial[0] if term is None else ir.substitute(term, at)
        index = tuple(ir.substitute(i, at) for i in self.store.indices)
        element = ir.BufferLoad(self.store.buffer, index)
        body = step(self.reduction.reducer, [element], self.reduction.terms)
        result = self.block.replace(body=body, init=stores([element], [first]))
        return with_signature(result, self.state.signature_facts(self.block)), predicate

    def _iterators(self) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Return the epilogue's iterators in terms of the reduction's, and the new predicate."""
        realize = self.state.realize(self.block)
        analyzer = self.state.initial_facts(realize)
        for it in self.block.iter_vars:
            if it.iter_type is not ir.IterType.REDUCE:
                analyzer.bind(it.var, it.dom)
        loads = [n for n in ir.collect(self.store, ir.BufferLoad) if n.buffer is self.result.buffer]
        same = all(ir.structural_equal(n.indices, loads[0].indices) for n in loads)
        at = (
            iterators_at(self.epilogue, loads[0].indices, self.result.indices, analyzer)
            if same
            else None
        )
        if at is None:
            self.fail(
                f"block {self.epilogue.name} does not read {self.result.buffer.name} at its "
                "own iterators, each once"
            )
        points = [ir.point(at[it.var]) for it in self.epilogue.iter_vars]
        domains = {it.var: it.dom for it in self.block.iter_vars}
        have = bound_region(points, domains, analyzer)
        whole = covers(have, [it.dom for it in self.epilogue.iter_vars], analyzer)
        if not whole:
            self.fail(
                f"block {self.block.name} does not cover every element that block "
                f"{self.epilogue.name} computes"
            )
        values = {
            it.var: v for it, v in zip(self.block.iter_vars, realize.iter_values, strict=True)
        }
        predicate = realize.predicate
        for it in self.epilogue.iter_vars:
            low, here = ir.match_types(it.dom.min, at[it.var])
            for condition in (ir.GE(here, low), ir.LT(*ir.match_types(here, low + it.dom.extent))):
                if not analyzer.prove(condition):
                    predicate = ir.logical_and(predicate, ir.substitute(condition, values))
        return at, predicate

    def _first_term(self) -> ir.Expr | None:
        """Return the value that the epilogue combines with the result; None if it copies it.

        Several operands are combined by the reducer.
        """
        old = ir.Var("result", self.result.dtype)
        load = next(
            n for n in ir.collect(self.store.value, ir.BufferLoad) if n.buffer is self.result.buffer
        )
        value = _Replace(load.buffer, old)(self.store.value)
        result: ir.Expr | None = None
        reducer = self.reduction.reducer
        while value is not old:
            parts = next(self._parts(value, old), None)
            if parts is None:
                self._refuse()
            value, term = parts
            result = (
                term
                if result is None
                else ir.substitute(reducer.result[0], reducer.operands([term], [result]))
            )
        return result

    def _parts(self, value: ir.Expr, result: ir.Var) -> Iterator[tuple[ir.Expr, ir.Expr]]:
        """Yield (operand that contains the result, other operand) of a reducer application."""
        reducer = self.reduction.reducer
        (left,), (right,) = reducer.lhs, reducer.rhs
        for captured in match_all(reducer.result, [value], {}, ()):
            rest, term = captured.get(left), captured.get(right)
            if rest is None or term is None:
                continue
            if ir.uses_var(term, result):
                rest, term = term, rest
            if not ir.uses_var(term, result):
                yield rest, term

    def _refuse(self) -> NoReturn:
        name = self.reduction.name or "the declared reducer"
        scaled = isinstance(self.store.value, (ir.Mul, ir.Div))
        why = (
            (
                "a factor would have to be distributed over the terms, which changes "
                "floating-point results"
            )
            if scaled
            else (
                "it would be applied to partial results; max(a + b, 0), for example, is not "
                "max(a, 0) + max(b, 0)"
            )
        )
        self.fail(
            f"block {self.epilogue.name} does not combine the result by {name}, the "
            f"reducer of the reduction: {why}"
        )


class _Replace(ir.Mutator):
    """Replace the loads of one buffer by a variable."""

    def __init__(self, buffer: ir.Buffer, variable: ir.Var) -> None:
        super().__init__()
        self.buffer, self.variable = buffer, variable

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        return self.variable if node.buffer is self.buffer else self.descend(node)
