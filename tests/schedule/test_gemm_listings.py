"""The matrix product of the design thread, scheduled with twenty variables and readably."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from blockwright import ir
from blockwright.schedule import Schedule, Trace
from blockwright.testing.check import assert_same_meaning


@pytest.fixture(scope="module")
def listings() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "programs_gemm", Path(__file__).with_name("programs_gemm.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("sizes", [{}, {"block": 8, "tile": 2, "depth": 8}])
def test_both_listings_give_one_program(listings: ModuleType, sizes: dict[str, int]) -> None:
    old, new = Schedule(listings.matmul, verify="full"), Schedule(listings.matmul, verify="full")
    listings.twenty_variables(old, **sizes)
    listings.readable(new, **sizes)
    ir.assert_structural_equal(new.func, old.func)
    again = Schedule(listings.matmul)
    exec(new.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, new.func)


def test_the_listings_compute_the_product(listings: ModuleType) -> None:
    """Registers outlive the loops over threads, which needs lanes to run: here without threads."""
    sch = Schedule(listings.matmul)
    listings.readable(sch)
    serial = Trace(tuple(s for s in sch.trace if s.record.method != "bind"))
    assert_same_meaning(listings.matmul, serial.apply_to(listings.matmul), exact=True)


def test_the_readable_listing_shows_its_primitives(listings: ModuleType) -> None:
    sch = Schedule(listings.matmul)
    listings.readable(sch)
    calls = [stage.call.split("(")[0] for stage in sch.history[1:]]
    assert calls == [
        "tile",
        *["cache_read", "share", "cache_read"] * 2,
        "cache_write",
        "share",
        *["bind"] * 4,
    ]
