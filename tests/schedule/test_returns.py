"""Programs that end early with `T.ret()`: no step moves an effect across a return.

Whatever is asked, it is refused with a `ScheduleError`, or the program still computes the same,
whether or not it returns early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from tests.schedule.test_every_step_everywhere import calls

Array = np.ndarray[Any, Any]

HEAD = """
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32"),
         C: T.Buffer((8,), "float32"), J: T.Buffer((1,), "int32")):
    P = T.alloc_buffer((8,), "float32")
    Q = T.alloc_buffer((8,), "float32")
"""
P = """
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            P[vi] = A[vi, 0] + T.float32(1)
"""
Q = """
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            Q[vi] = P[vi] * T.float32(2)
"""
C = """
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = Q[vi] + P[vi]
"""
IF = """
    if A[0, 1] > T.float32(0):
        T.ret()
"""
IN_A_LOOP = """
    for z in range(4):
        if A[z, 1] > T.float32(0):
            T.ret()
"""
IN_A_BLOCK = """
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi, 1])
            T.writes(B[vi])
            B[vi] = A[vi, 1]
            if A[vi, 1] > T.float32(0):
                T.ret()
"""
SUMS = """
    for i in range(8):
        for k in range(4):
            with T.block("P"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    P[vi] = T.float32(0)
                P[vi] = P[vi] + A[vi, vk]
        if A[i, 1] > T.float32(0):
            T.ret()
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = P[vi] * T.float32(2)
"""
SUM_ENDS = """
    for i, k in T.grid(8, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.reads(A[vi, 0:4])
            T.writes(C[vi])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
            if A[vi, 1] > T.float32(0):
                T.ret()
"""
SAME_BUFFER = """
    for i in range(4):
        with T.block("first"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi]
    for i in range(4):
        with T.block("second"):
            vi = T.axis.spatial(4, i)
            C[vi + 4] = B[vi] + T.float32(1)
    RETURN
    for i in range(4):
        with T.block("third"):
            vi = T.axis.spatial(4, i)
            C[vi + 4] = C[vi + 4] * T.float32(2)
    for i in range(4):
        with T.block("fourth"):
            vi = T.axis.spatial(4, i)
            C[vi] = C[vi] + T.float32(3)
"""
GUARDED_INDEX = """
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.float32(-1)
    if J[0] < 0:
        T.ret()
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            P[vi] = B[(vi + J[0]) // 2]
    for i in range(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            C[vi] = P[vi]
"""
INSIDE_OUT = """
    for o in range(2):
        with T.block("outer"):
            vo = T.axis.spatial(2, o)
            T.reads(A[vo * 4:vo * 4 + 4, 0:2], P[vo * 4:vo * 4 + 4])
            T.writes(P[vo * 4:vo * 4 + 4], C[vo * 4:vo * 4 + 4])
            for i in range(4):
                with T.block("P"):
                    vi = T.axis.spatial(4, i)
                    P[vo * 4 + vi] = A[vo * 4 + vi, 0]
            if A[vo * 4, 1] > T.float32(0):
                T.ret()
            for i in range(4):
                with T.block("C"):
                    vi = T.axis.spatial(4, i)
                    C[vo * 4 + vi] = P[vo * 4 + vi]
"""
PROGRAMS = {
    "a condition at the end": P + Q + IF + C,
    "a condition at the start": IF + P + Q + C,
    "a condition in the middle": P + IF + Q + C,
    "always": P + Q + "    T.ret()\n" + C,
    "a loop": P + Q + IN_A_LOOP + C,
    "a block": P + IN_A_BLOCK + Q + C,
    "two returns": P + IF + Q + IN_A_LOOP + C,
    "between the blocks of an iteration": SUMS,
    "in a sum": SUM_ENDS,
    "several writers": SAME_BUFFER.replace("    RETURN\n", IF),
    "an index is checked": GUARDED_INDEX,
    "inside a block": INSIDE_OUT,
}


def arguments(last: int) -> list[Array]:
    """Inputs with which the program returns in iteration `last` of the loops that return."""
    rng = np.random.default_rng(last)
    a, b, c = (rng.standard_normal(n).astype("float32") for n in ((8, 4), (8,), (8,)))
    a[:, 1] = -np.abs(a[:, 1])
    a[last:, 1] *= -1
    return [a, b, c, np.array([-3 if last == 0 else 2], "int32")]


def results(run: Callable[..., object]) -> list[Array]:
    given = [arguments(last) for last in (0, 5, 8)]
    for each in given:
        run(*each)
    return [x for each in given for x in each]


def interpreted(func: ir.PrimFunc) -> Callable[..., object]:
    return lambda *given: bw.interpret(func, *given)


@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_or_right(name: str) -> None:
    func = bw.from_source(HEAD + PROGRAMS[name])
    expected = results(interpreted(func))
    s = Schedule(func)
    taken = 0
    for method, given in list(calls(s)):
        after = s.copy()
        try:
            getattr(after, method)(*given)
        except ScheduleError as error:
            if error.code == "BW309":
                raise
            continue
        if after.func is s.func:
            continue
        taken += 1
        bw.validate(after.func)
        found = results(interpreted(after.func))
        for x, y in zip(expected, found, strict=True):
            np.testing.assert_allclose(
                y, x, rtol=1e-5, atol=1e-6, err_msg=f"{method}{given}\n{after.func}"
            )
    assert taken > 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_as_interpreted(name: str) -> None:
    func = bw.from_source(HEAD + PROGRAMS[name])
    expected = results(interpreted(func))
    for x, y in zip(expected, results(bw.build(func)), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-6)


REFUSED: list[tuple[str, Callable[[Schedule], object]]] = [
    (P + Q + IF + C, lambda s: s.reverse_compute_inline("C")),
    (P + Q + IF + C, lambda s: s.reverse_compute_at("C", s.get_loops("Q")[0])),
    (P + IF + Q + C, lambda s: s.compute_at("P", s.get_loops("C")[0])),
    (P + Q + IF + C, lambda s: s.cache_read("C", "A", "local")),
    (P + IN_A_BLOCK + Q + C, lambda s: s.merge(s.get_loops("B")[0], s.get_loops("Q")[0])),
    (P + IN_A_BLOCK + Q + C, lambda s: s.cache_write("B", 0, "local")),
    (P + IN_A_BLOCK + Q + C, lambda s: s.parallel(s.get_loops("B")[0])),
    (SUM_ENDS, lambda s: s.decompose_reduction("C", s.get_loops("C")[0])),
    (SUM_ENDS, lambda s: s.rfactor(s.get_loops("C")[1], 0)),
]


@pytest.mark.parametrize(("program", "step"), REFUSED)
def test_refused(program: str, step: Callable[[Schedule], object]) -> None:
    s = Schedule(bw.from_source(HEAD + program))
    with pytest.raises(ScheduleError):
        step(s)


def test_the_message_names_the_return() -> None:
    s = Schedule(bw.from_source(HEAD + P + Q + IF + C))
    with pytest.raises(ScheduleError, match=r"move writes of C across a T\.ret\(\)") as caught:
        s.reverse_compute_at("C", s.get_loops("Q")[0])
    assert caught.value.code == "BW316"
    assert "one side of the return" in str(caught.value.help)


def test_steps_on_one_side_are_taken() -> None:
    s = Schedule(bw.from_source(HEAD + IF + P + Q + C))
    s.compute_inline("P")
    s.compute_at("Q", s.get_loops("C")[0])
    s.parallel(s.get_loops("C")[0])
    s.cache_write("C", 0, "local")
