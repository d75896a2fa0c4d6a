"""Emit integer division, bounds and shifts that never trap and have no undefined results.

Division by zero returns 0, and the smallest integer divided by -1 wraps, as in NumPy. Where the
operands are known to be nonnegative, the cheaper unsigned forms are used.
"""

from __future__ import annotations

from collections.abc import Container

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import DType, Expr, IntImm, Sorts, Var
from blockwright.ir import expr as E


def constant_of(expr: Expr) -> int | None:
    """The value of an integer constant, scalar or broadcast; None for other expressions."""
    while isinstance(expr, E.Broadcast):
        expr = expr.value
    return expr.value if isinstance(expr, IntImm) else None


def nonnegative(expr: Expr, known: Container[Var], sorts: Sorts) -> bool:
    """Whether an integer is known to be >= 0, given the nonnegative variables `known`.

    Sums and products of nonnegative indices are nonnegative, because index arithmetic does not
    overflow. Those of values may wrap around, so their ranges decide.
    """
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, IntImm):
            if node.value < 0:
                return False
        elif isinstance(node, Var):
            if node not in known and node.dtype.kind != "uint":
                return False
        elif isinstance(node, (E.Add, E.Mul)) and not sorts.is_index(node):
            if _range_of(node, known, sorts)[0] < 0:
                return False
        elif isinstance(node, (E.Add, E.Mul, E.Min, E.FloorDiv, E.Div)):
            stack += (node.a, node.b)
        elif isinstance(node, E.FloorMod):
            if (constant_of(node.b) or 0) <= 0:
                stack.append(node.b)
        elif isinstance(node, E.Max):
            if not nonnegative(node.a, known, sorts):
                stack.append(node.b)
        elif isinstance(node, E.Ramp):
            if not sorts.is_index(node) and node.dtype.kind != "uint":
                return False
            stack += (node.base, node.stride)
        elif isinstance(node, E.Broadcast) or (isinstance(node, E.Cast) and _keeps_number(node)):
            stack.append(node.value)
        elif node.dtype.kind != "uint":
            return False
    return True


def _keeps_number(node: E.Cast) -> bool:
    """Whether an integer cast preserves all nonnegative values."""
    old, new = node.value.dtype, node.type
    return (old.is_int or old.is_bool) and new.max_value >= old.max_value


def _range_of(expr: Expr, known: Container[Var], sorts: Sorts) -> tuple[int, int]:
    """Bounds of a value, derived from the types of its operands."""
    type_ = expr.dtype.element
    whole = (type_.min_value, type_.max_value)
    if isinstance(expr, IntImm):
        return (expr.value, expr.value)
    if isinstance(expr, E.Broadcast):
        return _range_of(expr.value, known, sorts)
    if isinstance(expr, E.Cast) and (expr.value.dtype.is_int or expr.value.dtype.is_bool):
        low, high = _range_of(expr.value, known, sorts)
    elif isinstance(expr, (E.Add, E.Mul)):
        a, b = (_range_of(e, known, sorts) for e in (expr.a, expr.b))
        corners = [x + y if isinstance(expr, E.Add) else x * y for x in a for y in b]
        low, high = min(corners), max(corners)
    else:
        smallest = 0 if nonnegative(expr, known, sorts) else whole[0]
        divisor = constant_of(expr.b) if isinstance(expr, E.FloorMod) else None
        return (smallest, divisor - 1 if divisor is not None and divisor > 0 else whole[1])
    return (low, high) if whole[0] <= low and high <= whole[1] else whole


def multiple_of(expr: Expr) -> int:
    """A known divisor of an integer expression (0 divides only 0)."""
    if isinstance(expr, IntImm):
        return abs(expr.value)
    if isinstance(expr, (E.Add, E.Sub)):
        return _gcd(multiple_of(expr.a), multiple_of(expr.b))
    if isinstance(expr, E.Mul):
        return multiple_of(expr.a) * multiple_of(expr.b)
    if isinstance(expr, E.Ramp):
        return multiple_of(expr.base)
    return 1


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def divide(
    e: FunctionEmitter,
    op: type[E.BinaryOp],
    a: Value,
    b: Value,
    dtype: DType,
    divisor: int | None,
    positive: bool,
) -> Value:
    """FloorDiv, FloorMod, Div or Mod of integers.

    `divisor` is the second operand if it is constant; `positive`: both operands are >= 0.
    """
    wants_quotient = op in (E.FloorDiv, E.Div)
    if dtype.kind == "uint" or positive:
        return _unsigned(e, wants_quotient, a, b, divisor)
    if divisor is not None and divisor > 0:
        return _by_constant(e, op, a, b, divisor)
    return _general(e, op, a, b)


def _unsigned(e: FunctionEmitter, quotient: bool, a: Value, b: Value, divisor: int | None) -> Value:
    name = "udiv" if quotient else "urem"
    if divisor:
        return e.binary(name, a, b)
    zero = int_const(0, b.type)
    none = e.compare("eq", b, zero)
    safe = e.select(none, int_const(1, b.type), b)
    return e.select(none, zero, e.binary(name, a, safe))


def _by_constant(e: FunctionEmitter, op: type[E.BinaryOp], a: Value, b: Value, c: int) -> Value:
    if op is E.Div:
        return e.binary("sdiv", a, b)
    if op is E.Mod:
        return e.binary("srem", a, b)
    if c & (c - 1) == 0:  # arithmetic shift and mask are the floor forms
        if op is E.FloorDiv:
            return e.binary("ashr", a, int_const(c.bit_length() - 1, a.type))
        return e.binary("and", a, int_const(c - 1, a.type))
    rest = e.binary("srem", a, b)
    below = e.compare("slt", rest, int_const(0, a.type))
    if op is E.FloorMod:
        return e.select(below, e.binary("add", rest, b), rest)
    quotient = e.binary("sdiv", a, b)
    return e.select(below, e.binary("sub", quotient, int_const(1, a.type)), quotient)


def _general(e: FunctionEmitter, op: type[E.BinaryOp], a: Value, b: Value) -> Value:
    zero, one, minus = (int_const(n, a.type) for n in (0, 1, -1))
    none, negates = e.compare("eq", b, zero), e.compare("eq", b, minus)
    safe = e.select(e.binary("or", none, negates), one, b)
    rest = e.binary("srem", a, safe)
    # Floor differs from truncation where the remainder's sign is not the divisor's.
    differs = e.compare("slt", e.binary("xor", rest, safe), zero)
    adjust = e.binary("and", differs, e.compare("ne", rest, zero))
    if op in (E.FloorMod, E.Mod):
        if op is E.FloorMod:
            rest = e.select(adjust, e.binary("add", rest, safe), rest)
        return rest  # for divisors 0 and -1, the substitute 1 leaves remainder 0
    quotient = e.binary("sdiv", a, safe)
    if op is E.FloorDiv:
        quotient = e.select(adjust, e.binary("sub", quotient, one), quotient)
    quotient = e.select(negates, e.binary("sub", zero, a), quotient)
    return e.select(none, zero, quotient)


def shift(
    e: FunctionEmitter, left: bool, a: Value, b: Value, dtype: DType, amount: int | None
) -> Value:
    """A shift; amounts of the type's width or more shift all bits out."""
    signed = dtype.kind == "int"
    op = "shl" if left else ("ashr" if signed else "lshr")
    if amount is not None and 0 <= amount < dtype.bits:
        return e.binary(op, a, b)
    top = int_const(dtype.bits - 1, a.type)
    over = e.compare("ugt", b, top)
    shifted = e.binary(op, a, e.select(over, top, b))
    return shifted if op == "ashr" else e.select(over, int_const(0, a.type), shifted)


def power(
    e: FunctionEmitter, base: Value, exponent: Value, dtype: DType, known: int | None
) -> Value:
    """base ** exponent by repeated squaring, wrapping; the exponent must be nonnegative."""
    one = int_const(1, base.type)
    result = one
    bits = dtype.bits if known is None else max(known.bit_length(), 0)
    for bit in range(bits):
        if known is None:
            taken = e.binary("and", exponent, int_const(1 << bit, base.type))
            wanted = e.compare("ne", taken, int_const(0, base.type))
            result = e.binary("mul", result, e.select(wanted, base, one))
        elif known >> bit & 1:
            result = e.binary("mul", result, base)
        if bit + 1 < bits:
            base = e.binary("mul", base, base)
    return result
