"""Compare two tensor programs by running both on the interpreter with the same random inputs.

Tolerance: programs that differ by reassociation of reductions differ only by rounding. A sum of n
terms of size one passes through partial sums of size √n; its n roundings add up to about ε·n, while
the results themselves are of size √n: relative to the largest result, ε·√n. Every block may add
such an error, so the bound is 4 ε √n per block, relative to the largest magnitude in the output (at
least one, the size of the inputs). Integers and booleans must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.interp import Limit, interpret
from blockwright.interp.sizes import evaluate
from blockwright.testing.arrays import copied, make_arrays, random_scalar, random_sizes

Array = np.ndarray[Any, Any]
Programs = ir.PrimFunc | ir.IRModule


def assert_same_meaning(
    before: Programs,
    after: Programs,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
    exact: bool = False,
    entry: str = "main",
) -> None:
    """Raise AssertionError if `after` computes different results than `before`.

    Args:
        before, after: functions with the same parameters, or modules with a function `entry`.
        seed: seed of the inputs and, unless `sizes` is given, of the symbolic sizes.
        arrays: inputs and initial outputs, instead of random ones.
        exact: require equal bits (except NaN payloads) instead of the module's tolerance.

    `after` runs with all checks of the interpreter, and again in reverse order if it has loops
    whose order is free. InterpretErrors of either program propagate.
    """
    reference = Reference(before, seed=seed, sizes=sizes, arrays=arrays, entry=entry)
    reference.assert_met(after, exact=exact)


class Reference:
    """The results of a program for one set of inputs, to compare several others with.

    The arguments are those of `assert_same_meaning`, and `limit`, the maximum number of loop
    iterations of the program (InterpretError BW757 beyond it).
    """

    def __init__(
        self,
        program: Programs,
        *,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        arrays: Sequence[Array] | None = None,
        entry: str = "main",
        limit: int | None = None,
    ) -> None:
        self.func = _entry(program, entry)
        self.seed, self.entry = seed, entry
        self.sizes = random_sizes(self.func, seed) if sizes is None else dict(sizes)
        self.given = make_arrays(self.func, seed, self.sizes) if arrays is None else list(arrays)
        self.scalars: dict[str, float] = {
            p.name: self.sizes[p.name] if p.name in self.sizes else random_scalar(p, seed)
            for p in _scalars(self.func)
        }
        self.expected = _run(program, self.given, self.scalars, entry, None, limit)

    def assert_met(self, after: Programs, *, exact: bool = False) -> None:
        """Raise AssertionError if `after` computes different results on the interpreter."""
        second = _entry(after, self.entry)
        scalars = _renamed(second, self.func, self.scalars)
        orders: list[str | None] = [None, "reverse"] if _has_free_order(second) else [None]
        for order in orders:
            actual = _run(after, self.given, scalars, self.entry, order)
            note = "" if order is None else " with free loops in reverse order"
            self.assert_results(actual, after, exact=exact, note=note)

    def assert_results(
        self, actual: Sequence[Array], after: Programs, *, exact: bool = False, note: str = ""
    ) -> None:
        """Raise AssertionError if these arrays, computed by `after`, differ."""
        limit = 0.0 if exact else tolerance_steps(self.func, self.sizes)
        for buffer, x, y in zip(self.func.buffers, self.expected, actual, strict=True):
            problem = difference(x, y, limit)
            if problem is not None:
                raise AssertionError(
                    f"{buffer.name} differs{note} (seed {self.seed}, sizes {self.sizes}): "
                    f"{problem}\n--- after ---\n{after!r}"
                )


def tolerance_steps(func: ir.PrimFunc, sizes: Mapping[str, int]) -> float:
    """Tolerance in units of ε times the output's magnitude: 4 √n per block with n terms."""
    total = 0.0
    for block in ir.blocks(func.body):
        terms = 1
        for it in block.iter_vars:
            if it.iter_type is ir.IterType.REDUCE:
                terms *= max(1, _extent(it.dom.extent, sizes))
        total += 4 * math.sqrt(terms)
    return max(total, 4.0)


def _extent(extent: ir.Expr, sizes: Mapping[str, int]) -> int:
    free = ir.collect(extent, ir.Var)
    return evaluate(extent, sizes) if all(v.name in sizes for v in free) else 64


def difference(expected: Array, actual: Array, steps: float) -> str | None:
    """Describe where arrays differ by more than `steps` ε of the largest magnitude; else None."""
    if expected.dtype.kind in "iub":
        wrong = expected != actual
        allowed: Any = 0
    else:
        x, y = expected.astype(np.float64), actual.astype(np.float64)
        finite = np.abs(x[np.isfinite(x)])
        scale = max(1.0, float(finite.max(initial=0.0)))
        allowed = steps * _eps(expected) * scale
        with np.errstate(invalid="ignore"):
            near = np.abs(x - y) <= allowed
        wrong = ~(near | (x == y) | (np.isnan(x) & np.isnan(y)))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements, first at {list(at)}: expected "
        f"{expected[at]}, got {actual[at]}, allowed difference {allowed:.3g}"
    )


def _eps(array: Array) -> float:
    return float(np.nextafter(array.dtype.type(1), array.dtype.type(2))) - 1.0


def _entry(program: Programs, entry: str) -> ir.PrimFunc:
    func = program[entry] if isinstance(program, ir.IRModule) else program
    if not isinstance(func, ir.PrimFunc):
        raise TypeError(f"{entry!r} is not a tensor program")
    return func


def _scalars(func: ir.PrimFunc) -> list[ir.Var]:
    handles = {var for var, _ in func.buffer_map}
    return [p for p in func.params if p not in handles]


def _renamed(
    func: ir.PrimFunc, original: ir.PrimFunc, scalars: Mapping[str, float]
) -> dict[str, float]:
    """Rename scalars to the parameter names of `func`, by position."""
    pairs = zip(_scalars(func), _scalars(original), strict=True)
    return {mine.name: scalars[theirs.name] for mine, theirs in pairs}


def _run(
    program: Programs,
    arrays: Sequence[Array],
    scalars: Mapping[str, float],
    entry: str,
    order: str | None,
    limit: int | None = None,
) -> list[Array]:
    copies = copied(arrays)
    largest = None if limit is None else Limit(limit)
    options: dict[str, Any] = {"entry": entry, "order": order, "limit": largest, **scalars}
    interpret(program, *copies, **options)
    return copies


def _has_free_order(func: ir.PrimFunc) -> bool:
    free = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED, ir.ForKind.THREAD_BINDING)
    return any(loop.kind in free for loop in ir.loops(func.body))
