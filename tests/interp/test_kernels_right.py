"""Kernels whose threads exchange values: results agree with NumPy, and nothing is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright.interp import interpret
from tests.interp.programs_blocks import CASES as BLOCKS
from tests.interp.programs_blocks import Case
from tests.interp.programs_warps import CASES as WARPS

Array = np.ndarray[Any, Any]
ALL: dict[str, Case] = {**BLOCKS, **WARPS}


def outcome(case: Case, seed: int = 0) -> tuple[Array, Array]:
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
    interpret(case.program, *inputs, found)
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


def test_there_are_thirty() -> None:
    assert len(ALL) >= 30
