"""Rewrite expressions of one loop iteration to vector expressions over all lanes.

`LaneRewriter(var, low, count)` turns `B[f * 16 + v]` into `B[T.Ramp(f * 16, 1, 16)]` for the loop
variable `v`. A subexpression that does not depend on the lane stays scalar until it meets a vector,
so a loop-invariant operand costs one load and one broadcast. Under a mask, loads are masked too:
inactive lanes access no memory and do not divide by zero.
"""

from __future__ import annotations

from blockwright.arith import Analyzer, defined
from blockwright.arith.form import is_index
from blockwright.ir import (
    OPS,
    Buffer,
    BufferLoad,
    Call,
    Expr,
    Range,
    Var,
    cast_to,
    compare,
    const,
    const_int,
    logical_not,
    select,
)
from blockwright.ir import expr as E
from blockwright.ir.dtype import INT32
from blockwright.ir.visit import Mutator, substitute, uses_var
from blockwright.lower.rewrite import broadcast, has_effect, vector_binary

_REDUCE = ("vector_reduce_add", "vector_reduce_min", "vector_reduce_max")


class CannotVectorize(Exception):
    """A construct has no vector form; the loop becomes serial instead."""


class LaneRewriter(Mutator):
    """Rewrites expressions for the lanes of one loop.

    `registers` are thread-private buffers, in which inactive lanes may be read or merged safely.
    With `masks`, the target has masked load instructions.
    """

    def __init__(
        self,
        var: Var,
        low: Expr,
        count: int,
        analyzer: Analyzer,
        registers: frozenset[Buffer] = frozenset(),
        masks: bool = False,
    ) -> None:
        super().__init__()
        self.var, self.low, self.count = var, low, count
        self.analyzer = analyzer
        self.registers = registers
        self.masks = masks
        self.mask: Expr | None = None
        self._memo[var] = E.Ramp(low, const(1, low.dtype), count)

    # --------------------------------------------------------------------------------- masks

    def under(self, condition: Expr) -> LaneRewriter:
        """A rewriter for the same lanes under the additional vector mask `condition`."""
        mask = condition if self.mask is None else E.And(self.mask, condition)
        return self._inner(self.analyzer, mask)

    def inside(self, var: Var, domain: Range) -> LaneRewriter:
        """A rewriter for the same lanes in the body of a serial loop."""
        analyzer = self.analyzer.copy()
        analyzer.bind(var, domain)
        return self._inner(analyzer, self.mask)

    def _inner(self, analyzer: Analyzer, mask: Expr | None) -> LaneRewriter:
        inner = LaneRewriter(self.var, self.low, self.count, analyzer, self.registers, self.masks)
        inner._memo.update({k: v for k, v in self._memo.items() if isinstance(k, Var)})
        inner.mask = mask
        return inner

    def bind(self, var: Var, value: Expr) -> Var:
        """The variable that replaces `var`, given the rewritten value it is bound to."""
        if value.dtype is var.dtype:
            return var
        wide = Var(var.name, value.dtype)
        self._memo[var] = wide
        return wide

    # ---------------------------------------------------------------------------- arithmetic

    def _binary(self, node: E.BinaryOp) -> Expr:
        a, b = self(node.a), self(node.b)
        divides = isinstance(node, (E.FloorDiv, E.FloorMod, E.Div, E.Mod)) and a.dtype.is_int
        if divides and self.mask is not None:
            b = self._nonzero(b, self.mask)
        if a is node.a and b is node.b:
            return node
        if a.dtype.lanes == b.dtype.lanes == node.dtype.lanes == 1:
            return type(node)(a, b)
        self._scalar_source(node)
        affine = self._affine_again(node) if divides else None
        return vector_binary(type(node), a, b) if affine is None else affine

    def _nonzero(self, divisor: Expr, mask: Expr) -> Expr:
        """The divisor made nonzero in inactive lanes too."""
        if divisor.dtype.lanes > 1 and not isinstance(divisor, E.Broadcast):
            return select(mask, divisor, const(1, divisor.dtype))
        value = divisor.value if isinstance(divisor, E.Broadcast) else divisor
        if const_int(value) or self.analyzer.is_nonzero(value):
            return divisor
        one, zero = const(1, value.dtype), const(0, value.dtype)
        if self.analyzer.prove(E.GE(value, zero)):
            value = E.Max(value, one)
        else:
            value = E.Select(E.NE(value, zero), value, one)
        return broadcast(value, divisor.dtype.lanes) if divisor.dtype.lanes > 1 else value

    rewrite_Add = rewrite_Sub = rewrite_Mul = rewrite_FloorDiv = rewrite_FloorMod = _binary
    rewrite_Min = rewrite_Max = rewrite_Div = rewrite_Mod = _binary

    def _affine_again(self, node: Expr) -> Expr | None:
        """The ramp of an expression that is affine in the lane although its form is not."""
        if any(isinstance(key, Var) and key is not self.var for key in self._memo):
            return None  # let variables hide the lane
        if self.mask is not None and defined(node, self.analyzer) is not node:
            return None  # the base of the ramp would divide where no lane is active
        analyzer = self.analyzer.copy()
        one = const(1, self.var.dtype)
        inner = const(max(1, self.count - 1), self.var.dtype)
        analyzer.bind(self.var, Range(self.low, inner))
        after = substitute(node, {self.var: E.Add(self.var, one)})
        step = const_int(analyzer.simplify(E.Sub(after, node)))
        if step is None:
            return None
        base = analyzer.simplify(substitute(node, {self.var: self.low}))
        return E.Ramp(base, const(step, base.dtype), self.count) if step else base

    def _compare(self, node: E.CompareOp) -> Expr:
        a, b = self(node.a), self(node.b)
        if a is node.a and b is node.b:
            return node
        return type(node)(*self._match(a, b))

    rewrite_EQ = rewrite_NE = rewrite_LT = rewrite_LE = rewrite_GT = rewrite_GE = _compare

    def _logical(self, node: E.And | E.Or) -> Expr:
        a, b = self(node.a), self(node.b)
        if a is node.a and b is node.b:
            return node
        return type(node)(*self._match(a, b))

    rewrite_And = rewrite_Or = _logical

    def _match(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        if a.dtype.lanes == b.dtype.lanes:
            return a, b
        return broadcast(a, self.count), broadcast(b, self.count)

    def rewrite_Cast(self, node: E.Cast) -> Expr:
        value = self(node.value)
        if value is node.value:
            return node
        if value.dtype.lanes == node.value.dtype.lanes == 1:
            return E.Cast(node.type, value)
        self._scalar_source(node)
        widened = node.type.is_int and node.type.bits > value.dtype.bits
        # A cast from int64 to int32 keeps the ramp modulo 2**32. A widening cast keeps it only for
        # indices, which do not wrap around.
        steps = isinstance(value, E.Ramp) and (node.type is INT32 or self._is_index(value))
        if isinstance(value, E.Ramp) and steps and (widened or node.type is INT32):
            base, stride = (cast_to(part, node.type) for part in (value.base, value.stride))
            return E.Ramp(base, stride, value.lanes)
        return E.Cast(node.type.with_lanes(self.count), value)

    def _is_index(self, ramp: E.Ramp) -> bool:
        parts = (ramp.base, ramp.stride)
        return all(is_index(p.dtype) and not self.analyzer.is_value(p) for p in parts)

    def rewrite_Select(self, node: E.Select) -> Expr:
        condition, yes, no = self(node.condition), self(node.true_value), self(node.false_value)
        if condition.dtype.lanes == yes.dtype.lanes == no.dtype.lanes == node.dtype.lanes:
            same = condition is node.condition and yes is node.true_value and no is node.false_value
            return node if same else E.Select(condition, yes, no)
        self._scalar_source(node)
        return E.Select(*(broadcast(part, self.count) for part in (condition, yes, no)))

    def _scalar_source(self, node: Expr) -> None:
        if node.dtype.lanes > 1:
            raise CannotVectorize("a vector expression depends on the loop variable")

    # ------------------------------------------------------------------------ vectors and lets

    def rewrite_Ramp(self, node: E.Ramp) -> Expr:
        new = self.descend(node)
        if new is not node:
            self._scalar_source(node)
        return new

    def rewrite_Broadcast(self, node: E.Broadcast) -> Expr:
        value = self(node.value)
        if value is not node.value:
            self._scalar_source(node)
        return node

    def rewrite_Shuffle(self, node: E.Shuffle) -> Expr:
        if self.descend(node) is not node:
            self._scalar_source(node)
        return node

    def rewrite_Let(self, node: E.Let) -> Expr:
        value = self(node.value)
        var = self.bind(node.var, value)
        body = self(node.body)
        same = var is node.var and value is node.value and body is node.body
        return node if same else E.Let(var, value, body)

    # ----------------------------------------------------------------------- memory and calls

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        (index,) = node.indices
        new = self(index)
        if node.predicate is not None:
            if self(node.predicate) is not node.predicate or new is not index:
                raise CannotVectorize("a masked load depends on the loop variable")
            return node
        if new.dtype.lanes == 1:
            if self.mask is None or self._in_bounds(node.buffer, new):
                return node if new is index else BufferLoad(node.buffer, (new,))
            # There may be no active lane, and then the element may lie outside the buffer.
            return BufferLoad(node.buffer, (broadcast(new, self.count),), self.mask)
        if index.dtype.lanes > 1:
            if new is index:
                return node
            raise CannotVectorize("a vector load depends on the loop variable")
        place = self.ramp(new)
        free = self.mask is None or self.in_registers(node.buffer, place)
        return BufferLoad(node.buffer, (place,), None if free else self.mask)

    def in_registers(self, buffer: Buffer, place: Expr) -> bool:
        """Whether a vector access lies inside a buffer that may live in registers."""
        if buffer not in self.registers or not isinstance(place, E.Ramp):
            return False
        stride = const_int(place.stride)
        if stride is None or stride < 1:
            return False
        last = E.Add(place.base, const(stride * (place.lanes - 1), place.base.dtype))
        return self._in_bounds(buffer, place.base) and self._in_bounds(buffer, last)

    def _in_bounds(self, buffer: Buffer, index: Expr) -> bool:
        inside = E.And(E.GE(index, const(0, index.dtype)), compare(E.LT, index, buffer.shape[0]))
        return self.analyzer.prove(inside)

    def ramp(self, index: Expr) -> Expr:
        """The vector index with the base of its ramp simplified."""
        if isinstance(index, E.Ramp) and not isinstance(index.base, Var):
            return E.Ramp(self.analyzer.simplify(index.base), index.stride, index.lanes)
        return index

    def rewrite_Call(self, node: Call) -> Expr:
        if node.op == "likely":
            return self(node.args[0])
        if node.op == "if_then_else":
            return self._choice(node)
        if node.op == "address_of":
            if uses_var(node, {key for key in self._memo if isinstance(key, Var)}):
                raise CannotVectorize("an address depends on the loop variable")
            return node
        args = tuple(self(arg) for arg in node.args)
        if all(new is old for new, old in zip(args, node.args, strict=True)):
            if has_effect(node):
                raise CannotVectorize(f"{node.op} has an effect in every iteration")
            return node
        row = OPS.get(node.op)
        if row is None or not row.elementwise or node.op in _REDUCE:
            raise CannotVectorize(f"{node.op} has no vector form")
        self._scalar_source(node)
        wide = tuple(broadcast(arg, self.count) for arg in args)
        return Call(node.op, wide, node.type.with_lanes(self.count))

    def _choice(self, node: Call) -> Expr:
        condition = self(node.args[0])
        if condition.dtype.lanes == 1 and self._is_masked_load(node):
            condition = broadcast(condition, self.count)
        if condition.dtype.lanes == 1:
            yes, no = self(node.args[1]), self(node.args[2])
            if yes.dtype.lanes == no.dtype.lanes == node.dtype.lanes:
                args = (condition, yes, no)
                same = all(a is b for a, b in zip(args, node.args, strict=True))
                return node if same else node.replace(args=args)
            self._scalar_source(node)
            yes, no = broadcast(yes, self.count), broadcast(no, self.count)
            return Call("if_then_else", (condition, yes, no), yes.dtype)
        self._scalar_source(node)
        yes = self.under(condition)(node.args[1])
        no = self.under(logical_not(condition))(node.args[2])
        return E.Select(condition, broadcast(yes, self.count), broadcast(no, self.count))

    def _is_masked_load(self, node: Call) -> bool:
        """Whether the node selects between a contiguous vector load and a constant. A masked load
        then costs no more than an unmasked one, and no branch."""
        _, yes, no = node.args
        if not self.masks or not isinstance(yes, BufferLoad) or not isinstance(no, _CONSTANT):
            return False
        place = self(yes.indices[0]) if yes.predicate is None else None
        return isinstance(place, E.Ramp) and const_int(place.stride) == 1


_CONSTANT = (E.IntImm, E.FloatImm)
