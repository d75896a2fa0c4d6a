"""Transposes by the element-wise rule: square tiles, rows of which are read and turned over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.lower import lower
from blockwright.script.compute import Program

N, S = (ir.var(name, "int64") for name in "ns")


def permuted(
    axes: tuple[int, ...], *shape: ir.Expr | int, dtype: str = "float32", plus: bool = False
) -> ir.PrimFunc:
    """The axes of a tensor in another order; `plus` adds a tensor that lies as the result does."""
    p = Program("permuted")
    x = p.param("X", shape, dtype)
    out = [shape[axis] for axis in axes]
    r = p.param("R", out, dtype) if plus else None

    def value(*i: ir.Expr) -> ir.Expr:
        found = x[tuple(i[axes.index(k)] for k in range(len(axes)))]
        return found if r is None else found + r[i]

    return p.finish([p.compute("Y", out, value)])


def gathers_of_loops(func: ir.PrimFunc) -> list[int]:
    """For each innermost loop of the lowered program, how many vectors gather elements."""
    lowered = lower(func, "x86-64-v3")
    found: list[int] = []
    for loop in ir.loops(lowered.body):
        if not any(inner is not loop for inner in ir.loops(loop)):
            indices = [load.indices[0] for load in ir.collect(loop, ir.BufferLoad)]
            found.append(
                sum(isinstance(i, ir.Ramp) and ir.const_int(i.stride) != 1 for i in indices)
            )
    return found


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 0), (16, 16)),
    ((1, 0), (64, 48)),
    ((1, 0), (37, 21)),
    ((1, 0), (9, 300)),
    ((0, 2, 1), (5, 33, 24)),
    ((0, 2, 1), (40, 17, 19)),
    ((2, 1, 0), (16, 5, 19)),
    ((0, 4, 1, 2, 3), (1, 2, 7, 7, 24)),
    ((0, 2, 3, 4, 1), (2, 24, 2, 7, 7)),
    ((3, 0, 1, 2), (5, 1, 7, 20)),
    ((0, 2, 1, 3), (2, 3, 20, 24)),
]


@pytest.mark.parametrize(("axes", "shape"), CASES)
@pytest.mark.parametrize("plus", [False, True], ids=["moved", "added"])
def test_the_schedule_means_the_same(
    checks: Any, axes: tuple[int, ...], shape: tuple[int, ...], plus: bool
) -> None:
    checks.taken_by("elementwise", permuted(axes, *shape, plus=plus), {})


@pytest.mark.parametrize(("axes", "shape"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
def test_the_library_agrees_with_numpy(
    checks: Any, axes: tuple[int, ...], shape: tuple[int, ...], dtype: str
) -> None:
    x = (checks.normal(*shape) * 50).astype(dtype)
    out = np.zeros([shape[axis] for axis in axes], dtype)
    checks.native(permuted(axes, *shape, dtype=dtype))(x, out)
    np.testing.assert_array_equal(out, x.transpose(axes))


@pytest.mark.parametrize("plus", [False, True], ids=["moved", "added"])
@pytest.mark.parametrize("size", [(0, 5), (1, 1), (16, 16), (15, 300), (64, 33), (257, 40)])
def test_unknown_sizes_agree_with_numpy(checks: Any, size: tuple[int, int], plus: bool) -> None:
    n, s = size
    for axes, shape in (((1, 0), (n, s)), ((0, 2, 1), (3, n, s)), ((2, 0, 1), (n, 8, s))):
        names = {n: N, s: S}
        func = permuted(axes, *(names.get(k, k) for k in shape), plus=plus)
        x = checks.normal(*shape)
        want = x.transpose(axes)
        added = checks.normal(*want.shape, seed=1)
        out = np.full(want.shape, np.nan, "float32")
        checks.native(func)(*([x, added] if plus else [x]), out)
        np.testing.assert_array_equal(out, want + added if plus else want)


def test_the_schedule_of_unknown_sizes_means_the_same(checks: Any) -> None:
    sizes = ({"n": 3, "s": 9}, {"n": 16, "s": 8}, {"n": 18, "s": 1})
    checks.taken_by("elementwise", permuted((1, 0), N, S), *sizes)


@pytest.mark.parametrize(
    ("axes", "shape"),
    [((1, 0), (64, 48)), ((1, 0), (37, 21)), ((0, 2, 1), (1, 48, 512)), ((1, 0), (N, S))],
)
def test_whole_tiles_gather_nothing(
    checks: Any, axes: tuple[int, ...], shape: tuple[ir.Expr | int, ...]
) -> None:
    """Only where a tile does not fit, at the end of an axis, elements are gathered."""
    func = checks.taken_by("elementwise", permuted(axes, *shape)).func
    whole, *ends = gathers_of_loops(func)
    assert whole == 0
    fitting = all(isinstance(size, int) and size % 8 == 0 for size in shape[1:])
    assert not (fitting and ends)


def test_axes_that_stay_together_count_as_one(checks: Any) -> None:
    """Lines of seven pixels fill no vector; forty-nine pixels fill six."""
    func = checks.taken_by("elementwise", permuted((0, 3, 1, 2), 1, 7, 7, 64)).func
    assert "unrolled" in checks.loop_kinds(func)
    assert 0 in gathers_of_loops(func)


def test_rows_that_stay_rows_are_copied_as_vectors(checks: Any) -> None:
    func = checks.taken_by("elementwise", permuted((1, 0, 2), 20, 24, 64)).func
    assert "unrolled" not in checks.loop_kinds(func)
    assert set(gathers_of_loops(func)) == {0}
