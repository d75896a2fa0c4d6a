"""Conditions on sizes: declared ranges of shape parameters, and what operators require."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.functions.scope import Scope, is_plain, structure
from fuzzing.graphs.program import Array, Rejected, Run, Value


@structure
def ranged(d: Scope) -> None:
    """A function with a shape parameter that is declared to be in a range."""
    size = d.chance.choice(("n", "m", "n + 1", "m * 2", "n - 1", "m - 2", "n - m", "n // 2"))
    now = d.run.size(size)
    if now < 0:
        return
    low = max(0, now - d.chance.randint(0, 3))
    # A range of one number would be deduced as that number, not as the size that is passed.
    high = now + d.chance.randint(low == now, 3) if d.chance.random() < 0.7 else None
    bounds = f'"tir_var_lower_bound": {{"k": {low}}}'
    if high is not None:
        bounds += f', "tir_var_upper_bound": {{"k": {high}}}'
    name = d.fresh_function()
    d.functions[name] = "\n".join(
        [
            "@R.function(private=True)",
            f'def {name}(s: R.Shape(["k"])):',
            "    k = T.int64()",
            f"    R.func_attr({{{bounds}}})",
            '    return R.arange(0, k, 1, "int64")',
        ]
    )

    def compute(r: Run) -> Any:
        given = r.size(size)
        if given < low or (high is not None and given > high):
            raise Rejected
        return np.arange(given)

    d.bind((size,), "int64", f"cls.{name}(R.shape([{size}]))", compute)


@structure
def conditional(d: Scope) -> None:
    """An operator that not all sizes of an axis fit."""
    picked = d.pick(lambda v: bool(v.dims) and not v.dims[0].isdigit() and is_plain(v))
    if picked is not None:
        d.chance.choice((_rows, _mirrored, _windows))(d, picked, picked.dims[0])


def _applied(
    d: Scope,
    value: Value,
    dims: tuple[str, ...],
    text: str,
    fits: Callable[[int], bool],
    result: Callable[[Array], Any],
) -> None:
    """Bind an operator that takes a value if its first size fits."""

    def compute(r: Run) -> Any:
        if not fits(len(r[value.name])):
            raise Rejected
        return result(r[value.name])

    if fits(len(d.run[value.name])):
        d.bind(dims, value.dtype, text, compute)


def _rows(d: Scope, value: Value, size: str) -> None:
    """The first axis in parts of a fixed number of elements."""
    count = d.chance.randint(2, 3)
    rest = list(value.dims[1:])
    text = f"R.reshape({value.name}, (-1, {', '.join([str(count), *rest])}))"
    dims = (f"({size}) // {count}", str(count), *rest)
    if not all(part.isdigit() for part in rest):
        return  # an axis of no elements would leave -1 undetermined
    _applied(
        d, value, dims, text,
        lambda n: n % count == 0,
        lambda x: x.reshape(len(x) // count, count, *x.shape[1:]).copy(),
    )  # fmt: skip


def _mirrored(d: Scope, value: Value, size: str) -> None:
    before, after = d.chance.randint(0, 3), d.chance.randint(1, 3)
    width = ((before, after), *((0, 0) for _ in value.dims[1:]))
    text = f'R.pad({value.name}, pad_width={width}, pad_mode="reflect")'
    dims = (f"({size}) + {before + after}", *value.dims[1:])
    _applied(
        d, value, dims, text,
        lambda n: max(before, after) < n,
        lambda x: np.pad(x, width, mode="reflect"),
    )  # fmt: skip


def _windows(d: Scope, value: Value, size: str) -> None:
    """The largest elements of windows along the only axis."""
    taps, step = d.chance.randint(2, 4), d.chance.randint(1, 3)
    if len(value.dims) != 1 or value.dtype == "bool":
        return
    text = (
        f"R.reshape(R.nn.max_pool1d(R.reshape({value.name}, (1, 1, {size})), pool_size={taps}, "
        f"strides={step}), (-1,))"
    )
    dims = (f"(({size}) - {taps}) // {step} + 1",)
    _applied(
        d, value, dims, text,
        lambda n: n >= taps,
        lambda x: np.lib.stride_tricks.sliding_window_view(x, taps)[::step].max(-1),
    )  # fmt: skip
