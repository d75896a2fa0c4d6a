"""Local functions and function values: called by name, from tuples, chosen by branches, wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from fuzzing.functions.scope import (
    Body,
    Inner,
    Scope,
    child,
    indented,
    is_plain,
    renamed,
    structure,
)
from fuzzing.functions.structures import bool_of, declared
from fuzzing.graphs.program import Array, Run, Value

Unary = Callable[[Array], Any]


class Local(msgspec.Struct, frozen=True):
    """A local function of one tensor: its text, its result in sizes of the caller, its meaning."""

    name: str
    lines: list[str]
    result: Value
    function: Callable[[Run], Unary]


def local_function(d: Scope, value: Value, alike: Value | None = None) -> Local | None:
    """A nested function that takes a value and uses values and symbols around it.

    Arguments: `alike` is a result of the same type and sizes; None is returned if there is none.
    """
    name, param_name = f"g{d.name()[1:]}", d.name()
    names: dict[str, str] = {}
    dims = list(value.dims)
    run = child(d.run)
    if dims and d.chance.random() < 0.5:  # a symbol of its own
        axis = d.chance.randrange(len(dims))
        symbol = d.symbol(param_name, d.run.size(dims[axis]))
        names[symbol] = dims[axis]
        run.sizes[symbol] = d.run.size(dims[axis])
        dims[axis] = symbol
    param = Value(param_name, tuple(dims), value.dtype)
    run.values[param.name] = d.run[value.name]
    inner = Inner(d, run, [param, *d.values])
    inner.steps(d.chance.randint(1, 3), 0.1)
    own = [v for v in inner.values if v not in d.values] or [param]
    fits = [v for v in own if not _symbols_of(v) - set(names) - _visible(d)] or [param]
    if alike is not None:
        wanted = (alike.dims, alike.dtype)
        fits = [v for v in inner.values if (_outside(v.dims, names), v.dtype) == wanted]
        if not fits:
            return None
    result = d.chance.choice(fits)
    body = inner.body()
    head = f"def {name}({param.name}: {declared(param)}) -> {declared(result)}:"
    lines = ["@R.function", head] if d.chance.random() < 0.5 else [head]
    own_symbols = [f"{s} = T.int64()" for s in names]
    lines += indented([*own_symbols, *inner.lines(), f"return {result.name}"])

    def function(r: Run) -> Unary:
        def run_body(argument: Array) -> Any:
            inside = child(r)
            inside.values[param.name] = argument
            for symbol, dim in names.items():
                inside.sizes[symbol] = r.size(dim)
            return body.execute(inside)[result.name]

        return run_body

    outside = Value("", _outside(result.dims, names), result.dtype)
    return Local(name, lines, outside, function)


def _outside(dims: Sequence[str], names: dict[str, str]) -> tuple[str, ...]:
    """Dimensions in sizes of the caller."""
    return tuple(dim[1:-1] if dim[1:-1].isalnum() else dim for dim in renamed(tuple(dims), names))


def _symbols_of(value: Value) -> set[str]:
    return {
        w
        for dim in value.dims
        for w in dim.replace("(", " ").replace(")", " ").split()
        if w.startswith("s") and w[1:].isdigit()
    }


def _visible(d: Scope) -> set[str]:
    """Symbols of checked casts that are bound in this scope."""
    return {s for v in d.values for s in _symbols_of(v)}


@structure
def closure(d: Scope) -> None:
    """A nested function that uses values and symbols around it, called directly or as a value."""
    value = d.pick(lambda v: bool(v.dims) and is_plain(v))
    local = None if value is None else local_function(d, value)
    if value is None or local is None:
        return
    callee, more = local.name, ""
    kind = d.chance.random()
    if kind < 0.25:
        callee = d.name()
        more = f"\n{callee}_ = ({local.name}, {value.name})\n{callee} = {callee}_[0]"
    whole = d.name()
    before = "\n".join(local.lines) + more + "\n"
    if 0.25 <= kind < 0.4:
        line = f"{whole}_ = cls.apply({local.name}, {value.name})\n"
        line += f"{whole} = R.match_cast({whole}_, {local.result.info})"
    else:
        line = f"{whole} = {callee}({value.name})"
    if d.define(whole, before + line, lambda r: local.function(r)(r[value.name])):
        d.add(Value(whole, local.result.dims, local.result.dtype))


# ------------------------------------------------------------------------ functions from branches
class _Side(msgspec.Struct, frozen=True):
    """A branch whose value is a function: its text, what it computes first, the function."""

    lines: list[str]
    body: Body
    local: Local


@structure
def chosen(d: Scope) -> None:
    """A function that a branch chooses, alone or in a tuple; it is called once, twice, or wrapped
    in others by a recursion."""
    condition = d.pick(lambda v: v.dtype == "bool") or _comparison(d)
    value = d.pick(lambda v: bool(v.dims) and is_plain(v))
    matrix = d.pick(_is_matrix)
    wraps = matrix is not None and d.chance.random() < 0.5
    if wraps:
        value = matrix
    if condition is None or value is None:
        return
    test = d.bind((), "bool", *bool_of(d, condition))
    if test is None:
        return
    name, pair = d.name(), d.chance.random() < 0.3
    first = _side(d, value, name, pair, value if wraps else None)
    second = None if first is None else _side(d, value, name, pair, first.local.result)
    if first is None or second is None:
        return
    lines = [f"if {test.name}:", *indented(first.lines), "else:", *indented(second.lines)]
    result = first.local.result
    callee = f"{name}[0]" if pair else name
    if pair:
        lines.append(f"{name}f = {name}[0]")
        callee = f"{name}f"

    def function(r: Run) -> Unary:
        side = first if r[test.name] else second
        return side.local.function(side.body.execute(child(r)))

    whole = d.name()
    call, compute = _called(d, callee, function, value, result)
    lines += [f"{whole}_ = {call}", f"{whole} = R.match_cast({whole}_, {result.info})"]
    if d.define(whole, "\n".join(lines), compute):
        d.add(Value(whole, result.dims, result.dtype))


def _comparison(d: Scope) -> Value | None:
    """Whether the elements of two values are equal."""
    one = d.pick()
    if one is None:
        return None
    other = d.pick(lambda v: (v.dims, v.dtype) == (one.dims, one.dtype)) or one
    text = f"R.not_equal({one.name}, {other.name})"
    return d.bind(one.dims, "bool", text, lambda r: np.not_equal(r[one.name], r[other.name]))


def _side(d: Scope, value: Value, name: str, pair: bool, alike: Value | None) -> _Side | None:
    inner = Inner(d, child(d.run), d.values)
    inner.steps(d.chance.randint(0, 2))
    local = local_function(inner, value, alike)
    if local is None or not is_plain(local.result):
        return None
    chosen_value = f"({local.name}, {value.name})" if pair else local.name
    lines = [*inner.lines(), *local.lines, f"{name} = {chosen_value}"]
    return _Side(lines, inner.body(), local)


def _called(
    d: Scope, callee: str, function: Callable[[Run], Unary], value: Value, result: Value
) -> tuple[str, Callable[[Run], Any]]:
    """A call of a function value, and what it computes."""
    same = (result.dims, result.dtype) == (value.dims, value.dtype)
    count = d.pick(lambda v: len(v.dims) == 1 and d.run.size(v.dims[0]) <= 3)
    kind = d.chance.random()
    if same and kind < 0.3:
        return f"{callee}({callee}({value.name}))", lambda r: function(r)(
            function(r)(r[value.name])
        )
    if same and kind < 0.7 and count is not None and _is_matrix(value):
        name = d.fresh_function()
        d.functions[name] = _wrapping(name, value.dtype, count.dtype)

        def compute(r: Run) -> Any:
            wrapped = function(r)
            for _ in range(len(r[count.name])):
                wrapped = _wrapped(wrapped)
            return wrapped(r[value.name])

        return f"cls.{name}({callee}, {value.name}, {count.name})", compute
    if kind < 0.8:
        stated = f"sinfo_args={result.info}"
        text = f"R.invoke_closure({callee}, ({value.name},), {stated})"
        return text, lambda r: function(r)(r[value.name])
    return f"{callee}({value.name})", lambda r: function(r)(r[value.name])


def _is_matrix(value: Value) -> bool:
    """Whether a recursion can wrap functions of a value."""
    return value.dtype in ("int32", "int64") and len(value.dims) == 2 and is_plain(value)


def _wrapped(inner: Unary) -> Unary:
    return lambda v: inner(v) + v


def _wrapping(name: str, dtype: str, count: str) -> str:
    """A recursive function that wraps a function in another for each element of a vector."""
    x, vector = f'R.Tensor(("n", "m"), "{dtype}")', f'R.Tensor(("k",), "{count}")'
    inner = f'R.Tensor((n, m), "{dtype}")'
    return f"""@R.function
def {name}(f: R.Callable, x: {x}, s: {vector}) -> {x}:
    n = T.int64()
    m = T.int64()
    k = T.int64()
    left = R.full(R.shape([]), fill_value=k, dtype="int64")
    done = R.equal(left, R.const(0, "int64"))
    if done:
        y = f(x)
        a = R.match_cast(y, {inner})
        z = a
    else:
        j = T.int64()
        rest = R.slice(s, axis=0, begin=1, end=k)
        less = R.match_cast(rest, R.Tensor((j,), "{count}"))
        @R.function
        def w(v: {x}):
            a = f(v)
            u = R.match_cast(a, {inner})
            return R.add(u, v)
        z = cls.{name}(w, x, less)
    return z"""
