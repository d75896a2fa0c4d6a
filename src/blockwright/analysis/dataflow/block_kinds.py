"""Kinds of the blocks inside a scope block, derived from signatures.

Definitions (TensorIR paper, section 3, and the schedule rules built on it):

- a *complete* block has only spatial iterators, does not read what it writes, and is the only
  writer of its buffers in the scope (or one of several that write provably different regions);
- a *reduction* block initializes everything that it updates (one element or several, as an argmax
  does), has spatial and reduction iterators bound by an iterator map, and output indices free of
  reduction iterators; outer loops that drive no reduction iterator may recompute elements, starting
  again from the initial value;
- an *update* is a reduction initialized by an earlier block.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property

from blockwright import ir
from blockwright.analysis.access.regions import reads_elsewhere
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.canonical.control_reads import Loaded, loaded_around
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.dataflow.executions import Executions
from blockwright.analysis.dataflow.independence import shared_writes
from blockwright.analysis.dataflow.memo import FlowMemo, around
from blockwright.analysis.dataflow.overlap import apart
from blockwright.analysis.reduction.first_steps import takes_first_step
from blockwright.arith import IterMapResult, detect_iter_map, is_bijective
from blockwright.arith.condition import conjuncts


class BlockKind(Enum):
    """Role of a block in its scope."""

    COMPLETE = "complete"
    REDUCTION = "reduction"
    UPDATE = "update"
    OTHER = "other"


class BlockKinds(Executions):
    """Kinds of the blocks directly inside `block`; arguments are those of `Dependences`."""

    def __init__(
        self, tree: Tree, block: ir.Block, memo: FlowMemo | None = None, *, initial: bool = False
    ) -> None:
        super().__init__(tree, block, memo, initial=initial)
        self._kinds: dict[ir.Block, tuple[BlockKind, str]] = {}

    @cached_property
    def _loaded(self) -> Loaded:
        return loaded_around(self.tree.func)

    def kind(self, block: ir.Block) -> BlockKind:
        return self._classify(block)[0]

    def kind_alone(self, block: ir.Block) -> BlockKind:
        """Kind of the block if it were the only writer of its buffers."""
        return self._find_kind_alone(block)[0]

    def why_other(self, block: ir.Block) -> str:
        """Why a block is neither complete nor a reduction."""
        return self._classify(block)[1]

    def _classify(self, block: ir.Block) -> tuple[BlockKind, str]:
        result = self._kinds.get(block)
        if result is None:
            result = self._kinds[block] = self._find_kind(block)
        return result

    def _find_kind(self, block: ir.Block) -> tuple[BlockKind, str]:
        other = self._second_writer(block)
        return (BlockKind.OTHER, other) if other else self._find_kind_alone(block)

    def _find_kind_alone(self, block: ir.Block) -> tuple[BlockKind, str]:
        types = {it.iter_type for it in block.iter_vars}
        if names := self._named(block):
            realize = self.tree.realize(block)
            for bound in (*realize.iter_values, realize.predicate):
                if ir.uses_var(bound, names.keys()):
                    return BlockKind.OTHER, "let-bound values determine which of its instances run"
        if decides := self.decides_itself(block):
            return BlockKind.OTHER, decides
        if types - {ir.IterType.SPATIAL, ir.IterType.REDUCE}:
            return BlockKind.OTHER, "it has iterators that are neither spatial nor reductions"
        other = self._shared_writes(block)
        if other:
            return BlockKind.OTHER, other
        if self.continued(block):
            return BlockKind.OTHER, "it accumulates onto results of earlier executions of its scope"
        if ir.IterType.REDUCE not in types and block.init is None:
            written = {r.buffer for r in block.writes}
            for region in block.reads:
                if region.buffer in written:
                    return BlockKind.OTHER, f"it reads and writes {region.buffer.name}"
            return BlockKind.COMPLETE, ""
        return self._reduction(block)

    def _reduction(self, block: ir.Block) -> tuple[BlockKind, str]:
        reduce_vars = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
        for region in block.writes:
            if reduce_vars and any(ir.uses_var(r, reduce_vars) for r in region.region):
                return BlockKind.OTHER, "its output index depends on a reduction iterator"
        problems = self.not_affine(block)
        if problems and self.restart(block) is None:
            return BlockKind.OTHER, "its iterator bindings are not an iterator map: " + problems[0]
        late = self._starts_late(block)
        if late:
            return BlockKind.OTHER, f"its loops do not start at the minimum of iterator {late}"
        written = {r.buffer for r in block.writes}
        if block.init is not None:
            missing = [r.buffer.name for r in block.reads if r.buffer in written]
            if missing:
                return BlockKind.OTHER, f"it reads {missing[0]}, which it does not initialize"
            if not self.begins(block):
                return BlockKind.OTHER, "its loops may skip the first reduction step"
            used = set(ir.collect(block.init, ir.Buffer))
            for view in block.match_buffers:  # splitting off init would lose the view
                if view.buffer in used:
                    name = view.buffer.name
                    return BlockKind.OTHER, f"its init statement stores through the view {name}"
            return BlockKind.REDUCTION, ""
        if all(any(r.buffer is b for r in block.reads) for b in written):
            elsewhere = self._reads_elsewhere(block)
            return (BlockKind.OTHER, elsewhere) if elsewhere else (BlockKind.UPDATE, "")
        return BlockKind.OTHER, "it has reduction iterators, but no init statement or update"

    def decides_itself(self, block: ir.Block) -> str:
        """Why a block writes data that decide for which points it runs; "" if it does not."""
        roots = memory_roots(self.tree.func) if self._loaded else {}
        written = {roots.get(r.buffer, r.buffer) for r in block.writes}
        loaded = [r.buffer for r in self._loaded.get(block, ())]
        read = [b.name for b in loaded if roots.get(b, b) in written]
        what = "which also determines whether and where it runs"
        return f"it writes {read[0]}, {what}" if read else ""

    def _starts_late(self, block: ir.Block) -> str:
        """A reduction iterator whose loops do not start at its minimum; "" if there is none."""
        realize = self.tree.realize(block)
        loops = self.tree.loops_above(block)
        analyzer = self.memo.facts(self.tree, realize)
        first: dict[ir.Var, ir.Expr] = {f.loop_var: f.min for f in loops}
        for it, value in realize.bindings:
            if it.iter_type is not ir.IterType.REDUCE or value in first:
                continue
            start = ir.substitute(value, first)
            if not analyzer.prove(ir.GE(*ir.match_types(value, start))):
                return it.var.name
        return ""

    def begins(self, block: ir.Block) -> bool:
        """Whether the init statement of a block runs for every element that the block visits."""
        realize, loops = self.tree.realize(block), self.tree.loops_above(block)
        return self.memo.answer(
            "begins",
            self._place(block),
            lambda: takes_first_step(realize, loops, lambda at: self.memo.facts(self.tree, at)),
        )

    def _reads_elsewhere(self, block: ir.Block) -> str:
        """Why an instance may read elements that other instances update; "" if it cannot."""

        def find() -> str:
            analyzer = self.memo.facts(self.tree, self.block.body)
            for read in reads_elsewhere(block, analyzer):
                own = self._region(block.writes, read.buffer)
                a, b = (self.region_under((), block, each, analyzer) for each in (read, own))
                if not apart(a, b, analyzer):
                    return f"it reads elements of {read.buffer.name} other than those it updates"
            return ""

        facts = around(self.tree, self.block.body)
        return self.memo.answer("elsewhere", [*self._place(block), *facts], find)

    def _shared_writes(self, block: ir.Block) -> str:
        """Why spatially different instances may write one element; "" if they cannot."""

        def find() -> str:
            return shared_writes(block, self.memo.facts(self.tree))

        return self.memo.answer("shared", [block], find)

    def _second_writer(self, block: ir.Block) -> str:
        """Why another writer of the same buffer conflicts with the block; "" if none does."""
        here = self.position[block]
        for region in block.writes:
            if self._all_apart(region.buffer):
                continue
            for other in self.writers[region.buffer]:
                if other is block:
                    continue
                first, last = (other, block) if self.position[other] < here else (block, other)
                reads_back = any(r.buffer is region.buffer for r in last.reads)
                if reads_back and last.init is None:
                    continue  # `first` initializes the update `last`
                if not self.disjoint(first, last, region.buffer):
                    return f"block {other.name} also writes {region.buffer.name}"
        return ""

    def not_affine(self, block: ir.Block) -> tuple[str, ...]:
        """Why the iterators of a block are not bound by an iterator map; empty if they are."""
        return self._bindings(block).errors

    def separates(self, loop: ir.For, block: ir.Block) -> bool:
        """Whether different iterations of a loop above the block run different instances of it."""
        return loop.loop_var in self._bindings(block).told_apart

    def _bindings(self, block: ir.Block) -> IterMapResult:
        return self.memo.answer("affine", self._place(block), lambda: self._affinity(block))

    def _affinity(self, block: ir.Block) -> IterMapResult:
        realize = self.tree.realize(block)
        loops = self.tree.loops_above(block)
        analyzer = self.memo.facts(self.tree, loops[0] if loops else realize)
        domains = {f.loop_var: f.dom for f in loops}
        predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
        return detect_iter_map(realize.iter_values, domains, predicate, analyzer, "surjective")

    def restart(self, block: ir.Block) -> int | None:
        """Number of outer loops that recompute the block; None if there is no such number.

        Inside these loops each instance runs exactly once, and a reduction starts from its initial
        value.
        """
        return self.memo.answer("restart", self._place(block), lambda: self._restart(block))

    def _restart(self, block: ir.Block) -> int | None:
        realize = self.tree.realize(block)
        loops = self.tree.loops_above(block)
        predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
        reducing = [v for it, v in realize.bindings if it.iter_type is ir.IterType.REDUCE]
        terms = {v for e in reducing for v in ir.free_vars(e)}
        reducing += [c for c in conjuncts(realize.predicate) if ir.uses_var(c, terms)]
        for count in range(len(loops) + 1):
            inner = loops[count:]
            domains = {f.loop_var: f.dom for f in inner}
            analyzer = self.memo.facts(self.tree, inner[0] if inner else realize)
            if is_bijective(realize.iter_values, domains, predicate, analyzer):
                return count
            if not inner or any(ir.uses_var(e, inner[0].loop_var) for e in reducing):
                return None
        return None
