"""Legality of hoisting initial stores out of a loop (`decompose_reduction`, `decompose_padding`).

The initial stores are the initial values of a reduction, or the constant of a padding. Hoisting
executes those of later iterations before all blocks of earlier iterations. This is legal if no
block in an earlier iteration reads the elements that a later initial store writes, or writes
elements that it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import NoReturn

from blockwright import ir
from blockwright.analysis.canonical.control_reads import loaded_buffers
from blockwright.analysis.canonical.memory import stating
from blockwright.analysis.dataflow.overlap import apart
from blockwright.arith import Analyzer
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.buffer_uses import require_in_blocks
from blockwright.schedule.legality.guards import memory

_ANY_ORDER = (ir.ForKind.PARALLEL, ir.ForKind.THREAD_BINDING)
"""Kinds of loops whose iterations may run in any order."""


def require_initial_first(
    state: StepState, block: ir.Block, loop: ir.For, reducing: Collection[ir.For]
) -> None:
    """Require that the initial values of a reduction may be stored before a loop.

    Args:
        state: the program.
        block: the reduction.
        loop: a loop above it.
        reducing: the loops above the block that drive its reduction iterators.
    """
    needed = _initial_value(state, block).reads
    name = block.name
    require_in_blocks(
        state, loop, *(r.buffer for r in block.writes), unchanged=[r.buffer for r in needed]
    )
    order = _Order(state, block, loop, reducing)
    order.require_same_nest()
    order.require_unread(f"where initial values of block {name} would show")
    for read in needed:
        order.require_unchanged(read)


def require_constant_first(state: StepState, block: ir.Block, loop: ir.For) -> None:
    """Require that a constant may be stored to the whole output of a block before a loop above it.

    Args:
        state: the program.
        block: the block that writes the output.
        loop: a loop above it.
    """
    require_in_blocks(state, loop, *(r.buffer for r in block.writes))
    order = _Order(state, block, loop, ())
    order.require_same_nest()
    order.require_unread("where the constant would show")


class _Order:
    """Checks the block instances that run before an initial store and would run after it."""

    def __init__(
        self, state: StepState, block: ir.Block, loop: ir.For, reducing: Collection[ir.For]
    ) -> None:
        self.state, self.block, self.loop, self.reducing = state, block, loop, reducing
        self.flow = state.flow_at(block)
        self.outer = state.tree.loops_above(loop)

    def require_same_nest(self) -> None:
        """Require that bounds, bindings and predicate of the block are invariant in the loop."""
        realize = self.state.tree.realize(self.block)
        above = self.state.tree.loops_above(self.block)
        inside = above[len(self.outer) + 1 :]
        within = [*realize.iter_values, realize.predicate, *(e for f in inside for e in _ends(f))]
        used = memory(self.state, loaded_buffers(within))
        writers = [(b, used) for b in self._others()]
        writers.append((self.block, used | memory(self.state, loaded_buffers(_ends(self.loop)))))
        for writer, asked in writers:
            for written in writer.writes:
                if written.buffer in asked:
                    self._fail(
                        f"block {writer.name} writes {written.buffer.name} in loop "
                        f"{self.loop.loop_var.name}, and the loops or predicate of block "
                        f"{self.block.name} depend on it",
                        writer,
                        f"or let them read a copy of {written.buffer.name}",
                    )

    def require_unread(self, effect: str) -> None:
        """Require that no block in the loop reads an element before its initial store."""
        name = self.block.name
        for other in self._others():
            for read, result in itertools.product(other.reads, self.block.writes):
                if read.buffer is not result.buffer or self._kept_read(other, read, result):
                    continue
                self._fail(
                    f"block {other.name} reads {read.buffer.name} in iterations of loop "
                    f"{self.loop.loop_var.name} before those in which block {name} first "
                    f"stores these elements, {effect}",
                    other,
                    f"or move block {other.name} out of it first",
                )

    def require_unchanged(self, read: ir.BufferRegion) -> None:
        """Require that no block in the loop writes an element before an initial store reads it."""
        buffer, name = read.buffer, self.block.name
        for other in self._others():
            for written in other.writes:
                if written.buffer is not buffer or self._kept_write(other, written, read):
                    continue
                self._fail(
                    f"block {other.name} writes {buffer.name} in loop "
                    f"{self.loop.loop_var.name} before later iterations read it for the "
                    f"initial value of block {name}",
                    other,
                    f"or apply the step before the writer of {buffer.name} is moved into it",
                )

    def _others(self) -> list[ir.Block]:
        tree = self.state.tree
        return [
            b
            for b in self.flow.blocks
            if b is not self.block and tree.is_below(tree.realize(b), self.loop)
        ]

    def _fail(self, rule: str, other: ir.Block, instead: str) -> NoReturn:
        guilty = [self.state.tree.realize(b) for b in dict.fromkeys((other, self.block))]
        self.state.fail(
            rule,
            code="BW323",
            guilty=guilty,
            help="choose a loop that the two blocks do not share, such as one further "
            f"inside, {instead}",
        )

    def _kept_read(self, other: ir.Block, read: ir.BufferRegion, result: ir.BufferRegion) -> bool:
        """Whether a block reads no element before its initial store."""
        behind = self.flow.position[other] > self.flow.position[self.block]
        if behind and self.flow.covers([self.block], other, read):
            return True  # the elements have been stored in the same iteration
        return self._kept(other, read, result)

    def _kept_write(self, other: ir.Block, written: ir.BufferRegion, read: ir.BufferRegion) -> bool:
        """Whether a block writes no element that a later initial store reads."""
        behind = self.flow.position[other] > self.flow.position[self.block]
        if (
            behind  # it writes only elements that have been read in the same iteration
            and self.flow.covers([other], self.block, read)
            and self.flow.apart_in(other, written, self._shared(other))
        ):
            return True
        return self._kept(other, written, read)

    def _shared(self, other: ir.Block) -> list[ir.For]:
        """The loops around both blocks, starting with the loop that the initial stores leave."""
        return self.state.tree.common_loops(self.block, other)[len(self.outer) :]

    def _kept(self, other: ir.Block, touched: ir.BufferRegion, own: ir.BufferRegion) -> bool:
        """Whether the block's accesses are disjoint from all later initial stores."""
        shared = self._shared(other)
        if self.flow.position[other] < self.flow.position[self.block]:
            known = self.state.analyzer(shared[-1].body)
            fixed = [*self.outer, *shared]
            if not apart(
                self._box(fixed, other, touched, known),
                self._box(fixed, self.block, own, known),
                known,
            ):
                return False
        return all(self._apart_at(shared[: k + 1], other, touched, own) for k in range(len(shared)))

    def _apart_at(
        self,
        shared: list[ir.For],
        other: ir.Block,
        touched: ir.BufferRegion,
        own: ir.BufferRegion,
    ) -> bool:
        """Whether the accesses are disjoint from initial stores in later iterations of the
        innermost of `shared`, and in the same iteration of the others."""
        loop, fixed = shared[-1], [*self.outer, *shared]
        analyzer = self.state.analyzer(loop.body)
        mine = self._box(fixed, other, touched, analyzer)
        theirs = self._box(fixed, self.block, own, analyzer)
        for var, known in _other_iterations(loop, analyzer):
            moved = {loop.loop_var: var}
            if self._begun(loop, moved, known):
                continue
            if not apart(mine, ir.substitute(theirs, moved), known):
                return False
        return True

    def _begun(self, loop: ir.For, moved: dict[ir.Var, ir.Var], analyzer: Analyzer) -> bool:
        """Whether these iterations of a loop are provably not the first of the reduction, so that
        they store no initial value."""
        if loop not in self.reducing:
            return False
        known = analyzer.copy()
        above = self.state.tree.loops_above(self.block)
        for inner in above[above.index(loop) + 1 :]:
            known.bind(inner.loop_var, ir.substitute(inner.dom, moved))
        pairs = zip(self.block.iter_vars, self.state.realize(self.block).iter_values, strict=True)
        return any(
            known.prove(ir.GT(*ir.match_types(ir.substitute(value, moved), it.dom.min)))
            for it, value in pairs
            if it.iter_type is ir.IterType.REDUCE
        )

    def _box(
        self, fixed: list[ir.For], block: ir.Block, region: ir.BufferRegion, analyzer: Analyzer
    ) -> ir.BufferRegion:
        """The bounding box of a block's accesses in one iteration of the fixed loops.

        The initial value of a reduction is stored even if there are no terms, so conditions on the
        terms must not narrow the box.
        """
        return self.flow.region_under(fixed, block, region, analyzer, tight=block.init is None)


def _ends(loop: ir.For) -> tuple[ir.Expr, ir.Expr]:
    return loop.min, loop.extent


def _other_iterations(loop: ir.For, analyzer: Analyzer) -> Iterator[tuple[ir.Var, Analyzer]]:
    """Yield a variable for another iteration that may run after the current one, with its facts."""
    var = loop.loop_var
    end = ir.add(*ir.match_types(loop.min, loop.extent))
    other = ir.Var(f"{var.name}_later", var.type)
    begin = ir.add(var, 1)
    later = analyzer.copy()
    later.bind(other, ir.Range(begin, ir.cast_to(end, var.type) - begin))
    yield other, later
    if loop.kind in _ANY_ORDER:
        later = analyzer.copy()
        later.bind(other, ir.Range(loop.min, var - loop.min))
        yield other, later


def _initial_value(state: StepState, block: ir.Block) -> ir.Block:
    """A block that stores only the initial value, with its signature."""
    assert block.init is not None
    first = {it.var: it.dom.min for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    result = ir.Block(block.name, block.iter_vars, (), (), ir.substitute(block.init, first))
    return stating(with_signature(result, state.signature_facts(block)), state.roots)
