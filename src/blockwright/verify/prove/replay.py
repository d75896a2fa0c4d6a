"""Replay: run both programs to turn a failed query into a counterexample.

Inputs are small numbers drawn from a fixed seed, so sums are exact or nearly so, and results that
differ by more than rounding show that the programs differ. Inputs that serve as indices stay within
the extents they index.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.interp import Limit, interpret
from blockwright.interp.sizes import evaluate, index_limits
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import InterpretError
from blockwright.verify.verdict import Counterexample

Array = np.ndarray[Any, Any]
MOST_STEPS = 3_000_000
"""Statement instances above which a program is not run."""
ITERATIONS = 60_000
"""Loop iterations that all runs for one verdict may take together, not counting iterations that the
interpreter runs at once."""
TOLERANCE = 1e-2
"""Tolerance relative to the largest magnitude of a result; half precision needs this much."""


def counterexample(
    before: ir.PrimFunc,
    after: ir.PrimFunc,
    sizes: Mapping[str, int],
    tries: int = 2,
    limit: Limit | None = None,
) -> Counterexample | None:
    """Search for arguments on which two programs differ; None if no tried set of inputs shows any.

    Args:
        sizes: symbolic sizes and integer scalars of `before`, by name.
        tries: number of input sets to try.
        limit: iteration limit shared by all runs; beyond it the result is None.
    """
    if len(before.params) != len(after.params):
        return None
    if max(_steps(before, sizes), _steps(after, sizes)) > MOST_STEPS:
        return None
    for seed in range(tries):
        result = _try(before, after, sizes, seed, limit)
        if result is not None:
            return result
    return None


def differs(before: ir.PrimFunc, after: ir.PrimFunc, example: Counterexample) -> str | None:
    """The difference between two programs on the arguments of an example; None if they agree."""
    return _difference(before, after, example.arrays, example.scalars)


def _try(
    before: ir.PrimFunc,
    after: ir.PrimFunc,
    sizes: Mapping[str, int],
    seed: int,
    limit: Limit | None,
) -> Counterexample | None:
    arrays = _arrays(before, sizes, seed)
    handles = {v for v, _ in before.buffer_map}
    given = [p for p in before.params if p not in handles]
    # Halves are exact in every float type. Distinct values reveal swapped scalars.
    scalars = tuple(
        sizes.get(p.name, 1) if p.dtype.is_int else 1.5 + k % 6 for k, p in enumerate(given)
    )
    result = _difference(before, after, arrays, scalars, limit)
    return None if result is None else Counterexample(dict(sizes), scalars, arrays, result)


NOT_RUN = ("BW706", "BW757")
"""Codes of programs that the arguments do not fit, or that are beyond the interpreter's limit."""


def _difference(
    before: ir.PrimFunc,
    after: ir.PrimFunc,
    arrays: tuple[Array, ...],
    scalars: tuple[int | float, ...],
    limit: Limit | None = None,
) -> str | None:
    try:
        expected = _run(before, arrays, scalars, None, limit)
    except InterpretError:
        return None  # no reference result
    free = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED, ir.ForKind.THREAD_BINDING)
    orders = [None, "reverse"] if any(f.kind in free for f in ir.loops(after.body)) else [None]
    for order in orders:
        try:
            actual = _run(after, arrays, scalars, order, limit)
        except InterpretError as error:
            if error.code in NOT_RUN:
                return None
            return f"the program after fails: {error.message}"
        for buffer, x, y in zip(before.buffers, expected, actual, strict=True):
            at = _first_difference(x, y)
            if at is not None:
                return f"{buffer.name}{list(at)} is {x[at]} before and {y[at]} after"
    return None


def _run(
    func: ir.PrimFunc,
    arrays: tuple[Array, ...],
    scalars: tuple[int | float, ...],
    order: str | None,
    limit: Limit | None,
) -> list[Array]:
    copies = [a.copy() for a in arrays]
    handles = {v for v, _ in func.buffer_map}
    rest, numbers = iter(copies), iter(scalars)
    args = [next(rest) if p in handles else next(numbers) for p in func.params]
    interpret(func, *args, order=order, limit=limit)
    return copies


def _first_difference(expected: Array, actual: Array) -> tuple[int, ...] | None:
    if expected.dtype.kind in "iub":
        wrong = expected != actual
    else:
        x, y = expected.astype(np.float64), actual.astype(np.float64)
        scale = max(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
        with np.errstate(invalid="ignore"):
            near = np.abs(x - y) <= TOLERANCE * scale
        wrong = ~(near | (x == y) | (np.isnan(x) & np.isnan(y)))
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


# ------------------------------------------------------------------------------------------ inputs
def _arrays(func: ir.PrimFunc, sizes: Mapping[str, int], seed: int) -> tuple[Array, ...]:
    """Random inputs, and outputs filled with random numbers so that unwritten elements show up."""
    rng = np.random.default_rng(seed)
    limits = index_limits(func, sizes)
    result: list[Array] = []
    for buffer in func.buffers:
        shape = tuple(evaluate(n, sizes) for n in buffer.shape)
        if buffer.dtype.is_bool:
            result.append(rng.integers(0, 2, shape).astype(np.bool_))
        elif buffer.dtype.is_int:
            low = 0 if buffer in limits or buffer.dtype.kind == "uint" else -7
            high = limits.get(buffer, 8)
            result.append(rng.integers(low, max(high, low + 1), shape).astype(buffer.dtype.numpy()))
        else:
            drawn = rng.integers(-8, 9, shape) / 4
            result.append(drawn.astype(np.float32).astype(buffer.dtype.numpy()))
    return tuple(result)


def default_sizes(func: ir.PrimFunc, minimum: Mapping[str, int], seed: int = 0) -> dict[str, int]:
    """Small values of all sizes and integer scalars within declared bounds; `minimum` overrides."""
    chance = random.Random(seed)
    low: Mapping[str, int] = func.attrs.get(LOWER_BOUND, {})
    high: Mapping[str, int] = func.attrs.get(UPPER_BOUND, {})
    result: dict[str, int] = {}
    symbols = [v for b in func.buffers for n in b.shape for v in ir.collect(n, ir.Var)]
    scalars = [p for p in func.params if p.dtype.is_int]
    for variable in (*symbols, *scalars):
        name = variable.name
        if name not in result:
            begin = low.get(name, 1)
            end = max(begin, min(begin + 12, high.get(name, begin + 12)))
            result[name] = minimum.get(name, chance.randint(begin, end))
    return result


def _steps(func: ir.PrimFunc, sizes: Mapping[str, int]) -> int:
    """Upper bound on the number of stores a program executes; variable extents count as 64."""

    def count(stmt: ir.Stmt, times: int) -> int:
        if isinstance(stmt, ir.For):
            known = all(v.name in sizes for v in ir.free_vars(stmt.extent))
            try:
                extent = evaluate(stmt.extent, sizes) if known else 64
            except InterpretError:
                extent = 64
            return count(stmt.body, times * max(extent, 1))
        below = [c for c in stmt.children() if isinstance(c, ir.Stmt)]
        return sum((count(c, times) for c in below), 0) or times

    return count(func.body, 1)
