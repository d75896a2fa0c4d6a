"""Clamp addresses of fully masked loads to mapped memory.

Before::

    for h in range(14):
        B[h * 16 : h * 16 + 16] = A[h * 16 - 16 : h * 16] if h >= 1 else 0       # a masked load

After::

    for h in range(14):
        near = max(0, 1 - h) * 16
        B[h * 16 : h * 16 + 16] = A[h * 16 - 16 + near : h * 16 + near] if h >= 1 else 0

A masked load from an unmapped address takes hundreds of cycles on common processors, even if no
lane is active. The row above the first row of an image is often such an address. Where a condition
that all lanes share fails, the address moves by the amount the condition misses, to the nearest
place where the condition holds. Where the condition holds, the address does not change.
"""

from __future__ import annotations

import msgspec

from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts, room_of
from blockwright.ir import (
    BufferLoad,
    Expr,
    For,
    Node,
    PrimFunc,
    Range,
    Stmt,
    Var,
    build,
    cast_to,
    const,
    const_int,
    free_vars,
    substitute,
    walk,
)
from blockwright.ir import expr as E
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Analysed, reads_memory


@lowering_pass
def clamp_masked_reads(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Move addresses of fully masked loads to the nearest place where their mask holds."""
    return func.replace(body=_Clamp(function_analyzer(func))(func.body))


class _Clamp(Analysed):
    def rewrite_For(self, node: For) -> Stmt:
        with self.inside(node.loop_var, node.dom):
            return self.descend(node)

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        node = self.descend(node)
        if node.predicate is None or len(node.indices) != 1:
            return node
        (index,) = node.indices
        if not isinstance(index, E.Ramp) or not isinstance(index.stride, E.IntImm):
            return node
        base = index.base
        for part in conjuncts(node.predicate):
            if isinstance(part, E.Broadcast):
                base = build.add(base, _towards(index.base, part.value, self.analyzer))
        return node if base is index.base else node.replace(indices=(index.replace(base=base),))


def _towards(position: Expr, condition: Expr, analyzer: Analyzer) -> Expr:
    """The amount to add to a position where its condition fails; 0 where that is unknown."""
    shift: Expr = const(0, position.dtype)
    for part in conjuncts(condition):
        room = room_of(analyzer, part)
        if room is None or reads_memory(room):
            continue
        none = const(0, room.dtype)
        missing = build.maximum(build.sub(none, room), none)
        rate = _rate(position, room, analyzer)
        if rate is not None:
            shift = build.add(shift, build.mul(cast_to(missing, position.dtype), rate))
    return shift


def _rate(position: Expr, room: Expr, analyzer: Analyzer) -> Expr | None:
    """Change of the position per unit of slack in the condition; None if unknown."""
    for var in free_vars(room):
        if var.dtype.is_int and (grown := const_int(_step(room, var, analyzer))):
            return _per_room(_step(position, var, analyzer), grown, {var}, analyzer)
    for node in walk(room):
        digit = _digit(node)
        if digit is None:
            continue
        (high, own, low), inside = digit.parts(analyzer)
        apart = {digit.var: digit.together(high, own, low)}
        # Simplify before stepping: after the step the digit may be out of its range.
        here, there = (inside.simplify(substitute(e, apart)) for e in (room, position))
        if grown := const_int(_step(here, own, inside)):
            return _per_room(_step(there, own, inside), grown, {high, own, low}, inside)
    return None


def _per_room(moved: Expr, grown: int, stepped: set[Var], analyzer: Analyzer) -> Expr | None:
    """The movement of the position per unit of slack; None unless it is constant."""
    if stepped & set(free_vars(moved)) or reads_memory(moved):
        return None
    rate = build.floordiv(moved, const(abs(grown), moved.dtype))
    return analyzer.simplify(rate if grown > 0 else build.sub(const(0, rate.dtype), rate))


class _Digit(msgspec.Struct, frozen=True):
    """A digit `var // low % count` of a fused loop variable, such as the row in a loop over images
    and rows. Without `count`, the outermost digit `var // low`."""

    var: Var
    low: int
    count: int | None

    def parts(self, analyzer: Analyzer) -> tuple[tuple[Var, Var, Var], Analyzer]:
        """Variables for the part above the digit, the digit and the part below; their ranges."""
        dtype = self.var.dtype
        high, own, low = (Var(f"{self.var.name}_{k}", dtype) for k in range(3))
        inside = analyzer.copy()
        inside.bind(low, Range(const(0, dtype), const(self.low, dtype)))
        if self.count is not None:
            inside.bind(own, Range(const(0, dtype), const(self.count, dtype)))
        return (high, own, low), inside

    def together(self, high: Expr, own: Expr, low: Expr) -> Expr:
        """The fused variable, composed of its parts."""
        dtype = self.var.dtype
        if self.count is not None:
            own = build.add(build.mul(high, const(self.count, dtype)), own)
        return build.add(build.mul(own, const(self.low, dtype)), low)


def _digit(node: Node) -> _Digit | None:
    """The digit that the expression denotes; None if it is not a digit of a variable."""
    low, count = 1, None
    if isinstance(node, E.FloorMod):
        count, node = const_int(node.b), node.a
        if count is None:
            return None
    if isinstance(node, E.FloorDiv):
        low, node = const_int(node.b) or 0, node.a
    if not isinstance(node, Var) or not node.dtype.is_int or (low, count) == (1, None):
        return None
    return _Digit(node, low, count) if min(low, count or 1) > 0 else None


def _step(value: Expr, var: Var, analyzer: Analyzer) -> Expr:
    """The change of a value when a variable grows by 1."""
    later = substitute(value, {var: build.add(var, const(1, var.dtype))})
    return analyzer.simplify(build.sub(later, value))
