"""Check of the reducer laws on sample values, including ties, NaN and infinities.

Three laws allow a combiner to be regrouped and reordered:

- `f(x, y) = f(y, x)`;
- `f(f(x, y), z) = f(x, f(y, z))`;
- `f(identity, x) = x`.

Samples can only refute. Builtin reducers are covered by tests; a declared one is rejected with a
counterexample if a sample violates a law. Floats are computed in float64 and compared with relative
tolerance 1e-9, because the laws concern exact numbers; steps that regroup may change rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, product
from typing import Any

import numpy as np

from blockwright import ir

Array = np.ndarray[Any, Any]
_CLOSE = 1e-9
_MOST = 27  # maximum number of sample tuples; all triples of them are tested
_FLOATS = (0.0, 1.0, -2.0, 0.5, 3.0, float("nan"), float("-inf"), float("inf"))


class CannotEvaluate(Exception):
    """The expression cannot be evaluated; carries the reason."""


# --------------------------------------------------------------------------------------- evaluation
_BINARY: dict[type[ir.Expr], Callable[[Any, Any], Any]] = {
    ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.Min: np.minimum,
    ir.Max: np.maximum, ir.EQ: np.equal, ir.NE: np.not_equal, ir.LT: np.less,
    ir.LE: np.less_equal, ir.GT: np.greater, ir.GE: np.greater_equal, ir.And: np.logical_and,
    ir.Or: np.logical_or,
}  # fmt: skip


def _fma(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp_ftz": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt, "abs": np.abs, "tanh": np.tanh,
    "pow": np.power,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "isnan": np.isnan,
    "isinf": np.isinf, "isfinite": np.isfinite, "hypot": np.hypot, "copysign": np.copysign,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert, "fma": _fma, "if_then_else": np.where,
}  # fmt: skip


def _host(dtype: ir.DType) -> np.dtype[Any]:
    """NumPy type used to evaluate a lane of a type: float64 for all floats."""
    return np.dtype(np.float64) if dtype.is_float else np.dtype(dtype.element.numpy())


def evaluate(expr: ir.Expr, values: Mapping[ir.Var, Any]) -> Any:
    """Evaluate an expression for arrays (or numbers) as values of its variables."""
    with np.errstate(all="ignore"):
        return _value(expr, values)


def _value(expr: ir.Expr, values: Mapping[ir.Var, Any]) -> Any:
    if isinstance(expr, ir.Var) and expr in values:
        return values[expr]
    if isinstance(expr, (ir.IntImm, ir.FloatImm)):
        return np.asarray(expr.value).astype(_host(expr.dtype))
    if isinstance(expr, ir.Broadcast):
        return _value(expr.value, values)  # operations are lane-wise, so one lane suffices
    if isinstance(expr, (ir.BinaryOp, ir.CompareOp, ir.And, ir.Or)):
        return _operation(expr, _value(expr.a, values), _value(expr.b, values))
    if isinstance(expr, ir.Not):
        return np.logical_not(_value(expr.a, values))
    if isinstance(expr, ir.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return _CALLS["if_then_else"](*(_value(p, values) for p in parts))
    if isinstance(expr, ir.Cast):
        return _converted(_value(expr.value, values), expr.dtype)
    if isinstance(expr, ir.Let):
        return _value(expr.body, {**values, expr.var: _value(expr.value, values)})
    if isinstance(expr, ir.Call) and expr.op in _CALLS:
        return _CALLS[expr.op](*(_value(a, values) for a in expr.args))
    raise CannotEvaluate(f"{expr!r} cannot be evaluated")


def _converted(value: Array, dtype: ir.DType) -> Array:
    """Evaluate a cast: float to integer truncates and saturates, NaN becomes 0."""
    if dtype.is_int and not dtype.is_bool and value.dtype.kind == "f":
        whole: Array = np.nan_to_num(np.trunc(value))
        value = np.clip(whole, dtype.min_value, dtype.max_value)
    converted: Array = value.astype(_host(dtype))
    return converted


def _operation(expr: ir.Expr, a: Any, b: Any) -> Any:
    known = _BINARY.get(type(expr))
    if known is not None:
        return known(a, b)
    if isinstance(expr, ir.Div) and expr.dtype.is_float:
        return np.divide(a, b)
    if isinstance(expr, (ir.FloorDiv, ir.FloorMod)) and np.all(b != 0):
        return (np.floor_divide if isinstance(expr, ir.FloorDiv) else np.mod)(a, b)
    raise CannotEvaluate(f"{expr!r} cannot be evaluated, or divides by zero")


# --------------------------------------------------------------------------------------------- laws
def broken_law(reducer: ir.CommReducer) -> str:
    """Description of a counterexample to a law; empty if no sample refutes the reducer."""
    try:
        return _broken_law(reducer)
    except CannotEvaluate as reason:
        return f"its laws cannot be checked: {reason}"


def _broken_law(reducer: ir.CommReducer) -> str:
    rows = _samples(reducer)
    count = len(rows[0])
    one, two = (np.repeat(np.arange(count), count), np.tile(np.arange(count), count))
    x, y = [r[one] for r in rows], [r[two] for r in rows]
    result = _difference(_apply(reducer, x, y), _apply(reducer, y, x))
    if result is not None:
        return _report(
            reducer, "the order of its operands matters", ("f(x, y)", "f(y, x)"), result, (x, y)
        )
    wide = np.repeat(np.arange(count * count), count)
    third = np.tile(np.arange(count), count * count)
    x, y, z = [r[wide] for r in x], [r[wide] for r in y], [r[third] for r in rows]
    left = _apply(reducer, _apply(reducer, x, y), z)
    right = _apply(reducer, x, _apply(reducer, y, z))
    result = _difference(left, right)
    if result is not None:
        return _report(
            reducer,
            "the grouping of its operands matters",
            ("f(f(x, y), z)", "f(x, f(y, z))"),
            result,
            (x, y, z),
        )
    nothing = [np.broadcast_to(_value(e, {}), (count,)) for e in reducer.identity]
    created = _apply(reducer, nothing, rows)
    result = _difference(created, rows)
    if result is not None:
        return _report(
            reducer, "its identity changes a value", ("f(identity, x)", "x"), result, (rows,)
        )
    return ""


def is_neutral(reducer: ir.CommReducer, values: Sequence[ir.Expr]) -> bool:
    """Whether the constants act as identity on all samples."""
    try:
        rows = _samples(reducer)
        nothing = [np.broadcast_to(evaluate(v, {}), rows[0].shape) for v in values]
        return _difference(_apply(reducer, nothing, rows), rows, 1e-12) is None
    except CannotEvaluate:
        return False


def is_idempotent_at(reducer: ir.CommReducer, values: Sequence[ir.Expr]) -> bool:
    """Whether the constants are unchanged when combined with themselves.

    If so, an initial value may enter a reduction any number of times.
    """
    try:
        once = [np.reshape(evaluate(v, {}), (1,)) for v in values]
        return _difference(_apply(reducer, once, once), once, 0.0) is None
    except CannotEvaluate:
        return False


def _apply(reducer: ir.CommReducer, x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    values = dict(zip((*reducer.lhs, *reducer.rhs), (*x, *y), strict=True))
    return [
        np.broadcast_to(np.asarray(evaluate(part, values)).astype(_host(var.type)), x[0].shape)
        for part, var in zip(reducer.result, reducer.lhs, strict=True)
    ]


def _samples(reducer: ir.CommReducer) -> list[Array]:
    """Sample tuples, as one array per component: all combinations, or a fixed random subset."""
    columns = [_values(e) for e in reducer.identity]
    every: list[tuple[Any, ...]] = list(islice(product(*columns), 100_000))
    if len(every) > _MOST:
        chance = np.random.default_rng(7)  # fixed seed
        every = [every[k] for k in sorted(chance.choice(len(every), _MOST, replace=False))]
    return [
        np.array([row[c] for row in every]).astype(_host(e.dtype))
        for c, e in enumerate(reducer.identity)
    ]


def _values(identity: ir.Expr) -> tuple[Any, ...]:
    dtype = identity.dtype
    if dtype.is_bool:
        return (False, True)
    if dtype.is_float:
        return _FLOATS
    low = () if dtype.kind == "uint" else (-3, dtype.min_value)
    return (0, 1, 2, 5, dtype.max_value, *low)


def _difference(
    a: Sequence[Array], b: Sequence[Array], close: float = _CLOSE
) -> tuple[int, list[Any], list[Any]] | None:
    """The first sample where two results differ, with both values; None if all agree."""
    wrong = np.zeros(a[0].shape, np.bool_)
    for p, q in zip(a, b, strict=True):
        same = p == q
        if p.dtype.kind == "f":
            with np.errstate(all="ignore"):
                near = np.abs(p - q) <= close * np.maximum(np.abs(p), np.abs(q))
            near &= np.isfinite(p) & np.isfinite(q)
            same = same | near | (np.isnan(p) & np.isnan(q))
        wrong |= ~same
    if not wrong.any():
        return None
    at = int(np.argmax(wrong))
    return at, [p[at].item() for p in a], [q[at].item() for q in b]


def _report(
    reducer: ir.CommReducer,
    what: str,
    sides: tuple[str, str],
    found: tuple[int, list[Any], list[Any]],
    operands: Sequence[Sequence[Array]],
) -> str:
    at, left, right = found
    given = ", ".join(
        f"{name} = {_shown([column[at].item() for column in values])}"
        for name, values in zip("xyz", operands, strict=False)
    )
    return f"{what}: for {given}, {sides[0]} is {_shown(left)} and {sides[1]} is {_shown(right)}"


def _shown(values: Sequence[Any]) -> str:
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
