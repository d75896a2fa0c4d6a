"""Legality of software pipelines: dependence distances, and the buffer versions they require.

Statement `k` of a pipelined loop runs its instance of iteration `i` at time `(i + stage[k],
order[k])`, in lexicographic order. Let instance `a(i)` precede `b(i + d)` in the program. The
pipeline reverses their order if

    d < stage[a] - stage[b],  or  d = stage[a] - stage[b] and order[b] < order[a].

There are few such distances. At each, the two instances must not access a common element, unless
both only read it. A buffer that every iteration rewrites completely may have several *versions*, of
which iteration `i` uses number `i mod versions`. With more versions than the largest such distance,
no two conflicting instances are reordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from blockwright import ir
from blockwright.analysis.dataflow.overlap import apart
from blockwright.ir.annotations import DOUBLE_BUFFER, PIPELINE_ORDER, PIPELINE_STAGE
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.checks import require_only_blocks, require_plain_loop
from blockwright.schedule.legality.guards import require_lasting
from blockwright.schedule.rewrite.move import body_parts

_FREE = frozenset({"prefetch", "atomic_add", "call_extern"})
"""Calls whose effects a block's signature declares."""


class PipelinePlan(msgspec.Struct, frozen=True, eq=False):
    """A legal pipeline.

    Attributes:
        loop: the pipelined loop.
        parts: the statements of its body.
        stages: the stage of each statement; the smallest is 0.
        order: statement indices in the order in which they run at one time.
        versions: buffers that cross stages, with the number of versions each needs.
        private: all buffers that every iteration rewrites completely; includes those of `versions`.
    """

    loop: ir.For
    parts: list[ir.Stmt]
    stages: tuple[int, ...]
    order: tuple[int, ...]
    versions: dict[ir.Buffer, int]
    private: list[ir.Buffer]

    @property
    def depth(self) -> int:
        """The number of iterations started before the first one ends, minus one."""
        return max(self.stages)


def plan(
    state: StepState, loop: ir.For, stages: Sequence[int], orders: Sequence[int] | None
) -> PipelinePlan:
    """Check a software pipeline of a loop; see `SoftwarePipeline` for the requirements."""
    other = loop.annotations.keys() - {PIPELINE_STAGE, PIPELINE_ORDER}
    if loop.kind is not ir.ForKind.SERIAL or other or loop in state.tree.left_early:
        require_plain_loop(state, loop)
    parts = body_parts(loop)
    order = _order(state, loop, parts, stages, orders)
    require_only_blocks(state, loop)
    require_lasting(state, [loop], [loop])
    result = _Planner(state, loop, parts, tuple(s - min(stages) for s in stages), order)
    result.run()
    return PipelinePlan(loop, parts, result.stages, order, result.versions(), result.private)


def _order(
    state: StepState,
    loop: ir.For,
    parts: list[ir.Stmt],
    stages: Sequence[int],
    orders: Sequence[int] | None,
) -> tuple[int, ...]:
    """Statement indices in the order in which they run at one time."""
    given = range(len(parts)) if orders is None else orders
    for word, values in (("stages", stages), ("orders", given)):
        if len(values) != len(parts):
            state.fail(
                f"loop {loop.loop_var.name} has {len(parts)} statements, {word} has "
                f"{len(values)} entries",
                code="BW304",
                guilty=[loop],
                help="pass one number for each statement of the body",
            )
        if any(v < 0 for v in values):
            state.fail(
                f"{word} has a negative entry", code="BW304", guilty=[loop], help="count from 0"
            )
    if len(set(given)) != len(given):
        state.fail(
            "two statements have the same position in orders",
            code="BW304",
            guilty=[loop],
            help="number the statements in execution order",
        )
    return tuple(sorted(range(len(parts)), key=lambda k: given[k]))


class _Access(msgspec.Struct, frozen=True, eq=False):
    """The bounding box of a block's accesses in one iteration of the loop."""

    block: ir.Block
    box: ir.BufferRegion
    writes: bool


class _Planner:
    """Finds the distances at which instances are reordered, and conflicting accesses at them."""

    def __init__(
        self,
        state: StepState,
        loop: ir.For,
        parts: list[ir.Stmt],
        stages: tuple[int, ...],
        order: tuple[int, ...],
    ) -> None:
        self.state, self.loop, self.parts, self.stages = state, loop, parts, stages
        self.place = {k: at for at, k in enumerate(order)}
        self.scope = state.scope(loop)
        self.flow = state.data_flow(self.scope)
        self.analyzer = state.analyzer(loop.body)
        self.fixed = [*state.tree.loops_above(loop), loop]
        self.touched = [self._accesses(part) for part in parts]
        self.effects = [_effects(part) for part in parts]
        self.shared = {b: self._why_shared(b) for b in self._written()}
        self.private = [b for b, why in self.shared.items() if not why]
        self.needed: dict[ir.Buffer, int] = {}

    # ------------------------------------------------------------------ accesses
    def _accesses(self, part: ir.Stmt) -> dict[ir.Buffer, list[_Access]]:
        result: dict[ir.Buffer, list[_Access]] = {}
        for block in self.state.tree.child_blocks(part):
            for regions, writes in ((block.reads, False), (block.writes, True)):
                for region in regions:
                    box = self.flow.region_under(self.fixed, block, region, self.analyzer)
                    result.setdefault(region.buffer, []).append(_Access(block, box, writes))
        return result

    def _written(self) -> list[ir.Buffer]:
        """Buffers that the loop writes, in order of the first write; only blocks may use them."""
        result: dict[ir.Buffer, None] = {}
        for touched in self.touched:
            for buffer, accesses in touched.items():
                if any(a.writes for a in accesses):
                    result[buffer] = None
        for load in _outside_loads(self.loop):
            if load.buffer in result:
                self.state.fail(
                    f"{load.buffer.name} is read outside blocks, where no signature declares it",
                    code="BW313",
                    guilty=[self.loop, load],
                    help="move the read into a block",
                )
        return list(result)

    def _why_shared(self, buffer: ir.Buffer) -> str:
        """Why iterations share a buffer; empty if every iteration rewrites it completely."""
        if all(b is not buffer for b in self.scope.alloc_buffers):
            return f"{buffer.name} is not allocated in the block around the loop"
        users = [*self.flow.writers.get(buffer, ()), *self.flow.readers.get(buffer, ())]
        for user in users:
            if not self.state.tree.is_below(self.state.tree.realize(user), self.loop):
                return f"block {user.name} outside the loop also uses {buffer.name}"
        for reader in self.flow.readers.get(buffer, ()):
            for region in reader.reads:
                if region.buffer is buffer:
                    before = self.flow.writers_before(reader, region)
                    if not before or not self.flow.covers(before, reader, region):
                        return (
                            f"block {reader.name} reads elements of {buffer.name} that the "
                            "same iteration has not written"
                        )
        return ""

    # ------------------------------------------------------------------ reordered instances
    def run(self) -> None:
        for a, b in self._pairs():
            for distance in self._exchanged(a, b):
                self._keep_effects(a, b)
                for buffer in self.touched[a].keys() & self.touched[b].keys():
                    self._check(a, b, distance, buffer)

    def _pairs(self) -> Iterable[tuple[int, int]]:
        every = range(len(self.parts))
        return ((a, b) for a in every for b in every if a != b)

    def _exchanged(self, a: int, b: int) -> range:
        """Distances at which an instance of `a` would no longer precede one of `b`."""
        end = self.stages[a] - self.stages[b] - (self.place[a] < self.place[b]) + 1
        largest = self.analyzer.const_bounds(self.loop.extent)[1]
        return range(0 if a < b else 1, end if largest is None else min(end, largest))

    def _check(self, a: int, b: int, distance: int, buffer: ir.Buffer) -> None:
        private = not self.shared.get(buffer, "read only")
        if private and distance:
            reads_only = not any(x.writes for k in (a, b) for x in self.touched[k][buffer])
            if not reads_only:
                self.needed[buffer] = max(self.needed.get(buffer, 1), distance + 1)
            return
        for x in self.touched[a][buffer]:
            for y in self.touched[b][buffer]:
                if (x.writes or y.writes) and not self._apart(x, y, distance):
                    self._fail((a, b), distance, buffer, (x.block, y.block))

    def _apart(self, x: _Access, y: _Access, distance: int) -> bool:
        """Whether two accesses `distance` iterations apart are disjoint."""
        if not distance:
            return apart(x.box, y.box, self.analyzer)
        var = self.loop.loop_var
        later = ir.add(var, distance)
        known = self.analyzer.copy()
        end = ir.add(*ir.match_types(self.loop.min, self.loop.extent))
        known.learn(ir.LT(*ir.match_types(later, end)))
        return apart(x.box, ir.substitute(y.box, {var: later}), known)

    def _keep_effects(self, a: int, b: int) -> None:
        """Require that two reordered statements have no side effects whose order is observable."""
        both = self.effects[a] and self.effects[b]
        if both or _STOPS in self.effects[a] | self.effects[b]:
            self.state.fail(
                f"statements {a} and {b} of the loop have effects or stop the program, "
                "so that their instances must keep their order",
                code="BW370",
                guilty=[self.parts[a], self.parts[b]],
                help="put both into one stage, in program order",
            )

    def _fail(
        self,
        pair: tuple[int, int],
        distance: int,
        buffer: ir.Buffer,
        blocks: tuple[ir.Block, ir.Block],
    ) -> NoReturn:
        first, second = (b.name for b in blocks)
        a, b = pair
        guilty = [*map(self.state.tree.realize, blocks)]
        if not distance:
            self.state.fail(
                f"block {second} uses {buffer.name} after block {first} in the same "
                f"iteration, but statement {b} (stage {self.stages[b]}) would run "
                f"before statement {a} (stage {self.stages[a]})",
                code="BW370",
                guilty=guilty,
                help="assign the later statement a later stage, or the "
                "same stage and a later position in orders",
            )
        self.state.fail(
            f"block {second} uses {buffer.name} {distance} iteration(s) after block "
            f"{first}, but statement {b} (stage {self.stages[b]}) would run before "
            f"statement {a} (stage {self.stages[a]}); versions do not help, as "
            f"{self.shared[buffer]}",
            code="BW371",
            guilty=guilty,
            help="put both statements into one stage, in program order",
        )

    # ------------------------------------------------------------------ versions
    def versions(self) -> dict[ir.Buffer, int]:
        """The version counts of private buffers that cross stages or must be double buffered."""
        doubled = self._doubled()
        result: dict[ir.Buffer, int] = {}
        for buffer in self.private:
            stages = {s for s, t in zip(self.stages, self.touched, strict=True) if buffer in t}
            if len(stages) > 1 or buffer in doubled:
                smallest = 2 if buffer in doubled else 1
                result[buffer] = max(self.needed.get(buffer, 1), smallest)
        return result

    def _doubled(self) -> set[ir.Buffer]:
        """Buffers for which an annotation requests at least two versions."""
        result: set[ir.Buffer] = set()
        for block in self.state.tree.child_blocks(self.loop):
            if DOUBLE_BUFFER not in block.annotations:
                continue
            buffer = doubled_buffer(self.state, block)
            why = self.shared[buffer]
            if why:
                self.state.fail(
                    f"{buffer.name} cannot be double buffered: {why}",
                    code="BW371",
                    guilty=[self.state.tree.realize(block)],
                    help="choose a buffer that is allocated in the program "
                    "and that each iteration writes before it reads",
                )
            result.add(buffer)
        return result


def doubled_buffer(state: StepState, block: ir.Block) -> ir.Buffer:
    """The buffer that a block's annotation selects for double buffering."""
    index: Any = block.annotations[DOUBLE_BUFFER]
    number = index.value if isinstance(index, ir.IntImm) else index
    if not isinstance(number, int) or not 0 <= number < len(block.writes):
        state.fail(
            f"{DOUBLE_BUFFER!r} of block {block.name} is {index!r}, not the position of one "
            f"of its {len(block.writes)} write regions",
            code="BW304",
            guilty=[state.tree.realize(block)],
            help="double_buffer sets it; pass the position of a write region, from 0",
        )
    return block.writes[number].buffer


_STOPS = "stop"


def _effects(part: ir.Stmt) -> set[str]:
    """Side effects of a statement beyond its signature: ordered calls, and early exit."""
    result: set[str] = set()
    for node in ir.walk(part):
        if isinstance(node, ir.AssertStmt):
            result.add(_STOPS)
        elif isinstance(node, ir.Call) and ir.op_has_effect(node.op):
            if node.op in ("ret", "break", "continue"):
                result.add(_STOPS)
            elif node.op not in _FREE:
                result.add(node.op)
    return result


def _outside_loads(loop: ir.For) -> list[ir.BufferLoad]:
    """Loads below a loop that are in no block: in bounds, conditions and bindings."""
    result: list[ir.BufferLoad] = []
    stack: list[ir.Node] = [loop.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.BufferLoad):
            result.append(node)
        if not isinstance(node, ir.Block):
            stack.extend(node.children())
    return result
