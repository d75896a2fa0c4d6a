"""Race detection between iterations that run concurrently, except atomic updates (BW240).

Checked are parallel, vectorized and thread-bound loops. Some of their iterations are selected, with
the surrounding loops at their first value, at their last value, and at a value where a write
happens that the other two did not reach. Definite accesses of these iterations are compared element
by element, and byte by byte where memory has several names. The common case, a reduction whose
iterator such a loop drives, gets its own message; threads of a block, and lanes, may combine its
terms (`cross_thread`). Buffers private to each iteration are exempt: those allocated inside, those
that only one parallel loop accesses, and those in a scope that the threads along the axis do not
share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis.dataflow.accesses import ConditionalAccess, definite_accesses
from blockwright.analysis.dataflow.contexts import BlockContext, LoopLevel, leaf_contexts
from blockwright.analysis.dataflow.counterexample import (
    DependsOnMore,
    Env,
    Instances,
    VarRange,
    sizes_to_try,
    value_of,
)
from blockwright.analysis.dataflow.elements import Element, MemoryNames, element_text
from blockwright.analysis.kernels import BLOCK_AXES, shares
from blockwright.analysis.reduction.cross_thread import (
    combine_lanes,
    combines,
    driven_by,
    lanes_meet,
    reduction_problems,
)
from blockwright.analysis.validate.violation import Violation

_FEW = 1 << 8  # instances evaluated inside one iteration of the loop
_AT_ONCE = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED)
_allocates: ir.Rare[ir.Allocate] = ir.Rare(ir.Allocate)


def runs_at_once(func: ir.PrimFunc) -> bool:
    """Whether a function has parallel or vectorized loops."""
    return any(loop.kind in _AT_ONCE for loop in ir.loops(func.body))


def concurrency_problems(
    func: ir.PrimFunc, found: Sequence[BlockContext], *, statements: bool = False
) -> Iterator[Violation]:
    """Violations in all parallel, vectorized and thread-bound loops of a function.

    Args:
        statements: the blocks are single stores that `with_statement_blocks` wrapped. Kinds of
            their iterators mean nothing, so only elements are compared.
    """
    below: dict[tuple[ir.Var, bool], tuple[LoopLevel, list[BlockContext]]] = {}
    leaves = leaf_contexts(found)
    for context in leaves:
        for level in context.path:
            bound = bool(level.tag)
            if bound or _kind(level) in _AT_ONCE:
                below.setdefault((level.var, bound), (level, []))[1].append(context)
    if not below:
        return
    allocated, names = _allocations(func), MemoryNames(func)
    for level, inside in below.values():
        loop = _Loop(func, level, inside, leaves, allocated, names)
        reductions = [] if statements else list(loop.reductions())
        yield from reductions
        if not reductions:
            yield from loop.races()


def lane_races(func: ir.PrimFunc) -> Iterator[Violation]:
    """Vector stores without a mask all of whose lanes store to one element."""
    for store in ir.collect(func.body, ir.BufferStore):
        lanes = max((i.dtype.lanes for i in store.indices), default=1)
        if lanes > 1 and store.predicate is None and all(map(_is_uniform, store.indices)):
            yield Violation(
                "BW240",
                f"the {lanes} lanes of a vector store all access one element of "
                f"{store.buffer.name}",
                (store,),
                "store a vector to as many elements, or combine its lanes with a "
                "T.vector_reduce operation and store the number",
            )


def _is_uniform(index: ir.Expr) -> bool:
    """Whether an index is the same number in every lane."""
    if isinstance(index, ir.Ramp):
        return ir.is_const_int(index.stride, 0)
    return isinstance(index, ir.Broadcast) or index.dtype.lanes == 1


def _kind(level: LoopLevel) -> ir.ForKind | None:
    return level.stmt.kind if isinstance(level.stmt, ir.For) else None


def _allocations(func: ir.PrimFunc) -> dict[ir.Buffer, ir.Block]:
    return {b: block for block in ir.blocks(func.body) for b in block.alloc_buffers}


class _Loop:
    """A loop whose iterations run concurrently, with the blocks in it."""

    def __init__(
        self,
        func: ir.PrimFunc,
        level: LoopLevel,
        inside: list[BlockContext],
        leaves: Sequence[BlockContext],
        allocated: dict[ir.Buffer, ir.Block],
        names: MemoryNames,
    ) -> None:
        self.func, self.level, self.inside = func, level, inside
        self.leaves, self.allocated, self.names = leaves, allocated, names
        self.vectorized = _kind(level) is ir.ForKind.VECTORIZED
        self._accesses: list[tuple[BlockContext, ConditionalAccess]] | None = None
        self._reached = set[int]()  # accesses in `_accesses` reached so far

    def reductions(self) -> Iterator[Violation]:
        """Violations of reduction iterators that the loop drives.

        There are none if the update is atomic or threads combine it.

        Lanes that do not combine are reported as races, unless data decides which elements they
        update.
        """
        if self.vectorized:
            for context in self.inside:
                yield from lanes_meet(context, self.level)
            return
        for context in self.inside:
            written = [context.underlying(r.buffer) for r in context.block.writes]
            own = context.block.init is not None and any(
                it in context.block.iter_vars for it in driven_by(context, self.level)
            )  # a single iteration runs init, in its own copy
            shared = [b for b in written if own or not self._private(b, context)]
            yield from reduction_problems(context, self.level, self.leaves, shared)

    def races(self) -> Iterator[Violation]:
        """An element that two iterations access, at least one of them writing."""
        for sizes in sizes_to_try(self.func)[:2]:
            try:
                count = int(value_of(self.level.extent, {**sizes, **_zeros(self.inside)}))
                low = int(value_of(self.level.low, {**sizes, **_zeros(self.inside)}))
            except DependsOnMore:
                return
            if count < 2:
                continue
            last = low + count - 1
            steps = dict.fromkeys((0, 1, 2, 3, 4, 8, count // 2, count - 1))
            some = [low + k for k in steps if k < count]
            problem = self._race_between(sizes, some) or self._race_between(
                sizes, [low, low + 1, last], last=True
            )
            if problem is None:
                elsewhere = self._elsewhere(sizes, low)  # lazy: checked one by one
                races = (self._race_between(place, [low, low + 1, last]) for place in elsewhere)
                problem = next((p for p in races if p is not None), None)
            if problem is not None:
                yield problem
                return

    def _race_between(
        self, known: Env, iterations: Sequence[int], last: bool = False
    ) -> Violation | None:
        """A race between two of the given iterations, or None."""
        before: dict[Element, dict[tuple[str, int], tuple[BlockContext, int]]] = {}
        for number in dict.fromkeys(iterations):
            here = self._touched({**known, self.level.var: number}, last)
            races = [
                (then, element, (partner, context))
                for element, mine in here.items()
                for (other, _), (partner, then) in before.get(element, {}).items()
                for how, context in mine.items()
                if self._conflict(how, context, other, partner)
            ]
            if races:
                then, element, users = min(races, key=lambda m: (m[0], m[1][1]))
                return self._problem(then, number, element, users)
            for element, mine in here.items():
                earlier = before.setdefault(element, {})
                for how, context in mine.items():
                    earlier.setdefault((how, id(context)), (context, number))
        return None

    def _conflict(self, how: str, context: BlockContext, other: str, partner: BlockContext) -> bool:
        """Whether accesses of one element by different iterations race.

        They race if one writes, or exactly one is atomic. Barriers separate different blocks that
        the threads of a block run.
        """
        waits = self.level.tag not in ("", *BLOCK_AXES)
        if waits and context is not partner:
            return False
        return "write" in (how, other) or (how != other and "atomic" in (how, other))

    def _problem(
        self,
        one: int,
        other: int,
        element: Element,
        users: tuple[BlockContext, BlockContext],
    ) -> Violation:
        return Violation(
            "BW240",
            f"iterations {one} and {other} of {self._name()} run "
            f"concurrently and both access {element_text(element)}, not only reading",
            (self.level.stmt, *dict.fromkeys(v.realize for v in users)),
            "let iterations access different elements, run the loop serially, give "
            "each its own buffer, or use atomic updates",
        )

    def _elsewhere(self, sizes: Env, low: int) -> Iterator[Env]:
        """Values of the surrounding loops that reach a write which no earlier sample reached."""
        for k, (context, access) in enumerate(self._accesses or ()):
            if access.how == "read" or k in self._reached:
                continue
            spans = [
                VarRange(x.var, x.low, x.extent)
                for x in context.path
                if x.var is not self.level.var
            ]
            rows = _rows(context, access, spans, {**sizes, self.level.var: low})
            if rows is not None and rows.rows:
                row = rows.at(0)
                yield {**sizes, **{x.var: row[x.var] for x in self._around(context)}}

    def _around(self, context: BlockContext) -> list[LoopLevel]:
        """The loops around this one, and other axes of its launch."""
        own = next(k for k, x in enumerate(context.path) if x.var is self.level.var)
        return [
            level
            for k, level in enumerate(context.path)
            if level.var is not self.level.var
            and (_same_launch(level, self.level) or not (k > own or (level.tag and self.level.tag)))
        ]

    def _name(self) -> str:
        kind = self.level.tag or ("vectorized" if self.vectorized else "parallel")
        return f"loop {self.level.var.name} ({kind})"

    def _private(self, buffer: ir.Buffer, context: BlockContext) -> bool:
        """Whether each iteration has its own copy of the buffer."""
        own = any(node.buffer is buffer for node in _allocates.of(self.level.stmt))
        if own and not buffer.scope.startswith("shared"):
            return True
        owner = self.allocated.get(buffer)
        if owner is None:
            return False
        stmts = [*context.around, context.block]
        mine = next(x.stmt for x in context.path if x.var is self.level.var)
        inside = owner in stmts and stmts.index(owner) > stmts.index(mine)
        if inside and not buffer.scope.startswith("shared"):
            return True  # shared memory is common to all threads wherever it is allocated
        if self.level.tag:
            return not shares(buffer.scope, self.level.tag)
        if inside or self.vectorized:
            return inside
        users = [
            v
            for v in self.leaves
            if any(r.buffer is buffer for r in (*v.block.reads, *v.block.writes))
        ]
        return all(any(x.stmt is self.level.stmt for x in v.path) for v in users)

    def _touched(self, known: Env, last: bool) -> dict[Element, dict[str, BlockContext]]:
        """Map from element to how it is accessed and by which block, for one iteration.

        `last`: whether the surrounding loops, and the other axes of the launch, are in their last
            iteration instead of their first.
        """
        result: dict[Element, dict[str, BlockContext]] = {}
        if self._accesses is None:
            self._accesses = self._relevant()
        ran: dict[Any, Instances | None] = {}  # most accesses of a block share this
        for k, (context, access) in enumerate(self._accesses):
            key = context.order, access.spans, access.guards
            if key not in ran:
                ran[key] = self._ran(context, access, known, last)
            rows = ran[key]
            for element in () if rows is None else self.names.elements(access, context, rows):
                self._reached.add(k)
                result.setdefault(element, {}).setdefault(access.how, context)
        return result

    def _relevant(self) -> list[tuple[BlockContext, ConditionalAccess]]:
        """Accesses of memory that the iterations share and that at least one of them modifies."""
        shared = [
            (context, access)
            for context in self.inside
            if not (
                combine_lanes(context, self.level)
                if self.vectorized
                else combines(context, self.level)
            )
            for access in definite_accesses(context)
            if not self._private(self.names.root(access.buffer), context)
        ]
        changed = {self.names.root(t.buffer) for _, t in shared if t.how != "read"}
        return [(v, t) for v, t in shared if self.names.root(t.buffer) in changed]

    def _ran(
        self, context: BlockContext, access: ConditionalAccess, known: Env, last: bool
    ) -> Instances | None:
        """Instances of an access in one iteration; None if unknown."""
        around = set(map(id, self._around(context)))
        spans: list[VarRange] = []
        for level in context.path:
            if level.var in known:
                continue
            if id(level) not in around:
                spans.append(VarRange(level.var, level.low, level.extent))
                continue
            start, one = level.low, ir.const(1, level.low.dtype)
            if last:
                start = ir.add(start, ir.sub(ir.maximum(level.extent, one), one))
            spans.append(VarRange(level.var, start, one))
        return _rows(context, access, spans, known)


def _rows(
    context: BlockContext, access: ConditionalAccess, spans: Sequence[VarRange], known: Env
) -> Instances | None:
    """Instances of an access within the given loops; None if unknown."""
    try:
        return context.instances(known, (*spans, *access.spans), access.guards, _FEW)
    except DependsOnMore:
        return None


def _same_launch(level: LoopLevel, loop: LoopLevel) -> bool:
    """Whether a level is another axis of the same launch.

    Its first and last member represent all others.
    """
    return bool(level.tag and loop.tag) and level.stmt is not loop.stmt


def _zeros(inside: Sequence[BlockContext]) -> Env:
    return {x.var: 0 for context in inside for x in context.path}
