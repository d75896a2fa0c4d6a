"""Moves that would change what a program computes: each rule refuses with its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.location_programs import PROGRAMS
from tests.schedule.refusals import require_taught

HEAD = """
@T.prim_func
def main(A: T.Buffer((10,), "float32"), M: T.Buffer((8, 8), "float32"), Y: T.Buffer((10,), "float32"), Z: T.Buffer((10,), "float32")):
    S = T.alloc_buffer((10,), "float32")
"""  # noqa: E501
X = """
for i in range(10):
    with T.block("x"):
        vi = T.axis.spatial(10, i)
        S[vi] = A[vi] * 2.0
"""
WINDOW = """
for i in range(8):
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi] + S[vi + 2]
"""
OVERLAPPED = """
for i in range(8):
    for j in range(3):
        with T.block("x"):
            vi = T.axis.spatial(10, i + j)
            S[vi] = A[vi] * 2.0
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi] + S[vi + 2]
"""
ROW_SUM = """
for i, k, u in T.grid(8, 8, 2):
    with T.block("sum"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            S[vi] = T.float32(0)
        S[vi] = S[vi] + M[vi, vk]
"""
COPY = """
for i in range(8):
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi]
"""
UPDATED = """
for i in range(8):
    with T.block("zero"):
        vi = T.axis.spatial(8, i)
        S[vi] = T.float32(0)
for i, k in T.grid(8, 8):
    with T.block("sum"):
        vi, vk = T.axis.remap("SR", [i, k])
        S[vi] = S[vi] + M[vi, vk]
"""


def indented(text: str, by: str = "    ") -> str:
    return "".join(f"{by}{line}\n" for line in text.strip("\n").splitlines())


def function(*parts: str) -> ir.PrimFunc:
    found = from_source(HEAD + "".join(map(indented, parts)))
    assert isinstance(found, ir.PrimFunc)
    return found


def corpus(name: str) -> ir.PrimFunc:
    found = from_source(PROGRAMS[name])
    assert isinstance(found, ir.PrimFunc)
    return found


def at(s: Schedule, block: str, position: int = 0) -> LoopRV:
    return s.get_loops(s.get_block(block))[position]


def into(kind: str, block: str, other: str, position: int = 0) -> Callable[[Schedule], object]:
    return lambda s: getattr(s, kind)(s.get_block(block), at(s, other, position))


def step(kind: str, block: str, *args: int) -> Callable[[Schedule], object]:
    return lambda s: getattr(s, kind)(s.get_block(block), *args)


Case = tuple[ir.PrimFunc, Callable[[Schedule], object], str, str]
CASES: dict[str, Case] = {
    # ---------------------------------------------------------------- compute_at
    "a reduction whose terms would count once instead of twice": (
        function(ROW_SUM, COPY), into("compute_at", "sum", "y"), "BW315", "more than once"),
    "the initial value of a decomposed reduction, into its loops": (
        function(UPDATED, COPY), into("compute_at", "zero", "sum", 1), "BW314", "would undo it"),
    "a decomposed reduction without its initial value": (
        function(UPDATED, COPY), into("compute_at", "sum", "y"), "BW314", "would stay behind"),
    "an input overwritten by a later iteration of the new loop": (
        function(X, """
for i in range(8):
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi] + S[vi + 2]
    with T.block("clear"):
        vi = T.axis.spatial(8, i)
        A[vi + 1] = T.float32(0)
"""), into("compute_at", "x", "y"), "BW316", "clear overwrites A"),
    "an input overwritten between the places": (
        function(X, """
for i in range(8):
    with T.block("clear"):
        vi = T.axis.spatial(8, i)
        A[vi] = T.float32(0)
""", WINDOW), into("compute_at", "x", "y"), "BW316", "clear overwrites A"),
    "overlapping parts in lanes": (
        function(X, WINDOW.replace("range(8)", "T.vectorized(8)")),
        into("compute_at", "x", "y"), "BW317", "may write the same elements"),
    "a condition decides whether the consumer runs": (
        function(X, """
for i in range(8):
    if i < 4:
        with T.block("y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = S[vi] + S[vi + 2]
"""), into("compute_at", "x", "y"), "BW351", "other than a loop decides"),
    "a buffer used outside blocks": (
        function(X, WINDOW, "for q in range(8):\n    Z[q] = S[q]\n"),
        into("compute_at", "x", "y"), "BW313", "outside blocks"),
    "an effect": (
        function(X.replace("S[vi] = A[vi] * 2.0",
                           'S[vi] = A[vi] * 2.0\n        T.evaluate(T.call_extern("note", '
                           'vi, dtype="int32"))'), WINDOW),
        into("compute_at", "x", "y"), "BW353", "does more than write buffers"),
    # ---------------------------------------------------------------- reverse_compute_at
    "sums over parts that overlap": (
        function(OVERLAPPED, """
for i in range(10):
    with T.block("z"):
        vi = T.axis.reduce(10, i)
        with T.init():
            Z[0] = T.float32(0)
        Z[0] = Z[0] + S[vi]
"""), into("reverse_compute_at", "z", "x"), "BW314", "neither complete nor a reduction"),
    "an old value read by a later iteration of the new loop": (
        function("""
for i in range(8):
    with T.block("old"):
        vi = T.axis.spatial(8, i)
        Z[vi] = Y[vi] + 1.0
    with T.block("x"):
        vi = T.axis.spatial(8, i)
        S[vi + 1] = A[vi + 1] * 2.0
""", """
for i in range(8):
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi + 1] = S[vi + 1]
"""), into("reverse_compute_at", "y", "x"), "BW316", "old uses Y"),
    "a consumer that its loops run in part": (
        function(X, COPY.replace("spatial(8", "spatial(10")),
        into("reverse_compute_at", "y", "x"), "BW361", "do not reach its whole domain"),
    "rows that later iterations make": (
        corpus("blur"), into("reverse_compute_at", "bz", "by"), "BW358", "does not determine"),
    # ---------------------------------------------------------------- compute_inline
    "an element that nobody wrote": (
        function(X.replace("range(10)", "range(4)").replace("spatial(10", "spatial(4"), WINDOW),
        step("compute_inline", "x"), "BW323", "does not write"),
    "an input overwritten while the consumer's loop runs": (
        function(X, """
for i in range(8):
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi] + S[vi + 2]
    with T.block("clear"):
        vi = T.axis.spatial(8, i)
        A[vi] = T.float32(0)
"""), step("compute_inline", "x"), "BW316", "clear overwrites A"),
    "several instances that write one element": (
        function("""
for i in range(10):
    with T.block("x"):
        vi = T.axis.spatial(10, i)
        S[vi // 2] = A[vi] * 2.0
""", COPY.replace("8", "5")), step("compute_inline", "x"), "BW314", "write the same element"),
    # ---------------------------------------------------------------- reverse_compute_inline
    "a consumer that its loops run in part is not inlined": (
        function(X, COPY.replace("spatial(8", "spatial(10")),
        step("reverse_compute_inline", "y"), "BW361", "do not reach its whole domain"),
    "a consumer of a window": (
        function(X, WINDOW), step("reverse_compute_inline", "y"), "BW325", "several indices"),
    # ---------------------------------------------------------------- store_at
    "storage of a parameter": (
        function(X, WINDOW), into("store_at", "y", "y"), "BW321", "is a parameter"),
    "storage that a block outside of the loop uses": (
        function(X, WINDOW), into("store_at", "x", "x"), "BW322", "is not inside loop"),
    "storage of values that cross iterations": (
        function("""
for i in range(8):
    with T.block("x"):
        vi = T.axis.spatial(8, i)
        S[vi] = A[vi] * 2.0
    with T.block("y"):
        vi = T.axis.spatial(8, i)
        Y[vi] = S[vi] + S[T.max(vi - 1, 0)]
"""), into("store_at", "x", "x"), "BW316", "an earlier iteration of i wrote"),
    "storage of a sum that crosses iterations": (
        function("""
for k in range(8):
    for i in range(8):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + M[vi, vk]
    for i in range(8):
        with T.block("y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = S[vi]
"""), into("store_at", "sum", "sum"), "BW316", "drive the reduction of block sum"),
    "storage inside another block": (
        corpus("nested"), into("store_at", "a", "tileA"), "BW310", "different scopes"),
    # ---------------------------------------------------------------- rolling_buffer
    "rolling without a window": (
        function(X, WINDOW), step("rolling_buffer", "x", 0), "BW345", "fixed smaller step"),
    "rolling an output": (
        function(X, WINDOW), step("rolling_buffer", "y", 0), "BW321", "is a parameter"),
    "rolling along a parallel loop": (
        function(OVERLAPPED.replace("i in range(8)", "i in T.parallel(8)")),
        step("rolling_buffer", "x", 0), "BW312", "cannot use values of the previous one"),
    "rolling while a reader stands outside": (
        function(OVERLAPPED, """
for i in range(10):
    with T.block("z"):
        vi = T.axis.spatial(10, i)
        Z[vi] = S[vi]
"""), step("rolling_buffer", "x", 0), "BW345", "no loop shared"),
    "rolling over inputs that change": (
        function(OVERLAPPED + """
    with T.block("clear"):
        vi = T.axis.spatial(8, i)
        A[vi + 1] = T.float32(0)
"""), step("rolling_buffer", "x", 0), "BW316", "clear changes what block x reads"),
    "rolling a buffer of two writers": (
        corpus("concat2"), step("rolling_buffer", "cat0", 0), "BW322", "writes C too"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_step_is_refused_and_says_why(name: str) -> None:
    require_taught(*CASES[name])


def test_steps_that_need_iterations_on_their_own_are_refused_after_rolling() -> None:
    sch = Schedule(function(OVERLAPPED))
    sch.rolling_buffer(sch.get_block("x"), 0)
    for refused in (
        lambda: sch.reorder(at(sch, "x", 1), at(sch, "x", 0)),
        lambda: sch.parallel(at(sch, "x")),
        lambda: sch.store_at(sch.get_block("x"), at(sch, "x")),
        lambda: sch.rolling_buffer(sch.get_block("x"), 0),
    ):
        with pytest.raises(ScheduleError):
            refused()


def test_padding_in_a_circular_buffer_is_not_taken_apart() -> None:
    """The constant written first would be overwritten by elements that share its place."""
    padded = OVERLAPPED.replace("A[vi] * 2.0", "T.if_then_else(vi < 8, A[vi], T.float32(0))")
    sch = Schedule(function(padded))
    sch.rolling_buffer(sch.get_block("x"), 0)
    with pytest.raises(ScheduleError, match="write the same element") as caught:
        sch.decompose_padding(sch.get_block("x"), at(sch, "x"))
    assert caught.value.code == "BW314"
