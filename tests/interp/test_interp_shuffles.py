"""Shuffles within groups of lanes, as the hardware defines them at the ends of the groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
    t = T.launch_thread("threadIdx.x", 32)
    B[t] = T.tvm_warp_shuffle{how}(T.uint32(0xFFFFFFFF), A[t], {by}, {width}, 32)
"""


@pytest.mark.parametrize(
    ("how", "by", "width", "source"),
    [
        ("_up", 3, 8, lambda lane: lane - 3 if lane % 8 >= 3 else lane),
        ("_down", 3, 8, lambda lane: lane + 3 if lane % 8 < 5 else lane),
        ("_xor", 1, 4, lambda lane: lane ^ 1),
        # Across groups: an earlier group gives its values, a later one does not.
        ("_xor", 4, 4, lambda lane: lane ^ 4 if lane & 4 else lane),
        ("_xor", 8, 4, lambda lane: lane ^ 8 if lane & 8 else lane),
    ],
)
def test_lanes_at_a_distance(how: str, by: int, width: int, source: Callable[[int], int]) -> None:
    a, b = np.arange(32, dtype="float32"), np.zeros(32, "float32")
    bw.interpret(bw.from_source(PROGRAM.format(how=how, by=by, width=width)), a, b)
    assert b.tolist() == [source(lane) for lane in range(32)]
