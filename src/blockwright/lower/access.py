"""Accesses of one buffer inside a statement, with their enclosing loops and conditions.

Placement and compaction of allocations use these to find the box that one iteration touches, and
whether an iteration reads elements that it did not write itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from blockwright.analysis.access.tree import jumps
from blockwright.analysis.lane_offsets import LaneOffsets, lane_offsets
from blockwright.arith import Analyzer, bound_region
from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    Buffer,
    BufferLoad,
    BufferRegion,
    BufferStore,
    Call,
    DeclBuffer,
    Expr,
    For,
    Node,
    Range,
    Stmt,
    Var,
    add,
    all_of,
    atomic_place,
    const,
    const_int,
    free_vars,
    full_region,
    is_atomic,
    is_const_int,
    logical_not,
    structural_equal,
    substitute,
    walk,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.blocks import MATCH_BUFFER, TOUCHED_REGION
from blockwright.lower.rewrite import reads_memory, stable

Loop = tuple[Var, Range]


@dataclasses.dataclass(frozen=True)
class BufferAccess:
    """One access of the buffer.

    Attributes:
        region: the touched region, in terms of the loops.
        reads, writes: the kind of access.
        loops: loops between the root statement and the access, outermost first.
        guards: conditions under which the access runs.
        opaque: the buffer must not change, because a tensor or an address escapes.
        fixed: the sizes of so many last dimensions must not change, because code relies on strides.
        sure: a write happens wherever the guards hold: it has no mask, and no `while` is around it.
        left: the loops around the access that may be left early.
    """

    region: tuple[Range, ...]
    reads: bool
    writes: bool
    loops: tuple[Loop, ...]
    guards: tuple[Expr, ...]
    opaque: bool = False
    fixed: int = 0
    sure: bool = True
    left: frozenset[Var] = frozenset()


def find_accesses(root: Stmt, buffer: Buffer) -> list[BufferAccess]:
    """All accesses of `buffer` in program order; operands of a store precede the store."""
    finder = _Finder(buffer)
    finder.visit(root)
    return finder.found


def touched_box(
    accesses: Sequence[BufferAccess], buffer: Buffer, analyzer: Analyzer
) -> tuple[Range, ...]:
    """The smallest known box that contains all accesses."""
    boxes: list[tuple[Range, ...]] = []
    rank = len(buffer.shape)
    for same in _alike(accesses):
        first = same[0]
        ranges = [rng for access in same for rng in access.region]
        result = bound_region(
            ranges,
            dict(first.loops),
            analyzer,
            stable(all_of(first.guards)),
            buffer.shape * len(same),
        )
        boxes += [result[k * rank : (k + 1) * rank] for k in range(len(same))]
    return tuple(_cover(ranges, analyzer) for ranges in zip(*boxes, strict=True))


def _alike(accesses: Sequence[BufferAccess]) -> Iterable[list[BufferAccess]]:
    """Group accesses by their loops and guards; each group holds distinct regions only."""
    groups: dict[tuple[object, ...], dict[tuple[object, ...], BufferAccess]] = {}
    for access in accesses:
        around = tuple((var, rng.min, rng.extent) for var, rng in access.loops)
        region = tuple((rng.min, rng.extent) for rng in access.region)
        groups.setdefault((around, access.guards), {}).setdefault(region, access)
    return (list(group.values()) for group in groups.values())


def _cover(ranges: Sequence[Range], analyzer: Analyzer) -> Range:
    distinct: list[Range] = []  # a host program mentions its arena hundreds of times
    for rng in ranges:
        if not any(structural_equal(rng, other) for other in distinct):
            distinct.append(rng)
    low, high = distinct[0].min, add(distinct[0].min, distinct[0].extent)
    for rng in distinct[1:]:
        low = E.Min(low, rng.min)
        high = E.Max(high, add(rng.min, rng.extent))
    return Range(analyzer.simplify(low), analyzer.simplify(E.Sub(high, low)))


def _upper_bounds(value: Expr) -> list[Expr]:
    """Upper bounds of a sum that contains a minimum: the sum with either operand of it."""
    if isinstance(value, E.Min):
        return [value.a, value.b]
    if isinstance(value, E.Add) and (above := _upper_bounds(value.b)):
        return [E.Add(value.a, one) for one in above]
    if isinstance(value, (E.Add, E.Sub)):
        return [type(value)(one, value.b) for one in _upper_bounds(value.a)]
    return []


def largest(value: Expr, analyzer: Analyzer) -> int | None:
    """A constant upper bound of the value, found through minima, maxima and sums."""
    bound = analyzer.const_bounds(value)[1]
    if analyzer.is_value(value):
        return bound  # sums of its parts may wrap around
    if isinstance(value, (E.Add, E.Sub)) and (above := _upper_bounds(value)):
        # A term added to a minimum may cancel with one operand: min(x, n) - x + 6 is at most 6.
        result = [largest(analyzer.simplify(one), analyzer) for one in above]
        return min((one for one in (*result, bound) if one is not None), default=None)
    if not isinstance(value, (E.Min, E.Max, E.Add)):
        return bound
    sides = [largest(value.a, analyzer), largest(value.b, analyzer)]
    known = [side for side in sides if side is not None]
    if isinstance(value, E.Min) and known:
        return min(known) if bound is None else min(bound, *known)
    if len(known) < 2 or bound is not None:
        return bound
    return max(known) if isinstance(value, E.Max) else sum(known)


_LANE_WISE = (E.Add, E.Sub, E.Mul, E.FloorDiv, E.FloorMod, E.Min, E.Max)


def _of_lane(index: Expr, lane: Var) -> Expr | None:
    """A vector index as a scalar expression of the lane's number; None for unrelated lanes."""
    if isinstance(index, E.Broadcast):
        return index.value
    if isinstance(index, E.Ramp):
        return add(index.base, E.Mul(lane, index.stride))
    if isinstance(index, E.Cast) and index.type.is_int:
        inner = _of_lane(index.value, lane)
        return None if inner is None else E.Cast(index.type.element, inner)
    if isinstance(index, _LANE_WISE):
        a, b = _of_lane(index.a, lane), _of_lane(index.b, lane)
        return None if a is None or b is None else type(index)(a, b)
    return None


def _box_of_lanes(indices: Sequence[Expr]) -> tuple[Range, ...] | None:
    """The box whose elements the lanes of several vector indices enumerate; None for others.

    Digits of the lane's number are such indices: `lane // 16` and `lane % 16` of 256 lanes.
    """
    if sum(index.dtype.lanes > 1 for index in indices) < 2:
        return None
    lanes = max(index.dtype.lanes for index in indices)
    ranges: list[Range] = []
    places: list[tuple[int, ...]] = []
    for index in indices:
        found = lane_offsets(index) if index.dtype.lanes > 1 else LaneOffsets(index, (0,) * lanes)
        if found is None:
            return None
        low, high = min(found.offsets), max(found.offsets)
        dtype = index.dtype.element
        base = const(0, dtype) if found.base is None else found.base
        ranges.append(Range(add(base, const(low, base.dtype)), const(high - low + 1, base.dtype)))
        places.append(found.offsets)
    count = math.prod(max(at) - min(at) + 1 for at in places)
    return tuple(ranges) if len(set(zip(*places, strict=True))) == count else None


class _Finder:
    """Walks in program order and tracks the enclosing loops, conditions and let values."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.found: list[BufferAccess] = []
        self.loops: list[Loop] = []
        self.guards: list[Expr] = []
        self.lets: dict[Var, Expr] = {}
        self.left: frozenset[Var] = frozenset()  # enclosing loops that may be left early
        self.unsure = 0  # nesting depth of statements that may not run, whatever the conditions
        self.stated = 0  # nesting depth of attributes that declare what addresses reach

    def visit(self, node: Node) -> None:
        match node:
            case For():
                self.visit(node.min)
                self.visit(node.extent)
                domain = Range(self._inline(node.min), self._inline(node.extent))
                outer = self.left
                if jumps(node.body):
                    self.left |= {node.loop_var}
                self.loops.append((node.loop_var, domain))
                self.visit(node.body)
                self.loops.pop()
                self.left = outer
            case S.IfThenElse():
                self._branches(node.condition, node.then_case, node.else_case)
            case Call(op="if_then_else"):
                self._branches(*node.args)
            case S.While():
                self.unsure += 1
                self._branches(node.condition, node.body, None)
                self.unsure -= 1
            case S.LetStmt() | E.Let():
                self.visit(node.value)
                self._bind(node.var, node.value)
                self.visit(node.body)
            case BufferStore():
                for child in (*node.indices, node.predicate, node.value):
                    if child is not None:
                        self.visit(child)
                if node.buffer is self.buffer:
                    self._add(node.indices, writes=True, masked=node.predicate is not None)
            case BufferLoad():
                for child in (*node.indices, node.predicate):
                    if child is not None:
                        self.visit(child)
                if node.buffer is self.buffer:
                    self._add(node.indices, writes=False)
            case Call() if is_atomic(node):
                self._update(node)
            case Call(op="address_of" | "tensor") if self._is_own(node.args[0]):
                self._address(node)
            case S.AttrStmt():
                self._attribute(node)
            case DeclBuffer():
                self.visit(node.source)
                self.visit(node.body)
            case Buffer():
                pass
            case _:
                for child in node.children():
                    self.visit(child)

    def _update(self, node: Call) -> None:
        """An atomic update both reads and writes its element."""
        place = atomic_place(node)
        self.visit(node.args[0] if place is None else place)
        self.visit(node.args[1])
        if place is not None and place.buffer is self.buffer:
            self._add(place.indices, writes=True)

    def _branches(self, condition: Expr, yes: Node, no: Node | None) -> None:
        self.visit(condition)
        inlined = self._inline(condition)
        scalar = inlined.dtype.lanes == 1
        parts = list(conjuncts(inlined)) if scalar else []
        self.guards.extend(parts)
        self.visit(yes)
        del self.guards[len(self.guards) - len(parts) :]
        if no is not None:
            if scalar:
                self.guards.append(logical_not(inlined))
            self.visit(no)
            if scalar:
                self.guards.pop()

    def _attribute(self, node: S.AttrStmt) -> None:
        """A declared region counts as read and written; it covers the addresses inside.

        Without addresses, the accesses inside tell what is written before it is read.
        """
        region: BufferRegion | None = None
        fixed, placed = 0, False
        if node.key == TOUCHED_REGION:
            region = node.node
            fixed = is_const_int(node.value, 1) * (self.buffer.ndim - 1)
        elif node.key == MATCH_BUFFER:
            view: Buffer = node.node.buffer
            region = node.node.source
            known = (view.ndim - 1 - k for k, n in enumerate(view.strides) if const_int(n))
            fixed = max(known, default=0)
            placed = view.offset is not None and const_int(view.offset) is not None
        if region is None or region.buffer is not self.buffer:
            self.visit(node.body)
            return
        ranges = tuple(Range(self._inline(r.min), self._inline(r.extent)) for r in region.region)
        seen = node.key == MATCH_BUFFER and not self._escapes(node.body)
        if not seen:
            self._record(ranges, reads=True, writes=True, opaque=placed, fixed=fixed)
        self.stated += 1
        self.visit(node.body)
        self.stated -= 1
        if seen:
            self._record(ranges, reads=True, writes=True, opaque=placed, fixed=fixed)

    def _escapes(self, body: Stmt) -> bool:
        """Whether a statement takes an address of the buffer."""
        calls = (n for n in walk(body) if isinstance(n, Call) and n.args)
        return any(n.op in ("address_of", "tensor") and self._is_own(n.args[0]) for n in calls)

    def _is_own(self, target: Expr) -> bool:
        return isinstance(target, BufferLoad) and target.buffer is self.buffer

    def _address(self, node: Call) -> None:
        if node.op == "tensor" or not self.stated:
            whole = full_region(self.buffer).region
            self._record(whole, reads=True, writes=True, opaque=True)

    def _add(self, indices: tuple[Expr, ...], *, writes: bool, masked: bool = False) -> None:
        loops = len(self.loops)
        inlined = tuple(map(self._inline, indices))
        region = _box_of_lanes(inlined) or tuple(
            self._point(index, extent)
            for index, extent in zip(inlined, self.buffer.shape, strict=True)
        )
        self._record(region, reads=not writes, writes=writes, sure=not masked)
        del self.loops[loops:]

    def _point(self, index: Expr, extent: Expr) -> Range:
        """The range of one index; the lanes of a vector index become an innermost loop.

        Unrelated lanes may be anywhere in a dimension of `extent` elements.
        """
        if index.dtype.lanes > 1:
            lane = Var("lane", index.dtype.element)
            scalar = _of_lane(index, lane)
            if scalar is None:
                return Range(const(0, extent.dtype), extent)
            if not isinstance(index, E.Broadcast):
                lanes = const(index.dtype.lanes, lane.dtype)
                self.loops.append((lane, Range(const(0, lane.dtype), lanes)))
            index = scalar
        return Range(index, const(1, index.dtype))

    def _record(
        self,
        region: tuple[Range, ...],
        *,
        reads: bool,
        writes: bool,
        opaque: bool = False,
        fixed: int = 0,
        sure: bool = True,
    ) -> None:
        sure = sure and not self.unsure
        loops, guards = tuple(self.loops), tuple(self.guards)
        access = BufferAccess(region, reads, writes, loops, guards, opaque, fixed, sure, self.left)
        self.found.append(access)

    def _bind(self, var: Var, value: Expr) -> None:
        """Note what a name stands for.

        What is loaded keeps its value while the memory changes, so a name for it stands for a load
        of its own: `a - b` is not 0 because both were loaded from one element.
        """
        value = self._inline(value)
        if reads_memory(value):
            used = tuple(v for v in free_vars(value) if v.dtype.is_int)
            shape = tuple(const(1, v.dtype) for v in used)
            value = BufferLoad(Buffer(var.name, var.dtype, shape), used)
        self.lets[var] = value

    def _inline(self, value: Expr) -> Expr:
        return substitute(value, self.lets) if self.lets else value
