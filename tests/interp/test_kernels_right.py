"""Kernels whose threads exchange values: results agree with NumPy, and nothing is reported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import Report, interpret
from blockwright.ir.printer import script
from tests.interp.programs_blocks import CASES as BLOCKS
from tests.interp.programs_blocks import Case
from tests.interp.programs_warps import CASES as WARPS

Array = np.ndarray[Any, Any]
ALL: dict[str, Case] = {**BLOCKS, **WARPS}


def outcome(case: Case, seed: int = 0, **options: Any) -> tuple[Array, Array]:
    """What a program leaves in its last parameter, and what should be there.

    A program without other parameters works in place.
    """
    rng = np.random.default_rng(seed)
    inputs = case.inputs(rng)
    result = case.program.buffers[-1]
    shape = tuple(n.value for n in result.shape)
    kind = result.dtype.numpy()
    given = np.zeros(shape, kind) if inputs else rng.standard_normal(shape).astype(kind)
    found = given.copy()
    interpret(case.program, *inputs, found, **options)
    return found, case.expected(*(inputs or [given]))


@pytest.mark.parametrize("name", ALL)
def test_right_kernels(name: str) -> None:
    found, wanted = outcome(ALL[name])
    if found.dtype.kind == "i":
        assert np.array_equal(found, wanted)
    else:
        # Sums of at most a few hundred products of numbers around 1, in another order.
        tolerance = 2e-2 if found.dtype.itemsize == 2 else 1e-4
        assert np.allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_neither_order_of_blocks_nor_lanes_of_loops_matter(name: str) -> None:
    case = ALL[name]
    found, _ = outcome(case)
    for options in ({"vectorize": False}, {"order": "reverse"}, {"order": 3}):
        again, _ = outcome(case, **options)
        if found.dtype.kind == "f" and "order" in options:
            assert np.allclose(found, again, rtol=1e-5)
        else:
            assert np.array_equal(found, again)


def test_there_are_thirty() -> None:
    assert len(ALL) >= 30


@pytest.mark.parametrize("name", ALL)
def test_they_print_and_parse_back(name: str) -> None:
    program = ALL[name].program
    ir.assert_structural_equal(bw.from_source(script(program)), program)


def test_a_tiled_product_on_fragments_takes_seconds_at_most() -> None:
    """128 × 128 × 64: shared memory, ldmatrix, mma; every access of it checked."""
    start = time.process_time()
    outcome(ALL["tiled fragments"])
    assert time.process_time() - start < 10


def test_padded_tiles_are_loaded_without_bank_conflicts() -> None:
    """The rows of its tiles are 80 and 144 bytes long, so that eight of them meet in no bank."""
    case = ALL["tiled fragments"]
    report = Report()
    inputs = case.inputs(np.random.default_rng(0))
    interpret(case.program, *inputs, np.zeros((128, 128), np.float32), report=report)
    loads = [row for row in report.banks if row.how == "read"]
    assert len(loads) == 2
    assert all(row.conflicts == 0 and row.requests == 512 for row in loads)
