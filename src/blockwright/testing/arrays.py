"""Random arguments for programs: values of symbolic sizes, and arrays."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.interp.sizes import evaluate, index_limits
from blockwright.ir.attributes import LOWER_BOUND, NOALIAS, UPPER_BOUND

Array = np.ndarray[Any, Any]
MOST = 9
"""Largest value drawn for a symbolic size."""
_AT_ENDS = 0.25
"""Fraction of integers drawn near the limits of their type."""
_ONE_MEMORY = 0.6
"""Fraction of parameters that share memory with an earlier one, if they may alias."""


def random_sizes(func: ir.PrimFunc, seed: int) -> dict[str, int]:
    """A value for each symbolic size, within the declared bounds and at most 9."""
    chance = random.Random(seed)
    low: dict[str, int] = func.attrs.get(LOWER_BOUND, {})
    high: dict[str, int] = func.attrs.get(UPPER_BOUND, {})
    names = sorted(
        {v.name for b in func.buffers for n in b.shape for v in ir.collect(n, ir.Var)}
        | {p.name for p in func.params if p.dtype.is_int}
    )
    return {
        n: chance.randint(low.get(n, 1), max(low.get(n, 1), min(MOST, high.get(n, MOST))))
        for n in names
    }


def random_scalar(param: ir.Var, seed: int) -> float | bool:
    """A value for a scalar parameter that is not an integer: of order one if it is a float."""
    chance = random.Random(f"{seed} {param.name}")
    return chance.random() < 0.5 if param.dtype.is_bool else chance.gauss()


def small_sizes(func: ir.PrimFunc, seed: int) -> list[dict[str, int]]:
    """Sizes that make tiles empty or partial: the minimum of each, and 0 to 2 more."""
    usual = random_sizes(func, seed)
    low: dict[str, int] = func.attrs.get(LOWER_BOUND, {})
    if not usual:
        return []
    chance = random.Random(f"{seed} small")
    smallest = {n: min(size, low.get(n, 1)) for n, size in usual.items()}
    return [
        smallest,
        {n: min(usual[n], size + chance.randint(0, 2)) for n, size in smallest.items()},
    ]


def make_arrays(
    func: ir.PrimFunc, seed: int, sizes: Mapping[str, int] | None = None
) -> list[Array]:
    """Draw random arguments for a program.

    Floats are of order one, row numbers of gathers in range, other integers small or near the
    limits of their types. Outputs are filled with random values too, so that missing writes are
    detected. For a function with "tir.noalias": False, some float parameters share one array.
    """
    known = random_sizes(func, seed) if sizes is None else sizes
    rng = np.random.default_rng(seed)
    limits = index_limits(func, known)
    result = [
        _fill(rng, b, tuple(evaluate(n, known) for n in b.shape), limits.get(b))
        for b in func.buffers
    ]
    return _joined(result, seed) if func.attrs.get(NOALIAS, True) is False else result


def _joined(arrays: list[Array], seed: int) -> list[Array]:
    """Replace some arrays by an earlier one of the same type and shape."""
    chance = random.Random(f"{seed} one memory")
    joined: list[Array] = []
    for array in arrays:
        alike = [a for a in joined if a.dtype == array.dtype and a.shape == array.shape]
        one = alike and array.dtype.kind == "f" and chance.random() < _ONE_MEMORY
        joined.append(chance.choice(alike) if one else array)
    return joined


def copied(arrays: Sequence[Array]) -> list[Array]:
    """Copy arguments; aliases of one array stay aliases."""
    copies = {id(a): a.copy() for a in arrays}
    return [copies[id(a)] for a in arrays]


class Fenced:
    """Copies of arguments in separate memory, with guard bytes around each.

    Attributes:
        arrays: the copies; aliases of one array stay aliases.
    """

    def __init__(self, given: Sequence[Array]) -> None:
        self._around: dict[int, Array] = {}
        copies: dict[int, Array] = {}
        for array in given:
            if id(array) in copies:
                continue
            whole = np.full(array.nbytes + 2 * _FENCE, _UNTOUCHED, np.uint8)
            inside = whole[_FENCE : _FENCE + array.nbytes].view(array.dtype).reshape(array.shape)
            inside[...] = array
            copies[id(array)], self._around[id(array)] = inside, whole
        self.arrays = [copies[id(array)] for array in given]
        self._names = [id(array) for array in given]

    def broken(self) -> list[int]:
        """Positions of arguments whose guard bytes have been overwritten."""
        return [k for k, name in enumerate(self._names) if _is_broken(self._around[name])]


_FENCE = 64
"""Guard bytes on each side: the size of the longest vector."""
_UNTOUCHED = 0xA5


def _is_broken(whole: Array) -> bool:
    fences = np.concatenate([whole[:_FENCE], whole[len(whole) - _FENCE :]])
    return bool((fences != _UNTOUCHED).any())


def _fill(
    rng: np.random.Generator, buffer: ir.Buffer, shape: tuple[int, ...], limit: int | None
) -> Array:
    dtype = buffer.dtype
    if dtype.lanes > 1:
        shape = (*shape, dtype.lanes)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        low = 0 if limit is not None or dtype.kind == "uint" else max(-8, dtype.min_value)
        high = min(7, dtype.max_value) + 1 if limit is None else max(limit, 1)
        small = rng.integers(low, high, shape).astype(dtype.numpy())
        if limit is not None or dtype.bits < 8:
            return small
        ends = np.array(
            [n for d in range(3) for n in (dtype.min_value + d, dtype.max_value - d)], dtype.numpy()
        )
        return np.where(rng.random(shape) < _AT_ENDS, rng.choice(ends, shape), small)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy())
