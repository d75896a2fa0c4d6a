"""Reads before and after stores of the same block instance."""

from __future__ import annotations

import pytest

import blockwright as bw

TEXT = """
@T.prim_func
def f(A: T.Buffer((32,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((32,), "int32")
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            {first}
            {second}
"""


RIGHT = {
    "store, then load": ("B[vi] = A[vi]", "C[vi] = B[vi]"),
    "store of another element": ("B[vi * 2] = A[vi]", "C[vi] = B[vi * 2] + B[vi * 2]"),
    "loop": ("B[0] = A[vi]", "while B[0] < 20:\n                B[0] = B[0] + 5"),
    "running sum": (
        "B[0] = A[vi]",
        "for j in range(7):\n                B[j + 1] = B[j] + A[j]\n            C[vi] = B[7]",
    ),
    "scan": (
        "for j in range(8):\n"
        "                if j > 0:\n"
        "                    C[vi] = B[j - 1]\n"
        "                B[j] = A[j]",
        "C[vi] = B[vi]",
    ),
}


WRONG = {
    "load, then store": ("C[vi] = B[vi]", "B[vi] = A[vi]"),
    "load of another element": ("B[vi] = A[vi]", "C[vi] = B[vi + 8]"),
    "update": ("B[vi] = B[vi] + A[vi]", "C[vi] = B[vi]"),
    "condition of a while loop": (
        "while B[vi] < 20:\n                B[vi] = B[vi] + 5",
        "C[vi] = A[vi]",
    ),
    "bound of a loop that is left early": (
        "for j in range(B[vi]):\n                if j > 2:\n                    break",
        "C[vi] = A[vi]",
    ),
    "mask of a vector": (
        "B.vstore([T.Ramp(0, 1, 4)], A[0:4], predicate=B[0:4] > T.Broadcast(0, 4))",
        "C[vi] = A[vi]",
    ),
    "assertion": ('assert B[vi] > 0, "B"', "C[vi] = A[vi]"),
    "result of an atomic update": (
        "C[vi] = T.atomic_add(B[vi], A[vi], dtype='int32')",
        "B[vi] = A[vi]",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_block_has_stored_counts_as_written(name: str) -> None:
    first, second = RIGHT[name]
    bw.validate(bw.from_source(TEXT.format(first=first, second=second)))


@pytest.mark.parametrize("name", WRONG)
def test_what_it_stores_later_or_elsewhere_does_not(name: str) -> None:
    first, second = WRONG[name]
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(bw.from_source(TEXT.format(first=first, second=second)))
    assert caught.value.code == "BW235"
