"""Emit expressions as LLVM values.

A shared node is computed once per statement, also across the branches of lazy selections if it was
computed before them. `mask` holds the active lanes of the current vector code; memory is accessed
under it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar

from blockwright.codegen.llvm import access, calls, four_bit_tables, integers, types
from blockwright.codegen.llvm.context import FunctionContext
from blockwright.codegen.llvm.real import Real
from blockwright.codegen.llvm.values import (
    Value,
    element_of,
    int_const,
    is_nan_const,
    lane_consts,
    lanes_of,
    vector,
)
from blockwright.ir import BufferLoad, DType, Expr, Var, op_row, walk
from blockwright.ir import expr as E
from blockwright.support import BuildError

_ARITHMETIC: dict[type[E.BinaryOp], tuple[str, str]] = {
    E.Add: ("add", "fadd"), E.Sub: ("sub", "fsub"), E.Mul: ("mul", "fmul"),
}  # fmt: skip
_COMPARE: dict[type[E.CompareOp], tuple[str, str]] = {
    E.EQ: ("eq", "oeq"), E.NE: ("ne", "une"), E.LT: ("lt", "olt"), E.LE: ("le", "ole"),
    E.GT: ("gt", "ogt"), E.GE: ("ge", "oge"),
}  # fmt: skip


def reads_memory(expr: Expr) -> bool:
    """Whether evaluating the expression may access memory or have a side effect."""
    return any(
        isinstance(node, BufferLoad)
        or (isinstance(node, E.Call) and op_row(node.op).kind != "pure")
        for node in walk(expr)
    )


class ExprEmitter:
    """Emits expressions into the current block of a context."""

    table: ClassVar[dict[str, Callable[[Any, Any], Value]]] = {}

    def __init__(self, context: FunctionContext) -> None:
        self.context, self.e = context, context.e
        self._known: list[dict[Expr, Value]] = [{}]
        self._single: dict[str, Value] = {}  # narrow float → the same number in single precision
        self._nsw = False
        self.mask: Value | None = None

    def forget(self) -> None:
        """Start a new statement: memory and the current block may have changed."""
        self._known = [{}]

    @contextmanager
    def scope(self, mask: Value | None = None) -> Generator[None]:
        """A scope whose cached values are not valid outside of it."""
        outer = self.mask
        self._known.append({})
        self.mask = mask if mask is not None else outer
        yield
        self.mask = outer
        self._known.pop()

    # ---------------------------------------------------------------- entry points
    def value(self, expr: Expr) -> Value:
        """The value of an expression."""
        if isinstance(expr, Var):
            return self.context.variable(expr)
        for known in reversed(self._known):
            matches = known.get(expr)
            if matches is not None:
                return matches
        if isinstance(expr, (E.BinaryOp, E.Cast)) and expr.dtype.is_float:
            found = self._of_four_bits(expr)
            if found is not None:
                self._known[-1][expr] = found
                return found
        if isinstance(expr, E.BinaryOp):
            return self._chain(expr)
        method = self.table.get(type(expr).__name__)
        if method is None:
            raise BuildError(
                f"cannot generate code for {type(expr).__name__}",
                code="BW601",
                help="lower the function before building it",
            )
        result = method(self, expr)
        self._known[-1][expr] = result
        return result

    def _of_four_bits(self, expr: Expr) -> Value | None:
        """The value of a function of four bits, where there is a better way than its arithmetic."""
        narrow, fast = types.is_narrow(expr.dtype), four_bit_tables.has_lookup(self.e, expr.dtype)
        if not narrow and not fast:
            return None
        found = four_bit_tables.four_bits(expr)
        if found is None or not (fast or found.exact):
            return None
        if fast:
            wide = four_bit_tables.lookup(self.e, self.value(found.source), found.values)
        else:
            wide = self.value(four_bit_tables.in_single(expr))
        if not narrow:
            return wide
        result = types.narrow(self.e, wide, expr.dtype)
        self._single[result.text] = wide
        return result

    def _widened(self, value: Value, dtype: DType) -> Value:
        """A narrow float in single precision."""
        known = self._single.get(value.text)
        return types.widen(self.e, value, dtype) if known is None else known

    def index(self, expr: Expr) -> Value:
        """An integer expression as a 64-bit index; the indices in it do not overflow."""
        outer, self._nsw = self._nsw, True
        result = self.value(expr)
        self._nsw = outer
        type_ = vector("i64", expr.dtype.lanes)
        return self.e.convert("sext" if expr.dtype.kind == "int" else "zext", result, type_)

    # ---------------------------------------------------------------- leaves
    def on_IntImm(self, expr: E.IntImm) -> Value:
        return types.constant(expr.value, expr.dtype)

    def on_FloatImm(self, expr: E.FloatImm) -> Value:
        return types.constant(expr.value, expr.dtype)

    def on_StringImm(self, expr: E.StringImm) -> Value:
        return self.context.module.string(expr.value)

    def on_Cast(self, expr: E.Cast) -> Value:
        value = self.value(expr.value)
        known = self._single.get(value.text)
        if known is not None and expr.dtype.is_float and expr.dtype.bits == 32:
            return known
        return types.cast(self.e, value, expr.value.dtype, expr.dtype)

    def on_Let(self, expr: E.Let) -> Value:
        self.context.variables[expr.var] = self.value(expr.value)
        with self.scope():
            return self.value(expr.body)

    # ---------------------------------------------------------------- arithmetic
    def _chain(self, expr: E.BinaryOp) -> Value:
        """Emit left-deep chains without recursion: they can be thousands of operators long."""
        spine: list[E.BinaryOp] = []
        node: Expr = expr
        while isinstance(node, E.BinaryOp) and not any(node in k for k in self._known):
            found = self._of_four_bits(node) if spine and node.dtype.is_float else None
            if found is not None:
                self._known[-1][node] = found
                break
            spine.append(node)
            node = node.a
        left = self.value(node)
        for op in reversed(spine):
            left = self._binary(op, left, self.value(op.b))
            self._known[-1][op] = left
        return left

    def _binary(self, expr: E.BinaryOp, a: Value, b: Value) -> Value:
        dtype = expr.b.dtype
        if dtype.is_float:
            return self._float_binary(type(expr), a, b, dtype)
        kind = type(expr)
        if kind in _ARITHMETIC:
            flags = "nsw" if self._never_overflows(expr) else ""
            return self.e.binary(_ARITHMETIC[kind][0], a, b, flags)
        if kind in (E.Min, E.Max):
            order = ("s" if dtype.kind == "int" else "u") + ("min" if kind is E.Min else "max")
            return self.e.overloaded(order, a, b)
        known = self.context.nonnegative
        sorts = self.context.sorts
        positive = all(integers.nonnegative(e, known, sorts) for e in (expr.a, expr.b))
        divisor = integers.constant_of(expr.b)
        return integers.divide(self.e, kind, a, b, dtype, divisor, positive)

    def _never_overflows(self, expr: Expr) -> bool:
        """Whether this is index arithmetic within a buffer index; values may wrap around there."""
        return self._nsw and expr.dtype.kind == "int" and self.context.sorts.is_index(expr)

    def float_op(self, op: str, a: Value, b: Value) -> Value:
        """fadd, fsub, fmul or fdiv with the function's contraction option."""
        return self.e.binary(op, a, b, "contract" if self.context.options.contract else "")

    def _float_binary(self, kind: type[E.BinaryOp], a: Value, b: Value, dtype: DType) -> Value:
        if types.is_narrow(dtype):
            wide = DType("float", 32, dtype.lanes)
            x, y = self._widened(a, dtype), self._widened(b, dtype)
            return types.narrow(self.e, self._float_binary(kind, x, y, wide), dtype)
        if kind in _ARITHMETIC:
            return self.float_op(_ARITHMETIC[kind][1], a, b)
        if kind is E.Div:
            return self.e.binary("fdiv", a, b)
        if kind in (E.Min, E.Max):
            return self.extremum("olt" if kind is E.Min else "ogt", a, b)
        return self._float_remainder(kind, a, b)

    def _float_remainder(self, kind: type[E.BinaryOp], a: Value, b: Value) -> Value:
        """Remainder with the sign of the divisor (FloorMod) or dividend (Mod), or the floored
        quotient (FloorDiv)."""
        from_c = "fmodf" if element_of(a.type) == "float" else "fmod"
        scalar = element_of(a.type)

        def remainder(x: Value, y: Value) -> Value:
            return self.e.call(scalar, from_c, x, y)

        rest = Real(self.e, self.e.per_lane(remainder, a, b))
        x, y = Real(self.e, a), Real(self.e, b)
        if kind is E.Mod:
            return rest.v
        other_sign = self.e.compare("ne", rest.test("olt", 0.0), y.test("olt", 0.0))
        adjust = self.e.binary("and", other_sign, rest.test("one", 0.0))
        modulo = (rest + y).where(adjust, rest)
        if kind is E.FloorMod:
            return modulo.with_sign_of(y).where(modulo.test("oeq", 0.0), modulo).v
        quotient = (x - rest) / y
        quotient = (quotient - 1.0).where(adjust, quotient)
        below = quotient.unary("floor")
        near = (below + 1.0).where((quotient - below).test("ogt", 0.5), below)
        signed = near.with_sign_of(x / y).where(quotient.test("oeq", 0.0), near)
        return signed.where(y.test("one", 0.0), x / y).v

    def extremum(self, order: str, a: Value, b: Value) -> Value:
        """Min or max; NaN if either is NaN. At most three instructions, two with mask registers.

        Only `b` is tested for NaN separately; the instruction itself returns `a` when one operand
        is NaN. In a reduction `b` is the new element, so the test is not on the loop-carried chain.
        """
        e = self.e
        for operand in (a, b):
            if is_nan_const(operand):
                return operand
        # Remaining constants are not NaN.
        first = e.compare(order, a, b)
        if self.context.options.nnan or not a.text.startswith("%"):
            return e.select(first, a, b)  # if a is not NaN, the select returns a NaN in b
        if not b.text.startswith("%"):
            return e.select(e.compare(order, b, a), b, a)
        # Mask off lanes with NaN in `b`, which keep `b`.
        if e.module.target.cheap_predication and lanes_of(a.type) > 1:
            taken = e.select(e.compare(order, b, a), b, a)
            return e.select(e.compare("ord", b, b), taken, b)
        return e.overloaded("minimum" if order == "olt" else "maximum", b, a, flags="nsz")

    def _compare(self, expr: E.CompareOp) -> Value:
        if isinstance(expr, E.LT) and isinstance(expr.a, E.Ramp):
            mask = self._lane_mask(expr.a, expr.b)
            if mask is not None:
                return mask
        a, b = self.value(expr.a), self.value(expr.b)
        dtype = expr.a.dtype
        if types.is_narrow(dtype):
            a, b = types.widen(self.e, a, dtype), types.widen(self.e, b, dtype)
        plain, real = _COMPARE[type(expr)]
        if dtype.is_float:
            return self.e.compare(real, a, b)
        signed = "s" if dtype.kind == "int" else "u"
        return self.e.compare(plain if plain in ("eq", "ne") else signed + plain, a, b)

    on_EQ = on_NE = on_LT = on_LE = on_GT = on_GE = _compare

    def _lane_mask(self, ramp: E.Ramp, bound: Expr) -> Value | None:
        """Emit base + lane < bound as lane < bound - base: one comparison of 32-bit lanes."""
        if not isinstance(bound, E.Broadcast) or integers.constant_of(ramp.stride) != 1:
            return None
        if ramp.dtype.kind != "int" or not self.context.sorts.is_index(ramp):
            return None
        left = self.e.binary("sub", self.index(bound.value), self.index(ramp.base))
        clamped = self.e.overloaded("smin", left, int_const(ramp.lanes))
        clamped = self.e.overloaded("smax", clamped, int_const(0))
        small = self.e.splat(self.e.convert("trunc", clamped, "i32"), ramp.lanes)
        return self.e.compare("ult", lane_consts(range(ramp.lanes), "i32"), small)

    # ---------------------------------------------------------------- logic
    def on_And(self, expr: E.And) -> Value:
        return self._logic(expr, "and")

    def on_Or(self, expr: E.Or) -> Value:
        return self._logic(expr, "or")

    def _logic(self, expr: E.And | E.Or, op: str) -> Value:
        a = self.value(expr.a)
        if not reads_memory(expr.b):
            return self.e.binary(op, a, self.value(expr.b))
        if lanes_of(a.type) == 1:
            stop = int_const(int(op == "or"), "i1")
            if op == "and":
                return self.e.choose(a, lambda: self._scoped(expr.b), lambda: stop)
            return self.e.choose(a, lambda: stop, lambda: self._scoped(expr.b))
        wanted = a if op == "and" else self._not_value(a)
        with self.scope(self._both(wanted)):
            return self.e.binary(op, a, self.value(expr.b))

    def on_Not(self, expr: E.Not) -> Value:
        return self._not_value(self.value(expr.a))

    def _not_value(self, a: Value) -> Value:
        return self.e.binary("xor", a, int_const(1, a.type))

    def _both(self, mask: Value) -> Value:
        return mask if self.mask is None else self.e.binary("and", self.mask, mask)

    def _scoped(self, expr: Expr) -> Value:
        with self.scope():
            return self.value(expr)

    def on_Select(self, expr: E.Select) -> Value:
        condition = self.value(expr.condition)
        return self.e.select(condition, self.value(expr.true_value), self.value(expr.false_value))

    def lazy(self, condition: Expr, yes: Expr, no: Expr) -> Value:
        """if_then_else: a branch if a side reads memory; masked lanes for vectors."""
        if isinstance(condition, E.Broadcast):
            condition = condition.value
        test = self.value(condition)
        if not reads_memory(yes) and not reads_memory(no):
            return self.e.select(test, self.value(yes), self.value(no))
        if lanes_of(test.type) == 1:
            return self.e.choose(test, lambda: self._scoped(yes), lambda: self._scoped(no))
        with self.scope(self._both(test)):
            a = self.value(yes)
        with self.scope(self._both(self._not_value(test))):
            b = self.value(no)
        return self.e.select(test, a, b)

    # ---------------------------------------------------------------- vectors
    def on_Ramp(self, expr: E.Ramp) -> Value:
        base, stride = self.value(expr.base), integers.constant_of(expr.stride)
        element = element_of(base.type)
        flags = "nsw" if self._never_overflows(expr) else ""
        steps = lane_consts([lane * (stride or 1) for lane in range(expr.lanes)], element)
        if stride is None:
            wide = self.e.splat(self.value(expr.stride), expr.lanes)
            steps = self.e.binary("mul", steps, wide, flags)
        return self.e.binary("add", self.e.splat(base, expr.lanes), steps, flags)

    def on_Broadcast(self, expr: E.Broadcast) -> Value:
        if isinstance(expr.value, (E.IntImm, E.FloatImm)):
            return types.constant(expr.value.value, expr.dtype)
        return self.e.splat(self.value(expr.value), expr.lanes)

    def on_Shuffle(self, expr: E.Shuffle) -> Value:
        vectors = [self.value(v) for v in expr.vectors]
        lanes = lanes_of(vectors[0].type)
        if lanes == 1 or len(vectors) > 2:
            picked = Value(vector(element_of(vectors[0].type), len(expr.indices)), "poison")
            for place, index in enumerate(expr.indices):
                one = self.e.extract(vectors[index // lanes], index % lanes)
                picked = self.e.insert(picked, one, place)
            return picked
        second = vectors[1] if len(vectors) == 2 else Value(vectors[0].type, "poison")
        return self.e.shuffle(vectors[0], second, expr.indices)

    # ---------------------------------------------------------------- memory
    def on_BufferLoad(self, expr: BufferLoad) -> Value:
        return access.load(self, expr)

    def on_Call(self, expr: E.Call) -> Value:
        return calls.call(self, expr)


ExprEmitter.table = {
    name.removeprefix("on_"): method
    for name, method in vars(ExprEmitter).items()
    if name.startswith("on_")
}
