"""Deduced signatures state every element that a block touches; narrower ones are refused.

Each program runs, and what its blocks touch is compared with what they state (`touched_cells`).
"""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import find_problems
from blockwright.schedule import Schedule
from tests.analysis.access.random_blocks import random_blocks
from tests.analysis.access.touched_cells import TooLong, unstated_cells

HEAD = """
@T.prim_func
def main(a: T.handle, C: T.Buffer((40, 40), "int32"), I: T.Buffer((8,), "int32"),
         F: T.Buffer((90,), "int32"), Z: T.Buffer((), "int32"), p: T.int32):
    m = T.int32()
    A = T.match_buffer(a, (m + 100,), "int32")
"""
LEAST, GREATEST = -(2**31), 2**31 - 1
SIZES = [{"m": 1, "p": 0}, {"m": 3, "p": GREATEST}, {"m": 0, "p": 5}, {"m": 6, "p": LEAST}]

PROGRAMS = {
    "a loop that has ended tells nothing of sizes": """
for i in range(8):
    with T.block("B"):
        v = T.axis.spatial(8, i)
        for j in range(m - 3):
            F[v] = 0
        for k in range(4):
            F[v] = A[T.max(m - 3, 1) - 1 + k]
""",
    "the end of a loop is a name": """
for i in range(8):
    with T.block("B"):
        v = T.axis.spatial(8, i)
        x: T.int32 = v * 2
        for j in range(x):
            F[v] = A[j]
""",
    "the end of a loop is loaded after it has changed": """
for i in range(8):
    with T.block("B"):
        v = T.axis.spatial(8, i)
        I[v] = 30
        for j in range(I[v]):
            F[v] = A[j]
""",
    "two loaded values contradict each other": """
for i in range(8):
    with T.block("B"):
        v = T.axis.spatial(8, i)
        for j in range(I[v]):
            I[v] = 0
            for k in range(1):
                with T.block("D"):
                    w = T.axis.spatial(1, k)
                    T.where(I[v] < 1)
                    F[m + 3] = A[w]
        F[3] = A[v]
""",
    "a condition on loaded values": """
for i in range(8):
    with T.block("B"):
        v = T.axis.spatial(8, i)
        I[v] = 6
        for j in range(8):
            with T.block("D"):
                w = T.axis.spatial(8, j)
                T.where(j <= I[v])
                F[w] = A[w]
""",
    "an index with an effect": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        F[v] = A[T.call_extern("int32", "next", v)]
""",
    "an index with a name in it": """
x = T.var("int32")
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        F[v] = A[T.Let(x + x, where={x: v + 1})]
""",
    "the mask of a load": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        F.vstore([T.Ramp(v, 1, 4)], C.vload([0, T.Ramp(v, 1, 4)],
                 predicate=A[T.Ramp(v, 1, 4)] > T.Broadcast(3, 4)))
""",
    "an index of the address": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        T.evaluate(T.call_extern("int32", "use", T.address_of(F[I[v]])))
        F[v] = T.call_extern("int32", "use", 0)
""",
    "the initial value is for the first of a reduction": """
for k in range(4):
    with T.block("B"):
        v = T.axis.reduce(4, k)
        with T.init():
            F[v] = 0
        F[v] = F[v] + A[v]
""",
    "the place of the initial value is loaded before it changes": """
for i, k in T.grid(4, 3):
    with T.block("B"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            F[I[v]] = 0
        I[v] = 20
        F[I[v]] = F[I[v]] + A[w]
""",
    "a reduction of which each instance runs a part": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for k in range(4):
            with T.block("D"):
                w = T.axis.reduce(16, v * 4 + k)
                with T.init():
                    F[0] = 0
                F[0] = F[0] + A[w]
""",
    "a reduction that runs backwards": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for k in range(4):
            with T.block("D"):
                w = T.axis.reduce(4, 3 - k)
                with T.init():
                    F[v] = 0
                F[v] = F[v] + A[w]
""",
    "a reduction without its first instance": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for k in range(4):
            if k > 0:
                with T.block("D"):
                    w = T.axis.reduce(4, k)
                    with T.init():
                        F[v] = 0
                    F[v] = F[v] + A[w]
""",
    "a condition that tells a size by a loop": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for j in range(3):
            with T.block("D"):
                w = T.axis.spatial(3, j)
                T.where(j * 2 // 4 == v)
                F[v + 5] = A[w]
            with T.block("E"):
                w = T.axis.spatial(3, j)
                T.where(j * 2 // 4 == v)
                F[v] = A[w]
""",
    "a sum with a value wraps": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for k in range(4):
            F[v] = A[(p + k) // 536870912 + v + 4]
""",
    "values beside a constant": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        F[v] = A[p] + A[3] + A[p * 3 + v]
""",
    "the stride of a vector is a value": """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        F[T.Ramp(v + 20, p + v, 4)] = A[T.Ramp(v + 20, 1 - p, 4)]
""",
}


def program(body: str) -> ir.PrimFunc:
    return bw.from_source(HEAD + "\n".join("    " + line for line in body.splitlines()) + "\n")


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_deduced_signatures_state_what_blocks_touch(body: str) -> None:
    func = program(body)
    assert not find_problems(func)
    faults = [fault for sizes in SIZES for fault in unstated_cells(func, sizes)]
    assert not [fault for fault in faults if fault.startswith("B ")]


def test_random_blocks_touch_what_they_state() -> None:
    compared = 0
    for seed in range(14):
        func = program(random_blocks(seed))
        for sizes in SIZES:
            try:
                faults = unstated_cells(func, sizes, seed)
            except TooLong:
                continue
            assert not faults, f"seed {seed}, {sizes}"
            compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    "body",
    [
        """
for j in range(0 - m):
    Z[()] = 0
for k in range(3):
    with T.block("E"):
        w = T.axis.spatial(3, k)
        F[w] = C[w, 3] + D[w]
""",
        """
for k in range(3):
    with T.block("E"):
        w = T.axis.spatial(3, k)
        with T.init():
            Z[()] = Z[()] + 1
        F[w] = C[w, 3] + D[w]
""",
    ],
    ids=["behind a loop without iterations", "read by an initial value"],
)
def test_signatures_in_which_views_are_written_out(body: str) -> None:
    lines = "".join(" " * 8 + line + "\n" for line in body.strip().splitlines())
    head = """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        D = T.match_buffer(C[m + 1, 0:40], (40,), "int32")
"""
    func = Schedule(program(head + lines)).func
    assert not func.root.body.body.block.match_buffers
    assert not [fault for sizes in SIZES for fault in unstated_cells(func, sizes)]


def reads(body: str) -> list[str]:
    (block,) = [b for b in ir.blocks(program(body).body) if b.name == "B"]
    return [repr(r) for r in block.reads]


def test_values_that_loops_move_a_little_keep_narrow_regions() -> None:
    body = """
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        for k in range(4):
            F[v] = A[p + v + k] + A[p + v + 7 - k]
"""
    assert reads(body) == ["A[v + p:v + p + 8]"]


@pytest.mark.parametrize(
    ("stated", "statement"),
    [
        ("A[v]", "F[v] = A[v + 1]"),
        ("A[v]", 'T.evaluate(T.call_extern("int32", "use", T.address_of(C[0, 0])))\n'
                 "        F[v] = A[v + 1]"),
        ("A[p // 536870912 + 4:p // 536870912 + 6]",
         "for k in range(4):\n            F[v] = A[(p + k) // 536870912 + 4]"),
    ],
    ids=["elsewhere", "beside an address", "as if a value did not wrap"],
)  # fmt: skip
def test_narrower_signatures_are_refused(stated: str, statement: str) -> None:
    body = f"""
for i in range(4):
    with T.block("B"):
        v = T.axis.spatial(4, i)
        T.reads({stated})
        T.writes(F[v])
        {statement}
"""
    with pytest.raises(bw.ValidationError, match="BW216"):
        bw.validate(program(body))


ACCUMULATED = """
for i, k in T.grid(4, 2):
    with T.block("B"):
        v, r = T.axis.remap("SR", [i, k])
        T.reads(A[v * 4 : v * 4 + 4])
        T.writes(F[v * 4 : v * 4 + 4])
        D = T.match_buffer(F[{view}], (4,), "int32", strides={strides}, offset_factor=1)
        with T.init():
            for x in range({filled}):
                with T.block("first"):
                    w = T.axis.spatial({filled}, x)
                    {first} = 0
        for x in range(4):
            with T.block("next"):
                w = T.axis.spatial(4, x)
                F[v * 4 + w] = {read} + A[v * 4 + w]
"""
STILL = {"view": "v * 4 : v * 4 + 4", "filled": "4", "first": "D[w]", "read": "D[w]"}


def accumulated(strides: str = "()", **parts: str) -> ir.PrimFunc:
    return program(ACCUMULATED.format(strides=strides, **STILL | parts))


@pytest.mark.parametrize("strides", ["()", '("s",)'])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"read": "F[v * 4 + w]"},
        {"first": "F[v * 4 + w]"},
        {"read": "D[3 - w]"},
    ],
    ids=["by the view", "begun by the view", "read by the view", "another element of them"],
)
def test_elements_begun_through_a_view_need_not_be_stated_as_read(
    parts: dict[str, str], strides: str
) -> None:
    func = accumulated(strides, **parts)
    bw.validate(func)
    assert not [fault for sizes in SIZES for fault in unstated_cells(func, sizes)]


@pytest.mark.parametrize(
    "parts",
    [
        {"filled": "3"},
        {"read": "F[(v * 4 + w + 4) % 16]"},
        {"view": "v * 4 + 4 : v * 4 + 8", "first": "F[v * 4 + w]"},
    ],
    ids=["not begun", "outside", "a view of others"],
)
def test_other_elements_of_an_accumulator_must_be_stated_as_read(parts: dict[str, str]) -> None:
    func = accumulated(**parts)
    assert unstated_cells(func, SIZES[0])
    with pytest.raises(bw.ValidationError, match=r"BW216.* block B reads F"):
        bw.validate(func)


@pytest.mark.parametrize("read", ["D[0]", "F[v * 2 + r]"])
def test_a_view_that_moves_with_the_reduction_begins_one_of_its_elements(read: str) -> None:
    """The initial value is given in the first instance only, in which `r` is 0."""
    body = f"""
for i, k in T.grid(4, 2):
    with T.block("B"):
        v, r = T.axis.remap("SR", [i, k])
        D = T.match_buffer(F[v * 2 + r : v * 2 + r + 1], (1,), "int32", offset_factor=1)
        with T.init():
            D[0] = 0
        D[0] = {read} + A[v]
"""
    func = program(body)
    (block,) = [b for b in ir.blocks(func.body) if b.name == "B"]
    assert [repr(r) for r in block.reads] == ["F[v * 2 + r]", "A[v]"]
    assert not [fault for sizes in SIZES for fault in unstated_cells(func, sizes)]
    stated = program(body.replace("        D =", "        T.reads(A[v])\n        D ="))
    assert unstated_cells(stated, SIZES[0])
    with pytest.raises(bw.ValidationError, match=r"BW216.* block B reads F"):
        bw.validate(stated)


def test_own_reads_through_views_are_dropped_from_signatures() -> None:
    own = "T.reads(F[v * 4 : v * 4 + 4], "
    stated = ACCUMULATED.replace("T.reads(", own, 1).format(strides="()", **STILL)
    func = program(stated)
    (block,) = [b for b in ir.blocks(Schedule(func).func.body) if b.name == "B"]
    assert [r.buffer.name for r in block.reads] == ["A"]
