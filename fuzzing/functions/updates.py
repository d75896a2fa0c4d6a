"""Random updates in place: calls that overwrite an argument, often passed a second time."""

from __future__ import annotations

import numpy as np

from fuzzing.functions.scope import Scope, structure
from fuzzing.graphs.program import Array, Run, Value

MIXED = """    @T.prim_func(private=True)
    def mixed(x: T.handle, y: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "int32")
        Y = T.match_buffer(y, (n, m), "int32")
        for i, j in T.grid(n, m):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = X[vi, vj] * 3 + Y[n - 1 - vi, m - 1 - vj]
"""
"""The program of the calls; `_mixed` states what it computes."""


def _mixed(x: Array, y: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(x * np.int32(3) + y[::-1, ::-1], "int32")


@structure
def update(d: Scope) -> None:
    """Overwrite a new value or a view of any value; later values may use its views.

    The second argument is the same value, another name or a view of it, or any other value. Only in
    `main`: elsewhere the memory of the caller is not known (BW425).
    """
    a = d.pick(lambda v: len(v.dims) == 2 and v.dtype == "int32")
    if a is None or d.depth:
        return
    dims = f"R.shape([{', '.join(a.dims)}])"
    flat = f"R.shape([({a.dims[0]}) * ({a.dims[1]})])"
    target, view = d.name(), d.name()
    if d.chance.random() < 0.5:
        d.define(target, f"{target} = R.add({a.name}, {a.name})", lambda r: r[a.name] + r[a.name])
    else:
        text = f"{target} = R.reshape(R.reshape({a.name}, {flat}), {dims})"
        d.define(target, text, lambda r: r[a.name].copy())
    text = f"{view} = R.reshape(R.reshape({target}, {flat}), {dims})"
    d.define(view, text, lambda r: r[target].copy())
    second = d.chance.choice([target, _alias(d, target), view, a.name])
    note = Value("", a.dims, "int32").info
    call = f"R.call_tir_inplace(cls.mixed, ({target}, {second}), [0], {note})"
    d.bind(a.dims, "int32", call, lambda r: _mixed(r[target], r[second]))
    if d.chance.random() < 0.5:
        d.add(Value(view, a.dims, "int32"))


def _alias(d: Scope, target: str) -> str:
    alias = d.name()

    def same(r: Run) -> Array:
        return r[target]

    d.define(alias, f"{alias} = {target}", same)
    return alias
