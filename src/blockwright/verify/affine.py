"""Convert index expressions and conditions to isl's notation.

The resulting text denotes the same mathematical integer as the expression. The result is None if
the expression is not quasi-affine in the given names: a product of variables, a division by a
variable, a load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from blockwright import ir

Names = Mapping[ir.Var, str]

_COMPARISONS: dict[type[ir.Expr], str] = {
    ir.EQ: "=", ir.NE: "!=", ir.LT: "<", ir.LE: "<=", ir.GT: ">", ir.GE: ">=",
}  # fmt: skip
TRUE, FALSE = "(0 = 0)", "(0 = 1)"


def constant(expr: ir.Expr) -> int | None:
    """Return the value of an integer expression without variables; None for any other."""
    match expr:
        case ir.IntImm():
            return expr.value
        case ir.Expr() if not is_index_type(expr.dtype):
            return None
        case ir.Cast() if is_index_type(expr.value.dtype):
            return constant(expr.value)
        case ir.Call() if expr.op in ir.INDEX_CALLS:
            a, b = map(constant, expr.args)
            masks = expr.op == "bitwise_and"
            if a is None or b is None or not (masks or 0 <= b < expr.dtype.bits):
                return None
            return a & b if masks else a << b if expr.op == "shift_left" else a >> b
        case ir.Add() | ir.Sub() | ir.Mul() | ir.FloorDiv() | ir.FloorMod() | ir.Min() | ir.Max():
            a, b = constant(expr.a), constant(expr.b)
            if a is None or b is None:
                return None
            if isinstance(expr, (ir.FloorDiv, ir.FloorMod)) and b == 0:
                return None
            return _FOLDS[type(expr)](a, b)
        case _:
            return None


_FOLDS: dict[type[ir.Expr], Callable[[int, int], int]] = {
    ir.Add: lambda a, b: a + b, ir.Sub: lambda a, b: a - b, ir.Mul: lambda a, b: a * b,
    ir.FloorDiv: lambda a, b: a // b, ir.FloorMod: lambda a, b: a % b, ir.Min: min, ir.Max: max,
}  # fmt: skip


def is_index_type(dtype: ir.DType) -> bool:
    """Whether expressions of a type can be indices (mathematical integers)."""
    return dtype.is_index and dtype.lanes == 1


def is_index(expr: ir.Expr, names: Names) -> bool:
    """Whether an expression is an index, quasi-affine or not: built from names and constants."""
    if not is_index_type(expr.dtype):
        return False
    match expr:
        case ir.IntImm():
            return True
        case ir.Var():
            return expr in names
        case ir.Cast():
            return is_index(expr.value, names)
        case ir.BinaryOp():
            return is_index(expr.a, names) and is_index(expr.b, names)
        case ir.Select():
            parts = (expr.true_value, expr.false_value)
            return all(is_index(e, names) for e in parts) and _tests_indices(expr.condition, names)
        case ir.Call(op="if_then_else"):
            test, *parts = expr.args
            return all(is_index(e, names) for e in parts) and _tests_indices(test, names)
        case ir.Call():
            known = ir.INDEX_CALLS | {"likely"}
            return expr.op in known and all(is_index(e, names) for e in expr.args)
        case _:
            return False


def _tests_indices(test: ir.Expr, names: Names) -> bool:
    """Whether a condition consists of comparisons of indices."""
    match test:
        case ir.IntImm():
            return True
        case ir.CompareOp():
            return is_index(test.a, names) and is_index(test.b, names)
        case ir.And() | ir.Or() | ir.Not() | ir.Call(op="likely"):
            return all(isinstance(e, ir.Expr) and _tests_indices(e, names) for e in test.children())
        case _:
            return False


def affine(expr: ir.Expr, names: Names) -> str | None:
    """An integer expression in isl's notation; None if it is not quasi-affine.

    The operators of unsigned types are taken modulo 2**n. Values of signed types are left to the
    caller, because there the text of an operator would not tell indices from values.
    """
    if not (expr.dtype.is_int and expr.dtype.is_scalar):
        return None
    match expr:
        case ir.IntImm():
            return f"({expr.value})"
        case ir.Var():
            return names.get(expr)
        case ir.Expr() if not (is_index_type(expr.dtype) or expr.dtype.kind == "uint"):
            return None
        case ir.Cast():
            keeps = expr.dtype.kind == "uint" or is_index_type(expr.value.dtype)
            return _wrapped(affine(expr.value, names), expr.dtype) if keeps else None
        case ir.Add() | ir.Sub():
            a, b = affine(expr.a, names), affine(expr.b, names)
            sign = "+" if isinstance(expr, ir.Add) else "-"
            return None if a is None or b is None else _wrapped(f"({a} {sign} {b})", expr.dtype)
        case ir.Mul():
            return _wrapped(_product(expr, names), expr.dtype)
        case ir.FloorDiv() | ir.FloorMod():
            by, a = constant(expr.b), affine(expr.a, names)
            if by is None or by <= 0 or a is None:
                return None
            return f"floor({a}/{by})" if isinstance(expr, ir.FloorDiv) else f"({a} mod {by})"
        case ir.Min() | ir.Max():
            a, b = affine(expr.a, names), affine(expr.b, names)
            name = "min" if isinstance(expr, ir.Min) else "max"
            return None if a is None or b is None else f"{name}({a}, {b})"
        case ir.Div() | ir.Mod():
            return _truncating(expr, names)
        case ir.Select():
            return _choice(expr.condition, expr.true_value, expr.false_value, names)
        case ir.Call():
            if expr.op == "if_then_else":
                test, yes, no = expr.args
                return _choice(test, yes, no, names)
            if expr.op in ir.INDEX_CALLS:
                return _wrapped(_bitwise(expr, names), expr.dtype)
            return affine(expr.args[0], names) if expr.op == "likely" else None
        case _:
            return None


def _wrapped(text: str | None, dtype: ir.DType) -> str | None:
    """The number as the type holds it: an index stays, an unsigned value is taken modulo 2**n."""
    return f"({text} mod {1 << dtype.bits})" if text and dtype.kind == "uint" else text


def _product(expr: ir.Mul, names: Names) -> str | None:
    for factor, other in ((expr.a, expr.b), (expr.b, expr.a)):
        value = constant(factor)
        if value is not None:
            text = affine(other, names)
            return None if text is None else f"({value} * {text})"
    return None


def _truncating(expr: ir.Div | ir.Mod, names: Names) -> str | None:
    """Division that rounds toward zero by a positive constant, split by the dividend's sign."""
    by, a = constant(expr.b), affine(expr.a, names)
    if by is None or by <= 0 or a is None:
        return None
    quotient = f"({a} >= 0 ? floor({a}/{by}) : -floor((-{a})/{by}))"
    return quotient if isinstance(expr, ir.Div) else f"({a} - {by} * {quotient})"


def _bitwise(expr: ir.Call, names: Names) -> str | None:
    """A shift by a constant or the lowest digits, as a product, quotient or remainder."""
    a, by = affine(expr.args[0], names), constant(expr.args[1])
    if (known := constant(expr)) is not None:
        return f"({known})"
    if a is None or by is None:
        return None
    if expr.op == "bitwise_and":
        return f"({a} mod {by + 1})" if by >= 0 and not by & (by + 1) else None
    if not 0 <= by < expr.dtype.bits:
        return None
    return f"({1 << by} * {a})" if expr.op == "shift_left" else f"floor({a}/{1 << by})"


def _choice(test: ir.Expr, yes: ir.Expr, no: ir.Expr, names: Names) -> str | None:
    """A select on a single comparison, the only form of condition that isl's `?:` accepts.

    The choice between two indices is a value unless indices are compared.
    """
    c, a, b = condition(test, names), affine(yes, names), affine(no, names)
    plain = isinstance(test, ir.CompareOp) and (
        is_index_type(test.a.dtype) or (test.a.dtype.is_int and yes.dtype.kind == "uint")
    )
    if c is None or a is None or b is None or not plain or isinstance(test, ir.NE):
        return None
    return f"({c[1:-1]} ? {a} : {b})"


def condition(expr: ir.Expr, names: Names) -> str | None:
    """A condition on index expressions in isl's notation; None if it cannot be expressed."""
    match expr:
        case ir.IntImm() if expr.dtype.is_bool:
            return TRUE if expr.value else FALSE
        case ir.Not():
            a = condition(expr.a, names)
            return None if a is None else f"(not {a})"
        case ir.And() | ir.Or():
            a, b = condition(expr.a, names), condition(expr.b, names)
            word = "and" if isinstance(expr, ir.And) else "or"
            return None if a is None or b is None else f"({a} {word} {b})"
        case ir.CompareOp():
            if expr.a.dtype.is_bool:
                return _same_truth(expr, names)
            a, b = affine(expr.a, names), affine(expr.b, names)
            sign = _COMPARISONS[type(expr)]
            return None if a is None or b is None else f"({a} {sign} {b})"
        case ir.Call() if expr.op == "likely":
            return condition(expr.args[0], names)
        case ir.Select():
            return _either(expr.condition, expr.true_value, expr.false_value, names)
        case ir.Call() if expr.op == "if_then_else":
            test, yes, no = expr.args
            return _either(test, yes, no, names)
        case _:
            return None


def _same_truth(expr: ir.CompareOp, names: Names) -> str | None:
    a, b = condition(expr.a, names), condition(expr.b, names)
    if a is None or b is None or not isinstance(expr, (ir.EQ, ir.NE)):
        return None
    same = f"(({a} and {b}) or ((not {a}) and (not {b})))"
    return same if isinstance(expr, ir.EQ) else f"(not {same})"


def _either(test: ir.Expr, yes: ir.Expr, no: ir.Expr, names: Names) -> str | None:
    c, a, b = condition(test, names), condition(yes, names), condition(no, names)
    if c is None or a is None or b is None:
        return None
    return f"(({c} and {a}) or ((not {c}) and {b}))"
