from __future__ import annotations

import pytest

import blockwright as bw

GATHER = """
@T.prim_func
def main(I: T.Buffer((64,), "int32"), A: T.Buffer((100, 64), "float32"),
         B: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[T.max(T.min(I[vi], 99), 0), vj]
"""


@pytest.mark.parametrize(("target", "clamps"), [("aarch64", 0), ("aarch64+cssc", 2)])
def test_indices_are_clamped_without_comparisons(target: str, clamps: int) -> None:
    """FEAT_CSSC has minimum and maximum of general registers, where indices are computed."""
    text = bw.build(bw.from_source(GATHER), target=target).source("asm")
    found = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert sum(found.count(name) for name in ("smin", "smax")) == clamps
