"""Test programs that could not be compared by proof: run both on random and special values.

Integers must be equal. Floats must be equal bit by bit (any NaN equals any NaN) if the program that
states the meaning sums nothing: then docs/semantics.md leaves no freedom. Otherwise sums may be
regrouped and products contracted, so results may differ by rounding. Inputs of small whole numbers
are then compared exactly as well: on them every order of a sum of products gives the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from blockwright import ir
from blockwright.interp import Limit, interpret
from blockwright.interp.sizes import evaluate, index_limits
from blockwright.support import InterpretError
from blockwright.verify.prove.replay import NOT_RUN, TOLERANCE, default_sizes
from blockwright.verify.verdict import Counterexample

Array = np.ndarray[Any, Any]
_FINFO: Callable[[Any], Any] = ml_dtypes.finfo
ITERATIONS = 400_000
"""Loop iterations that all runs together may take."""
ROUNDS = 4
"""Inputs of each kind: small whole numbers, numbers of the whole range, special values."""
_RING = (ir.Add, ir.Sub, ir.Mul, ir.Min, ir.Max)


class Tested:
    """Result of the tests.

    Attributes:
        count: inputs on which both programs ran and agreed.
        counterexample: inputs on which they differ, or None.
        why: the reason why a program could not be run, or "".
    """

    def __init__(self) -> None:
        self.count = 0
        self.counterexample: Counterexample | None = None
        self.why = ""


def tested(before: ir.PrimFunc, after: ir.PrimFunc, regroups: bool) -> Tested:
    """Run both programs on inputs of every kind until they differ.

    Args:
        regroups: whether the meaning leaves the order of float sums, and contraction, open.
    """
    result = Tested()
    limit = Limit(ITERATIONS)
    sizes = default_sizes(before, {})
    whole = _whole_sums(before, sizes)
    signs = not (ir.collect(before.body, ir.Min) or ir.collect(before.body, ir.Max))
    for kind in ("whole", "random", "special"):
        exact = not regroups or (kind == "whole" and whole)
        for seed in range(ROUNDS):
            try:
                arrays = inputs(before, sizes, kind, seed)
                scalars = tuple(
                    sizes.get(p.name, 1) if p.dtype.is_int else 1.5 for p in _scalars(before)
                )
                expected = _run(before, arrays, scalars, limit)
            except InterpretError as error:
                result.why = error.message
                continue  # no reference result
            try:
                found = _run(after, arrays, scalars, limit)
                difference = _difference(before, expected, found, exact, signs)
            except InterpretError as error:
                if error.code in NOT_RUN:
                    result.why = error.message
                    return result
                difference = f"the implementation fails: {error.message}"
            if difference is not None:
                result.counterexample = Counterexample(sizes, scalars, arrays, difference)
                return result
            result.count += 1
    return result


def difference_on(
    before: ir.PrimFunc, after: ir.PrimFunc, arrays: tuple[Array, ...]
) -> Counterexample | None:
    """The difference of two programs without scalar parameters on given inputs, compared exactly.

    Raises: InterpretError if one of them cannot be run.
    """
    limit = Limit(ITERATIONS)
    expected, found = (_run(func, arrays, (), limit) for func in (before, after))
    difference = _difference(before, expected, found, True)
    return None if difference is None else Counterexample({}, (), arrays, difference)


def regroups(meaning: ir.PrimFunc) -> bool:
    """Whether a program leaves open how floats are rounded: sums over iterators, contraction."""
    leaves = ir.blocks(meaning.root.body)
    reduces = any(it.iter_type is ir.IterType.REDUCE for block in leaves for it in block.iter_vars)
    contracted = any(
        isinstance(side, ir.Mul)
        for node in (*ir.collect(meaning.body, ir.Add), *ir.collect(meaning.body, ir.Sub))
        for side in (node.a, node.b)
        if node.dtype.is_float
    )
    return has_floats(meaning) and (reduces or contracted)


def has_floats(func: ir.PrimFunc) -> bool:
    """Whether a program computes with floats."""
    return any(expr.dtype.is_float for expr in ir.collect(func.body, ir.Expr))


def _scalars(func: ir.PrimFunc) -> list[ir.Var]:
    handles = {v for v, _ in func.buffer_map}
    return [p for p in func.params if p not in handles]


def _run(
    func: ir.PrimFunc, arrays: tuple[Array, ...], scalars: tuple[int | float, ...], limit: Limit
) -> list[Array]:
    copies = [a.copy() for a in arrays]
    handles = {v for v, _ in func.buffer_map}
    rest, numbers = iter(copies), iter(scalars)
    interpret(func, *(next(rest if p in handles else numbers) for p in func.params), limit=limit)
    return copies


def _difference(
    func: ir.PrimFunc, expected: list[Array], found: list[Array], exact: bool, signs: bool = True
) -> str | None:
    for buffer, x, y in zip(func.buffers, expected, found, strict=True):
        wrong = np.argwhere(_differ(x, y, exact, signs))
        if len(wrong):
            at = tuple(int(k) for k in wrong[0])
            return f"{buffer.name}{list(at)} must be {x[at]}, but is {y[at]}"
    return None


def _differ(expected: Array, found: Array, exact: bool, signs: bool) -> Array:
    """Which elements differ; with `signs`, zeros of different signs do where sums are exact."""
    if expected.dtype.kind in "iub":
        return np.asarray(expected != found)
    bits = np.dtype(f"uint{8 * expected.itemsize}")
    x, y = expected.astype(np.float64), found.astype(np.float64)
    same = (np.isnan(x) & np.isnan(y)) | (expected.view(bits) == found.view(bits))
    if exact:
        return ~(same if signs else same | (x == y))
    scale = max(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= TOLERANCE * scale
    return ~(same | near | (x == y))


def _whole_sums(func: ir.PrimFunc, sizes: Mapping[str, int]) -> bool:
    """Whether small whole numbers give exact results in every order: sums of a few products."""
    values = [n for s in ir.collect(func.body, ir.BufferStore) for n in ir.walk(s.value)]
    operations = [n for n in values if isinstance(n, (ir.BinaryOp, ir.Call)) and n.dtype.is_float]
    if any(not isinstance(n, _RING) for n in operations):
        return False
    if any(isinstance(n, ir.FloatImm) and not n.value.is_integer() for n in values):
        return False
    terms = 1
    for block in ir.blocks(func.body):
        for it in block.iter_vars:
            if it.iter_type is ir.IterType.REDUCE:
                terms *= max(1, evaluate(it.dom.extent, sizes))
    products = sum(isinstance(n, ir.Mul) for n in operations)
    types = [n.dtype.element for n in values if isinstance(n, ir.Expr) and n.dtype.is_float]
    digits = min((int(_FINFO(t.numpy()).nmant) + 1 for t in types), default=64)
    return products <= 1 and 4 * (terms + 1) < 1 << digits


# ------------------------------------------------------------------------------------------ inputs
def inputs(func: ir.PrimFunc, sizes: Mapping[str, int], kind: str, seed: int) -> tuple[Array, ...]:
    """Arguments of one kind: "whole" numbers of at most 2, "random" numbers, "special" values."""
    rng = np.random.default_rng((seed, ("whole", "random", "special").index(kind)))
    limits = index_limits(func, sizes)
    result: list[Array] = []
    for buffer in func.buffers:
        shape = tuple(evaluate(n, sizes) for n in buffer.shape)
        dtype = buffer.dtype
        if buffer in limits:
            drawn: Array = rng.integers(0, max(limits[buffer], 1), shape)
        elif dtype.is_bool:
            drawn = rng.integers(0, 2, shape)
        elif dtype.is_int:
            drawn = _integers(rng, dtype, shape, kind)
        else:
            drawn = _floats(rng, dtype, shape, kind)
        result.append(np.asarray(drawn).astype(dtype.numpy()))
    return tuple(result)


def _integers(
    rng: np.random.Generator, dtype: ir.DType, shape: tuple[int, ...], kind: str
) -> Array:
    low, high = dtype.min_value, dtype.max_value
    if kind == "whole":
        return rng.integers(max(low, -2), 3, shape)
    kept = dtype.numpy() if dtype.bits >= 8 else np.dtype("int64")
    if kind == "random":
        return rng.integers(low, high, shape, dtype=kept, endpoint=True)
    ends = np.array([low, low + 1, high, high - 1, 0, 1, high // 2 + 1], kept)
    return ends[rng.integers(0, len(ends), shape)]


def _floats(rng: np.random.Generator, dtype: ir.DType, shape: tuple[int, ...], kind: str) -> Array:
    if kind == "random":
        return rng.standard_normal(shape)
    drawn = rng.integers(-2, 3, shape).astype(np.float64)
    if kind == "special" and drawn.size:
        info = _FINFO(dtype.numpy())
        tiny = float(info.smallest_subnormal)
        values = np.array([np.inf, -np.inf, np.nan, -0.0, tiny, -tiny, float(info.tiny)])
        places = rng.integers(0, drawn.size, min(2, drawn.size))
        drawn.flat[places] = values[rng.integers(0, len(values), len(places))]
    return drawn
