"""Steps that store the first values of a buffer before a loop: the initial values of a reduction,
the constant of a padding.

What other blocks in the loop read and write decides whether that is seen: such a step is refused,
and the others compute what the program did.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from blockwright.testing import assert_same_meaning

Step = Callable[[Schedule], object]

HEAD = """
@T.prim_func
def main(
    A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32"), E: T.Buffer((8,), "int32"),
    N: T.Buffer((8,), "int32"),
):
    for i in range(8):
"""
SUM = """
for k in range(8):
    with T.block("U"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            {}
        C[vi] = C[vi] + A[vk]
"""
PAD = """
with T.block("U"):
    vi = T.axis.spatial(8, i)
    T.where(N[i] > 1)
    C[vi] = T.if_then_else(vi < 4, A[vi], 0)
"""
BLOCK = """
with T.block("E"):
    vi = T.axis.spatial(8, i)
    {}
"""


def program(*parts: str) -> str:
    """A program with these statements in one loop."""
    lines = "".join(parts).splitlines()
    return HEAD + "".join(f"        {line}\n" for line in lines if line)


def total(initial: str) -> str:
    """A sum with this initial value."""
    return SUM.format(initial.replace("\n", "\n            "))


ZERO, COPY = total("C[vi] = 0"), total("C[vi] = E[vi]")
CHOSEN = total("if vi > 3:\n    C[vi] = E[7 - vi]\nelse:\n    C[vi] = 0")
INNER = total("""with T.block("I"):
    vj = T.axis.spatial(8, 7 - vi)
    C[7 - vj] = E[vj]""")


def outer_sum(s: Schedule) -> None:
    s.decompose_reduction("U", s.get_loops("U")[0])


def block_of_sums(s: Schedule) -> None:
    outer = s.blockize(s.get_loops("U")[1])
    s.decompose_reduction(outer, s.get_loops(outer)[0])


def padding(s: Schedule) -> None:
    s.decompose_padding("U", s.get_loops("U")[0])


SEEN: dict[str, tuple[str, Step]] = {
    "mirrored": (program(ZERO, BLOCK.format("E[vi] = C[7 - vi] + 1")), outer_sum),
    "the next one": (program(ZERO, BLOCK.format("E[vi] = C[(vi + 1) % 8]")), outer_sum),
    "before": (program(BLOCK.format("E[vi] = C[7 - vi]"), ZERO), outer_sum),
    "block": (program(ZERO, BLOCK.format("E[vi] = C[7 - vi] + 1")), block_of_sums),
    "source": (program(total("C[vi] = E[7 - vi]"), BLOCK.format("E[vi] = 3")), outer_sum),
    "source of a block": (
        program(total("C[vi] = E[7 - vi]"), BLOCK.format("E[vi] = 3")), block_of_sums),
    "source, rotated": (
        program(total("C[vi] = E[(vi + 7) % 8]"), BLOCK.format("E[vi] = 3")), outer_sum),
    "source, chosen": (program(CHOSEN, BLOCK.format("E[vi] = 3")), outer_sum),
    "source, in a block": (program(INNER, BLOCK.format("E[vi] = 3")), outer_sum),
    "source, before": (program(BLOCK.format("E[vi] = 3"), COPY), outer_sum),
    "constant": (program(PAD, BLOCK.format("E[vi] = C[7 - vi]")), padding),
    "constant, before": (program(BLOCK.format("E[vi] = C[vi]"), PAD), padding),
    "where the constant is": (program(PAD, BLOCK.format("N[7 - vi] = 0")), padding),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_a_block_in_the_loop_would_see_it(name: str) -> None:
    source, step = SEEN[name]
    sch = Schedule(bw.from_source(source))
    with pytest.raises(ScheduleError, match="BW323"):
        step(sch)


FUSED = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((4, 2), "int32"), E: T.Buffer((4, 2), "int32")):
    for i in range(8):
        for k in range(8):
            with T.block("U"):
                vi = T.axis.spatial(4, i // 2)
                vj = T.axis.spatial(2, i % 2)
                vk = T.axis.reduce(8, k)
                with T.init():
                    C[vi, vj] = E[vi, vj]
                C[vi, vj] = C[vi, vj] + A[vk]
        with T.block("E"):
            vi = T.axis.spatial(4, i // 2)
            vj = T.axis.spatial(2, i % 2)
            E[vi, vj] = C[vi, vj]
"""
TERMS_OUTSIDE = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32"), E: T.Buffer((8,), "int32")):
    for k in range(8):
        for i in range(8):
            with T.block("U"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = E[vi]
                C[vi] = C[vi] + A[vk]
        for i in range(8):
            with T.block("E"):
                vi = T.axis.spatial(8, i)
                E[vi] = C[7 - vi]
"""
UNSEEN: dict[str, tuple[str, Step]] = {
    "the same": (program(ZERO, BLOCK.format("E[vi] = C[vi] + 1")), outer_sum),
    "an earlier one": (program(ZERO, BLOCK.format("E[vi] = C[vi // 2]")), outer_sum),
    "block": (program(ZERO, BLOCK.format("E[vi] = C[vi] + 1")), block_of_sums),
    "source": (program(COPY, BLOCK.format("E[vi] = C[vi] + 1")), outer_sum),
    "source elsewhere": (
        program(total("C[vi] = E[vi // 2 + 4]"), BLOCK.format("E[vi // 2] = 3")), outer_sum),
    "fused": (FUSED, outer_sum),
    "later terms": (TERMS_OUTSIDE, outer_sum),
    "constant": (program(PAD, BLOCK.format("E[vi] = C[vi]")), padding),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_no_block_in_the_loop_sees_it(name: str) -> None:
    source, step = UNSEEN[name]
    func = bw.from_source(source)
    sch = Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func)
