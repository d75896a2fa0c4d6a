"""Tensors of sizes that only a branch or a called function knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.functions.scope import Scope, indented, is_plain, structure
from fuzzing.functions.structures import bool_of
from fuzzing.graphs.program import Array, Inexact, Run, Value

_Change = tuple[str, Callable[[Array], Any]]
_SUMMED = ("int32", "int64", "uint32", "float32", "float64")
_ROWS = 64


def _change(d: Scope) -> _Change:
    """A vector of another size than the vector `x`: lines that bind it to `z`, and its meaning."""
    kind = d.chance.choice(("same", "twice", "part", "unique", "positive", "added"))
    if kind == "twice":
        return "{z} = R.concat(({x}, {x}), axis=0)", lambda x: np.concatenate((x, x))
    if kind == "part":
        end = d.chance.randint(0, 4)
        return f"{{z}} = R.slice({{x}}, axis=0, begin=0, end={end})", lambda x: x[:end].copy()
    if kind == "unique":
        return "{z} = R.unique({x})", np.unique
    if kind == "positive":
        text = (
            '{z}q = R.astype(R.greater({x}, R.const(0, "{dtype}")), "int64")\n'
            "{z}s = R.tensor_to_shape(R.reshape(R.sum({z}q), (1,)))\n"
            '{z} = R.zeros({z}s, dtype="{dtype}")'
        )
        return text, lambda x: np.zeros(int((x > 0).sum()), x.dtype)
    if kind == "added":
        return "{z} = R.add({x}, {x})", lambda x: x + x
    return "{z} = {x}", lambda x: x


def _lines(change: _Change, x: str, z: str, dtype: str) -> list[str]:
    return indented(change[0].format(x=x, z=z, dtype=dtype).split("\n"))


def _vector(d: Scope) -> Value | None:
    return d.pick(
        lambda v: (
            len(v.dims) == 1
            and v.dtype in _SUMMED
            and is_plain(v)
            and 0 < d.run.size(v.dims[0]) <= _ROWS
        )
    )


def _sum(d: Scope, name: str, dtype: str, compute: Callable[[Run], Array]) -> None:
    """Bind the sum of a vector of a size that is not known."""

    def total(r: Run) -> Any:
        found = compute(r)
        if found.size > 1 << 14:
            raise Inexact
        return np.asarray(found.sum(dtype=dtype))

    d.bind((), dtype, f"R.sum({name})", total)


@structure
def unequal(d: Scope) -> None:
    """`if` whose branches give vectors of different sizes."""
    value, condition = _vector(d), d.pick(lambda v: v.dtype == "bool")
    if value is None or condition is None:
        return
    test = d.bind((), "bool", *bool_of(d, condition))
    if test is None:
        return
    name, sides = d.name(), [_change(d) for _ in range(2)]
    parts = [_lines(side, value.name, name, value.dtype) for side in sides]
    text = "\n".join([f"if {test.name}:", *parts[0], "else:", *parts[1]])

    def compute(r: Run) -> Any:
        return sides[0 if r[test.name] else 1][1](r[value.name])

    if d.define(name, text, compute):
        _sum(d, name, value.dtype, lambda r: r[name])


@structure
def growing(d: Scope) -> None:
    """A function that calls itself with vectors of other sizes, and returns one."""
    value = _vector(d)
    if value is None:
        return
    name, times, changes = d.fresh_function(), d.chance.randint(0, 3), [_change(d) for _ in "abc"]
    info = f'R.Tensor(ndim=1, dtype="{value.dtype}")'
    d.functions[name] = "\n".join(
        [
            "@R.function(private=True)",
            f'def {name}(x: {info}, k: R.Tensor((), "int64")) -> {info}:',
            '    if R.equal(k, R.const(0, "int64")):',
            *indented(_lines(changes[2], "x", "z", value.dtype)),
            "    else:",
            *indented(_lines(changes[0], "x", "y", value.dtype)),
            f'        w = cls.{name}(y, R.subtract(k, R.const(1, "int64")))',
            *indented(_lines(changes[1], "w", "z", value.dtype)),
            "    return z",
        ]
    )

    def compute(r: Run) -> Any:
        def call(x: Array, k: int) -> Any:
            return changes[1][1](call(changes[0][1](x), k - 1)) if k else changes[2][1](x)

        return call(r[value.name], times)

    result = d.name()
    text = f'{result} = cls.{name}({value.name}, R.const({times}, "int64"))'
    if d.define(result, text, compute):
        _sum(d, result, value.dtype, lambda r: r[result])
