"""Every operator row against its own NumPy meaning, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext, OpRow, Sample
from blockwright.ops.table import OPERATORS

CASES = [
    pytest.param(row, sample, id=f"{row.name}-{number}")
    for row in OPERATORS.values()
    for number, sample in enumerate(row.samples)
]


def arrays_of(sample: Sample) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [a(rng) if callable(a) else np.asarray(a) for a in sample.args]


def info_of(array: np.ndarray[Any, Any]) -> ir.TensorInfo:
    shape = tuple(ir.const(int(d), "int64") for d in array.shape)
    return ir.TensorInfo(shape, ir.dtype_of(array.dtype))


def deduced(
    row: OpRow, arrays: list[np.ndarray[Any, Any]], attrs: dict[str, Any]
) -> list[ir.TensorInfo]:
    """Annotations of the results; all dimensions are known numbers here."""
    info = row.deduce(OpContext(row.name), [info_of(a) for a in arrays], attrs)
    fields = info.fields if isinstance(info, ir.TupleInfo) else (info,)
    return [f for f in fields if isinstance(f, ir.TensorInfo)]


def ordered(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats as integers in the same order, one apart for neighbours."""
    width = array.dtype.itemsize
    bits = array.view({2: np.int16, 4: np.int32, 8: np.int64}[width]).astype(np.int64)
    low = np.int64(-(1 << (8 * width - 1)))
    return np.where(bits < 0, low - bits, bits)


def assert_close(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], sample: Sample) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if not ir.dtype_of(got.dtype).is_float:
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    steps = np.abs(ordered(got) - ordered(want))
    near = (steps <= sample.tolerance) & np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        near |= np.abs(a - b) <= sample.absolute
    bad = ~(same | near)
    if bad.any():
        where = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
        pytest.fail(
            f"{int(bad.sum())} of {bad.size} differ, first at {where}: got {got[where]!r}, "
            f"expected {want[where]!r}, {int(steps[where])} steps apart"
        )


class Case:
    """One sample made concrete: arguments, wanted results, program."""

    def __init__(self, row: OpRow, sample: Sample, name: str) -> None:
        self.sample = sample
        self.attrs = {**row.attrs, **sample.attrs}
        self.arrays = arrays_of(sample)
        with np.errstate(all="ignore"):
            wanted = row.oracle(*self.arrays, **self.attrs)
        self.wanted = [np.asarray(w) for w in (wanted if isinstance(wanted, list) else [wanted])]
        infos = [info_of(a) for a in self.arrays]
        func = lower_call(row, OpContext(row.name), infos, self.attrs)
        self.bounded = row.bounded and row.bounded(OpContext(row.name), infos, self.attrs)
        self.func = func.replace(attrs={**func.attrs, "global_symbol": name})

    def check(self, run: Callable[..., Any]) -> None:
        """Run into fresh results and compare."""
        shapes = [(w.shape, w.dtype) for w in self.wanted]
        if self.bounded is not None:
            largest = [[ir.const_int(d) or 0 for d in i.shape or ()] for i in self.bounded.results]
            shapes = [(tuple(s), w.dtype) for s, w in zip(largest, self.wanted, strict=True)]
            shapes.append(((1,), np.dtype("int64")))
        outs = [np.full(shape, 77, dtype) for shape, dtype in shapes]
        run(*self.arrays, *outs)
        if self.bounded is not None:
            outs = self.bounded.part(outs)
        for got, want in zip(outs, self.wanted, strict=True):
            assert_close(got, want, self.sample)


@pytest.mark.parametrize(("row", "sample"), CASES)
def test_program_means_what_numpy_says(row: OpRow, sample: Sample) -> None:
    case = Case(row, sample, row.name)
    infos = deduced(row, case.arrays, case.attrs)
    for info, wanted in zip(infos, case.wanted, strict=True):
        assert info.rank == wanted.ndim
        if case.bounded is None or info.shape is not None:
            assert [ir.const_int(d) for d in info.shape or ()] == list(wanted.shape)
    assert [i.dtype for i in infos] == [ir.dtype_of(w.dtype) for w in case.wanted]
    case.check(lambda *arrays: interpret(case.func, *arrays))


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_programs_mean_what_numpy_says(name: str) -> None:
    row = OPERATORS[name]
    cases = {
        f"{name}_{i}": Case(row, sample, f"{name}_{i}") for i, sample in enumerate(row.samples)
    }
    module = build(ir.IRModule({key: case.func for key, case in cases.items()}))
    for key, case in cases.items():
        case.check(module[key])
