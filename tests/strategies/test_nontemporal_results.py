"""Results beyond the caches pass them by; flat loops over whole arrays; fewer passes over a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from tests.strategies.row_programs import Size, softmax

N, M = (ir.var(name, "int64") for name in "nm")
MACHINE = Target("x86-64-v3", num_threads=2)
LEAST = MACHINE.cache(3).size
LARGE = LEAST // 4  # elements


def doubled(*shape: Size, bounds: dict[str, int] | None = None) -> ir.PrimFunc:
    p = Program("doubled")
    x = p.param("X", shape, "float32")
    func = p.finish([p.compute("y", shape, lambda *i: x[i] * 2.0)])
    return func.replace(attrs={**func.attrs, "tir_var_upper_bound": bounds}) if bounds else func


def biased(*shape: Size) -> ir.PrimFunc:
    p = Program("biased")
    x, b = p.param("X", shape, "float32"), p.param("b", shape[-1:], "float32")
    return p.finish([p.compute("y", shape, lambda *i: x[i] + b[i[-1]])])


def streams(func: ir.PrimFunc) -> list[Any]:
    """Sizes from which on results of the scheduled program pass the caches by."""
    found = apply_strategies(func, MACHINE)
    assert "gave up" not in found.note
    return [
        loop.annotations["nontemporal_stores"]
        for loop in ir.loops(found.func.body)
        if "nontemporal_stores" in loop.annotations
    ]


@pytest.mark.parametrize("make", [doubled, biased, softmax])
def test_results_as_large_as_the_last_cache_pass_it_by(make: Any) -> None:
    assert streams(make(LARGE // 64, 64)) == [LEAST]
    assert streams(make(LARGE // 64 - 1, 64)) == []
    assert streams(make(N, 64)) == [LEAST]  # looked at in each call


def ahead(func: ir.PrimFunc) -> list[str]:
    """Blocks of loops that fetch the next row."""
    loops = [
        loop
        for loop in ir.loops(apply_strategies(func, MACHINE).func.body)
        if loop.annotations.get("prefetch_read") == 1
    ]
    return [block.name for loop in loops for block in ir.collect(loop.body, ir.Block)]


def test_the_last_pass_over_what_is_read_fetches_the_next_row() -> None:
    assert "e" in ahead(softmax(LARGE // 1024, 1024))
    assert "o" not in ahead(softmax(LARGE // 1024, 1024))  # it reads the powers, which are near
    assert not ahead(softmax(64, 1024))  # all of it is in a cache
    assert not ahead(softmax(16, LARGE // 16))  # a row is not, until its turn
    assert not ahead(softmax(N, M))


def test_a_bound_on_the_size_rules_it_out() -> None:
    assert streams(doubled(N, 64, bounds={"n": 512})) == []
    assert streams(doubled(N, 64, bounds={"n": LARGE})) == [LEAST]


def extents(func: ir.PrimFunc) -> list[int | None]:
    return [ir.const_int(loop.extent) for loop in ir.loops(func.body)]


def test_arrays_without_broadcasting_are_passed_in_one_loop(checks: Any) -> None:
    """Rows of 7 elements are no whole vectors; 40 times 3 of them are."""
    flat = checks.taken_by("elementwise", doubled(40, 3, 7), {}).func
    assert extents(flat) == [105, 8]
    rows = checks.taken_by("elementwise", biased(40, 3, 7), {}).func
    assert extents(rows)[-1] == 7


@pytest.mark.parametrize("shape", [(N, M), (N, 7), (N, M, 5), (33, 31), (1, N)])
def test_flat_loops_mean_the_same(checks: Any, shape: tuple[Size, ...]) -> None:
    checks.taken_by("elementwise", doubled(*shape), {"n": 3, "m": 5}, {"n": 40, "m": 67})


@pytest.mark.parametrize("shape", [(300, 171), (1, 1), (17, 16), (0, 5)])
def test_flat_loops_agree_with_numpy(checks: Any, shape: tuple[int, int]) -> None:
    run = checks.native(doubled(N, M))
    x, out = checks.normal(*shape), np.full(shape, np.nan, "float32")
    run(x, out)
    np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("columns", [64, 300, 1000, N])
def test_sums_are_made_in_the_pass_that_makes_their_terms(checks: Any, columns: Size) -> None:
    """A softmax passes over a row three times: largest, powers with their sum, shares."""
    sizes = [{"n": 1}, {"n": 77}, {"n": 300}] if columns is N else [{}]
    func = checks.taken_by("inner_reduction", softmax(3, columns), *sizes).func
    for loop in ir.loops(func.body):
        inside = [b.name for b in ir.collect(loop.body, ir.Block)]
        if "e" in inside and "o" not in inside:
            assert any(name.startswith("s") for name in inside)
            return
    raise AssertionError("the powers have no loop of their own")


@pytest.mark.parametrize("columns", [5, 64, 100, 1000, 4097])
def test_softmax_agrees_with_numpy(checks: Any, columns: int) -> None:
    x, out = checks.normal(6, columns), np.zeros((6, columns), "float32")
    checks.native(softmax(N, M))(x, out)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(axis=1, keepdims=True), rtol=2e-5, atol=1e-8)
