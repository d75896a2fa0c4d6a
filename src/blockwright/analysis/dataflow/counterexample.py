"""Numeric evaluation of index expressions, to find counterexamples.

The validator rejects a program only if it can show an instance that fails. Properties that cannot
be proved are tested here: sizes get small values within their stated bounds; loops run all of their
iterations or, if there are too many, the first two, a middle one and the last. Arithmetic is
NumPy's on 64-bit integers, with one row per instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np

from blockwright import ir
from blockwright.analysis.facts import declared_bounds, symbols_of

Array = np.ndarray[Any, Any]
Env = dict[ir.Var, Any]

_BINARY: dict[type[ir.Expr], Callable[[Any, Any], Any]] = {
    ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.Min: np.minimum,
    ir.Max: np.maximum, ir.EQ: np.equal, ir.NE: np.not_equal, ir.LT: np.less, ir.LE: np.less_equal,
    ir.GT: np.greater, ir.GE: np.greater_equal, ir.And: np.logical_and, ir.Or: np.logical_or,
}  # fmt: skip
_DIVISIONS: dict[type[ir.Expr], Callable[[Any, Any], Any]] = {
    ir.FloorDiv: np.floor_divide, ir.FloorMod: np.mod, ir.Mod: np.fmod,
    ir.Div: lambda a, b: (a - np.fmod(a, b)) // b,
}  # fmt: skip


INSTANCES = 1 << 13
"""Number of instances that are evaluated; of more, some iterations of each loop are omitted."""


class DependsOnMore(Exception):
    """The expression depends on more than the given variables."""


class VarRange(NamedTuple):
    """A variable that ranges over [low, low + extent)."""

    var: ir.Var
    low: ir.Expr
    extent: ir.Expr


def value_of(expr: ir.Expr, env: Mapping[ir.Var, Any]) -> Any:
    """Evaluate an index expression or condition, once per row of `env`.

    Raises `DependsOnMore` for memory, floats, calls, and variables missing in `env`.
    """
    match expr:
        case ir.IntImm():
            return expr.value
        case ir.Var():
            if expr not in env:
                raise DependsOnMore
            return env[expr]
        case ir.Cast():
            if not (expr.dtype.is_int or expr.dtype.is_bool) or expr.value.dtype.is_float:
                raise DependsOnMore
            return value_of(expr.value, env)
        case ir.Not():
            return np.logical_not(value_of(expr.a, env))
        case ir.Select():
            return _choice(expr.condition, expr.true_value, expr.false_value, env)
        case ir.Call(op="if_then_else"):
            return _choice(expr.args[0], expr.args[1], expr.args[2], env)
        case ir.Call(op="likely"):
            return value_of(expr.args[0], env)
        case ir.BinaryOp() | ir.CompareOp() | ir.And() | ir.Or():
            return _binary(expr, value_of(expr.a, env), value_of(expr.b, env))
        case _:
            raise DependsOnMore


def _choice(condition: ir.Expr, yes: ir.Expr, no: ir.Expr, env: Mapping[ir.Var, Any]) -> Any:
    where = cast("Callable[..., Any]", np.where)
    return where(value_of(condition, env), value_of(yes, env), value_of(no, env))


def _binary(expr: ir.BinaryOp | ir.CompareOp | ir.And | ir.Or, a: Any, b: Any) -> Any:
    apply = _BINARY.get(type(expr))
    if apply is not None:
        return apply(a, b)
    divide = _DIVISIONS.get(type(expr))
    if divide is None or np.any(np.equal(b, 0)):
        raise DependsOnMore
    return divide(a, b)


def end_lanes(indices: Sequence[ir.Expr]) -> list[Sequence[ir.Expr]]:
    """The indices of an element; for a vector, those of its first and last lane."""
    lanes = max((i.dtype.lanes for i in indices), default=1)
    if lanes == 1:
        return [indices]
    return [[_lane(i, lane) for i in indices] for lane in (0, lanes - 1)]


def _lane(index: ir.Expr, lane: int) -> ir.Expr:
    if isinstance(index, ir.Ramp):
        return ir.add(index.base, ir.mul(index.stride, ir.const(lane, index.stride.dtype)))
    return index.value if isinstance(index, ir.Broadcast) else index


def sizes_to_try(func: ir.PrimFunc) -> list[Env]:
    """Several assignments of all symbolic sizes, within their stated bounds."""
    symbols = [v for v in symbols_of(func) if v.type.is_int]
    if not symbols:
        return [{}]
    tries: list[Env] = []
    for base in (5, 3, 16):
        env: Env = {}
        for position, var in enumerate(symbols):
            low, high = declared_bounds(func, var)
            value = max(base + position, low + base - 3)
            env[var] = value if high is None else min(value, high)
        tries.append(env)
    return tries


class Instances(NamedTuple):
    """Rows of variable values; `complete` if no instance was omitted."""

    env: Env
    rows: int
    complete: bool

    def where(self, mask: Any) -> Instances:
        """The rows for which a condition holds."""
        keep = np.flatnonzero(np.broadcast_to(mask, (self.rows,)))
        env = _rows(self.env, keep)
        return Instances(env, len(keep), self.complete)

    def at(self, row: int) -> Env:
        """One row as plain integers."""
        return {v: int(x[row]) if is_array(x) else x for v, x in self.env.items()}


def is_array(value: Any) -> TypeGuard[Array]:
    """Whether a value has one entry per row."""
    return isinstance(value, np.ndarray)


def _rows(env: Env, chosen: Array) -> Env:
    return {v: x[chosen] if is_array(x) else x for v, x in env.items()}


def instances(spans: Iterable[VarRange], known: Env, limit: int = INSTANCES) -> Instances:
    """Enumerate the values of the variables of `spans`, in order, given those in `known`.

    Raises `DependsOnMore` if a bound cannot be evaluated.
    """
    env: Env = dict(known)
    rows, complete = 1, True
    for span in spans:
        low = np.broadcast_to(value_of(span.low, env), (rows,))
        count = np.broadcast_to(value_of(span.extent, env), (rows,))
        top = max(0, int(count.max(initial=0)))
        if rows * top <= limit:
            offsets: Array = np.tile(np.arange(top), (rows, 1))
        else:
            complete = False
            picks = [np.zeros_like(count), np.ones_like(count), count // 2, count - 1]
            offsets = np.stack(picks, axis=1)
            if rows * 4 > limit:
                offsets = offsets[:, ::3] if rows * 2 <= limit else offsets[:, :1]
        valid = (offsets < count[:, None]) & (offsets >= 0)
        valid[:, 1:] &= offsets[:, 1:] != offsets[:, :-1]
        source, column = np.nonzero(valid)
        env = _rows(env, source)
        env[span.var] = (low[source] + offsets[source, column]).astype(np.int64)
        rows = len(source)
    return Instances(env, rows, complete)


def shown(env: Mapping[ir.Var, Any], variables: Iterable[ir.Var]) -> str:
    """Text such as `i = 3, j = 0`, in the given order."""
    pairs = [f"{v.name} = {env[v]}" for v in dict.fromkeys(variables) if v in env]
    return ", ".join(pairs)
