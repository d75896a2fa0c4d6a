"""merge_reduction: merge an init block back into the update block of a reduction."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, facts_at
from blockwright.arith import Analyzer, clip_region, covers, is_bijective
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_complete
from blockwright.schedule.legality.reduction import iterators_at, outermost_own
from blockwright.schedule.primitive.decompose_reduction import reduction_loops
from blockwright.schedule.rewrite.motion import require_alone


class MergeReduction(Primitive, frozen=True, eq=False):
    """Merge the block that sets initial values into the block that updates them.

    The inverse of `decompose_reduction`.

    Args:
        init: the block that sets the initial values.
        update: the block that updates them.

    Requires, otherwise BW336:
    - both are in one scope, each under loops only; the first is complete, the second is an update
      without an initial value;
    - the first stores exactly the elements that the second updates, at its own iterators, in every
      iteration of the shared loops, which drive no reduction;
    - the loops of the update run each instance once, reduction loops in serial order. The first
      step of every element is at the first values of its reduction iterators; if an element has no
      step, one of these iterators has an empty domain;
    - no block between the two, and no other block in the non-shared loops of the update, accesses
      the elements or changes the operands of the initial values.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B_init"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = T.float32(0)
            for i, k in T.grid(16, 64):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    B[vi] = B[vi] + A[vi, vk]

    Steps::

        sch.merge_reduction(sch.get_block("B_init"), sch.get_block("B"))

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i, k in T.grid(16, 64):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]
    """

    method: ClassVar[str] = "merge_reduction"
    siblings: ClassVar[bool] = True

    init: BlockRV
    update: BlockRV

    def apply(self, state: StepState) -> StepResult:
        init, update = state.block(self.init), state.block(self.update)
        scope = state.scope(update)
        if state.scope(init) is not scope:
            state.fail(
                f"blocks {init.name} and {update.name} are in different scopes",
                code="BW336",
                guilty=[init, update],
                help="merge before one of them is wrapped in a block",
            )
        merge = _Merge(state, scope, init, update)
        value = merge.initial()
        merge.check_steps()
        merge.check_same_elements()
        merge.check_quiet()
        edit = Edit(state)
        merged = with_signature(update.replace(init=value), state.signature_facts(update))
        edit.replace_block(update, merged)
        edit.replace(state.realize(init), None)
        edit.refresh_signatures()
        return edit.finish()


class _Merge:
    def __init__(self, state: StepState, scope: ir.Block, init: ir.Block, update: ir.Block) -> None:
        self.state, self.scope, self.init, self.update = state, scope, init, update
        self.flow: BlockScope = state.data_flow(scope)
        self.realize = state.realize(update)
        if init is update or self.flow.kind(update) is not BlockKind.UPDATE:
            self.fail(
                f"block {update.name} is not an update with a separate initial value",
                self.flow.why_other(update),
            )
        require_complete(state, self.flow, init)
        if self.flow.position[init] > self.flow.position[update]:
            self.fail(f"block {init.name} comes after block {update.name}")
        for block in (init, update):
            self._in_loops_alone(block)
        self.common = state.tree.common_loops(init, update)
        self.own = state.tree.loops_above(update)[len(self.common) :]
        self.reducing = reduction_loops(state, update, state.tree.loops_above(update))
        self.written = [r.buffer for r in update.writes]

    def fail(self, rule: str, why: str = "", help: str | None = None) -> NoReturn:
        self.state.fail(
            rule + (f": {why}" if why else ""),
            code="BW336",
            guilty=[self.state.tree.realize(b) for b in (self.init, self.update)],
            help=help
            or "pass the block that sets each element once and then the block that updates it, "
            "each in its own loops, as decompose_reduction creates them",
        )

    def _in_loops_alone(self, block: ir.Block) -> None:
        if any(self.state.tree.deciding(self.state.realize(block), self.scope)):
            self.fail(f"block {block.name} is in a statement that decides what runs")

    def initial(self) -> ir.Stmt:
        """Rewrite the stores of the init block over the iterators of the update."""
        body = self.init.body
        parts = body.seq if isinstance(body, ir.SeqStmt) else (body,)
        stores = [s for s in parts if isinstance(s, ir.BufferStore) and s.predicate is None]
        if len(stores) < len(parts) or {s.buffer for s in stores} != set(self.written):
            self.fail(
                f"block {self.init.name} does not set just one initial value for each "
                f"element that block {self.update.name} updates"
            )
        analyzer = self.state.analyzer(self.realize)
        for it in self.update.iter_vars:
            analyzer.bind(it.var, it.dom)
        steps = {f.loop_var for f in self.reducing}
        steps |= {it.var for it in self.update.iter_vars if it.iter_type is ir.IterType.REDUCE}
        analyzer = analyzer.without_empty(steps)  # the init also applies if there is no step
        result: list[ir.Stmt] = []
        for store in stores:
            place = self._place(store.buffer)
            at = iterators_at(self.init, store.indices, place, analyzer)
            if at is None:
                self.fail(
                    f"the iterators of block {self.init.name} are not determined by the "
                    f"element of {store.buffer.name} that block {self.update.name} "
                    "updates",
                    help="index it by plain iterators",
                )
            result.append(ir.BufferStore(store.buffer, ir.substitute(store.value, at), place))
        return ir.seq(result)

    def _place(self, buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
        """Return the indices of the only element of a buffer that an update instance accesses."""
        result = [a for a in ir.accesses(self.update.body) if a.buffer is buffer]
        iters = {it.var for it in self.update.iter_vars if it.iter_type is not ir.IterType.REDUCE}
        first = result[0] if result else None
        if first is None or ir.collect(self.update.body, ir.BlockRealize):
            self.fail(f"block {self.update.name} is more than an update of elements")
        known = (
            iters
            | set(self.flow.tree.func.params)
            | {v for d in buffer.shape for v in ir.collect(d, ir.Var)}
        )
        plain = all(v in known for i in first.indices for v in ir.free_vars(i))
        if not plain or not all(ir.structural_equal(a.indices, first.indices) for a in result):
            self.fail(
                f"an instance of block {self.update.name} accesses several elements of "
                f"{buffer.name}"
            )
        return first.indices

    # ------------------------------------------------------------------ first step of the update
    def check_steps(self) -> None:
        """Require that every element runs all steps of its reduction once, in serial order."""
        for loop in self.reducing:
            name = loop.loop_var.name
            if any(loop is c for c in self.common):
                self.fail(
                    f"loop {name} around both blocks reduces, so the initial value is set "
                    "again in each of its iterations"
                )
            if loop.kind not in (ir.ForKind.SERIAL, ir.ForKind.UNROLLED):
                self.fail(
                    f"reduction loop {name} is {loop.kind.value}",
                    help="merge before loops are vectorized or parallelized",
                )
        domains = {f.loop_var: f.dom for f in self.own}
        predicate = None if ir.is_const_int(self.realize.predicate) else self.realize.predicate
        around: ir.Stmt = self.own[0] if self.own else self.realize
        analyzer = self.state.analyzer(around)
        if domains and not is_bijective(self.realize.iter_values, domains, predicate, analyzer):
            self.fail(f"the loops run instances of block {self.update.name} more than once")
        self._check_first(analyzer)
        self._check_empty(analyzer)

    def _check_first(self, analyzer: Analyzer) -> None:
        """Require that the first step of every element is at the first reduction iterator values.

        That is: with all reduction loops at their start, the reduction iterators have their first
        values, and the predicate holds.
        """
        known = analyzer.copy()
        reducing = {f.loop_var for f in self.reducing}
        for loop in self.own:
            if loop.loop_var not in reducing:
                known.bind(loop.loop_var, loop.dom)
        start = {f.loop_var: f.min for f in self.reducing}
        reduced = [it for it in self.update.iter_vars if it.iter_type is ir.IterType.REDUCE]
        for extent in (*(f.extent for f in self.reducing), *(it.dom.extent for it in reduced)):
            known.learn(ir.GT(extent, ir.const(0, extent.dtype)))  # assume at least one step
        pairs = zip(self.update.iter_vars, self.realize.iter_values, strict=True)
        for it, value in pairs:
            if it.iter_type is ir.IterType.REDUCE:
                at = ir.substitute(value, start)
                if not known.prove_equal(*ir.match_types(at, it.dom.min)):
                    self.fail(
                        f"the first step of an element does not have the first value of "
                        f"iterator {it.var.name}"
                    )
        for condition in ir.conditions(self.realize.predicate):
            if ir.uses_var(condition, reducing) and not known.prove(
                ir.substitute(condition, start)
            ):
                self.fail("a condition of the predicate may skip the first step of an element")

    def _check_empty(self, analyzer: Analyzer) -> None:
        """Require that an empty reduction loop implies an empty reduction iterator domain."""
        reduced = [it for it in self.update.iter_vars if it.iter_type is ir.IterType.REDUCE]
        for loop in self.reducing:
            empty = analyzer.copy()
            zero = ir.const(0, loop.extent.dtype)
            if empty.prove(ir.GT(loop.extent, zero)):
                continue
            empty.learn(ir.LE(loop.extent, zero))
            none = [ir.LE(it.dom.extent, ir.const(0, it.dom.extent.dtype)) for it in reduced]
            if not any(empty.prove(n) for n in none):
                self.fail(
                    f"loop {loop.loop_var.name} may not run although no reduction iterator "
                    "has an empty domain; the initial value would be lost"
                )

    # ------------------------------------------------------------------ elements
    def check_same_elements(self) -> None:
        """Require that both blocks cover the same elements in each shared loop iteration."""
        at = self.common[-1].body if self.common else self.scope.body
        analyzer = facts_at(self.state.tree, at)
        for buffer in self.written:
            boxes: list[tuple[ir.Range, ...]] = []
            for block in (self.init, self.update):
                region = next(r for r in block.writes if r.buffer is buffer)
                if not self.flow.is_exact(self.common, block, region, analyzer):
                    self.fail(
                        f"block {block.name} may skip some of the elements of "
                        f"{buffer.name} between the first and the last one"
                    )
                box = self.flow.region_under(self.common, block, region, analyzer)
                boxes.append(clip_region(box.region, buffer.shape, analyzer))
            begun, updated = boxes
            if not covers(begun, updated, analyzer) or not covers(updated, begun, analyzer):
                self.fail(f"the two blocks cover different elements of {buffer.name}")

    # ------------------------------------------------------------------ blocks in between
    def check_quiet(self) -> None:
        """Require that no other block accesses the elements too early or changes init operands."""
        low, high = (self.flow.position[b] for b in (self.init, self.update))
        own = outermost_own(self.state, self.update, self.init)
        sources = {r.buffer for r in self.init.reads}
        require_alone(self.state, self.scope, self.init)
        for other in self.flow.blocks:
            if other in (self.init, self.update):
                continue
            here = self.state.tree.realize(other)
            between = low < self.flow.position[other] < high
            if not between and here is not own and not self.state.tree.is_below(here, own):
                continue
            touched = {r.buffer for r in (*other.reads, *other.writes)} & set(self.written)
            changed = {r.buffer for r in other.writes} & sources
            if touched or changed:
                name = next(iter(touched | changed)).name
                self.state.fail(
                    f"block {other.name} accesses {name} before the initial value would be set",
                    code="BW336",
                    guilty=[here, self.realize],
                    help=f"move block {other.name} out from between the two first "
                    "(compute_at, "
                    "reverse_compute_at), or leave the reduction "
                    "decomposed",
                )
