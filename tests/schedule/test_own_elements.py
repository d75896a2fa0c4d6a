"""Which reads of a buffer that a block writes are of the element it updates, and which are not.

Steps on blocks of either kind, with signatures written and inferred: each is refused, or the
program computes what it did, which the interpreter checks for races too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.canonical.own_reads import without_own_reads
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

Step = Callable[[Schedule], object]

NEST = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), C: T.Buffer((9,), "float32")):
    for i, k in T.grid(8, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
"""
UPDATE = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), C: T.Buffer((9,), "float32")):
    for i in range(9):
        with T.block("Z"):
            vi = T.axis.spatial(9, i)
            C[vi] = T.float32(1)
    for i, k in T.grid(8, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
"""
SEVERAL = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i, k in T.grid({n}, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                for j in range({m}):
                    C[{at}] = T.float32(1)
            for j in range({m}):
                C[{at}] = C[{at}] + A[{at}, vk] * C[{other}]
"""
BODY = " " * 12

ELSEWHERE = {
    "next": NEST
    + f"""{BODY}with T.init():
{BODY}    C[vi] = T.float32(1)
{BODY}C[vi] = C[vi] + A[vi, vk] * C[vi + 1]
""",
    "last": NEST
    + f"""{BODY}with T.init():
{BODY}    C[vi] = T.float32(1)
{BODY}C[vi] = C[vi] + A[vi, vk] * C[8]
""",
    "hidden": NEST
    + f"""{BODY}T.reads(C[vi:vi + 2], A[vi, vk])
{BODY}T.writes(C[vi])
{BODY}with T.init():
{BODY}    C[vi] = T.float32(1)
{BODY}C[vi] = C[vi] + A[vi, vk] * C[vi + 1]
""",
    "initial value": NEST
    + f"""{BODY}with T.init():
{BODY}    C[vi + 1] = C[vi] * T.float32(0.5)
{BODY}C[vi + 1] = C[vi + 1] + A[vi, vk]
""",
    "own initial value": NEST
    + f"""{BODY}with T.init():
{BODY}    C[vi] = C[vi] * T.float32(0.5)
{BODY}C[vi] = C[vi] + A[vi, vk]
""",
    "rare initial value": NEST
    + f"""{BODY}with T.init():
{BODY}    if vi % 2 == 0:
{BODY}        C[vi] = T.float32(0)
{BODY}C[vi] = C[vi] + A[vi, vk]
""",
    "update, next": UPDATE + f"{BODY}C[vi] = C[vi] + A[vi, vk] * C[vi + 1]\n",
    "update, last": UPDATE + f"{BODY}C[vi] = C[vi] + A[vi, vk] * C[8]\n",
    "update, mirrored": UPDATE + f"{BODY}C[vi] = C[vi] + A[vi, vk] * C[7 - vi]\n",
    "four at once": SEVERAL.format(n=2, m=4, at="vi * 4 + j", other="vi * 4 + 3 - j"),
    "in between": SEVERAL.format(n=4, m=2, at="j * 4 + vi", other="j * 4 + (vi + 1) % 4"),
}

PLAIN = (
    NEST
    + f"""{BODY}with T.init():
{BODY}    C[vi] = T.float32(0)
{BODY}C[vi] = C[vi] + A[vi, vk]
"""
)
STATED = (
    NEST
    + f"""{BODY}T.reads(C[vi], A[vi, vk])
{BODY}T.writes(C[vi])
{BODY}with T.init():
{BODY}    C[vi] = T.float32(0)
{BODY}C[vi] = C[vi] + A[vi, vk]
"""
)


def _rows(i: ir.Expr, _: ir.Expr) -> tuple[ir.Expr]:
    return (i,)


def _swapped(i: ir.Expr, k: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    return k, i


def _tile(s: Schedule) -> None:
    i, k = s.get_loops("P")
    io, ii = s.split(i, [None, 2])
    ko, ki = s.split(k, [None, 2])
    s.reorder(ko, io, ii, ki)


def _blockized(s: Schedule) -> None:
    i, k = s.get_loops("P")
    io, ii = s.split(i, [None, 4])
    ko, ki = s.split(k, [None, 4])
    s.reorder(io, ko, ii, ki)
    outer = s.blockize(ii)
    s.decompose_reduction(outer, ko)


STEPS: dict[str, Step] = {
    "reorder": lambda s: s.reorder(*reversed(s.get_loops("P"))),
    "tile": _tile,
    "decompose outside": lambda s: s.decompose_reduction("P", s.get_loops("P")[0]),
    "decompose": lambda s: s.decompose_reduction("P", s.get_loops("P")[1]),
    "transform_block_layout": lambda s: s.transform_block_layout("P", _swapped),
    "parallel": lambda s: s.parallel(s.get_loops("P")[0]),
    "vectorize": lambda s: s.vectorize(s.get_loops("P")[0]),
    "vectorize sum": lambda s: s.vectorize(s.get_loops("P")[1]),
    "bind": lambda s: s.bind(s.get_loops("P")[0], "threadIdx.x"),
    "rfactor": lambda s: s.rfactor(s.get_loops("P")[1], 0),
    "blockize": lambda s: s.blockize(s.get_loops("P")[0]),
    "blockize sum": lambda s: s.blockize(s.get_loops("P")[1]),
    "blockize, decompose": _blockized,
    "cache_write": lambda s: s.cache_write("P", 0, "local"),
    "cache_inplace": lambda s: s.cache_inplace("P", 0, "local"),
    "reindex_cache_write": lambda s: s.reindex_cache_write("P", 0, "local", _rows),
    "write_at": lambda s: s.write_at(s.get_loops("P")[0], "P", 0, "local"),
    "loop_partition": lambda s: s.loop_partition(s.get_loops("P")[1], [3, None]),
    "software_pipeline": lambda s: s.software_pipeline(s.get_loops("P")[0], [0]),
}
LEGAL = [
    "reorder",
    "tile",
    "decompose",
    "transform_block_layout",
    "parallel",
    "vectorize",
    "bind",
    "rfactor",
    "blockize",
    "blockize sum",
    "blockize, decompose",
    "cache_write",
    "reindex_cache_write",
    "write_at",
]


def check(before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    bw.validate(after)
    shapes = [(8, 8), before.buffers[1].shape]
    a = np.random.default_rng(1).standard_normal((8, 8)).astype("float32")
    c = np.arange(int(ir.const_int(shapes[1][0]) or 0), dtype="float32")
    expected, found = c.copy(), c.copy()
    bw.interpret(before, a.copy(), expected)
    for order in (None, "reverse"):
        found = c.copy()
        bw.interpret(after, a.copy(), found, order=order)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_refused_or_right(name: str, step: str) -> None:
    func = bw.from_source(ELSEWHERE[name])
    s = Schedule(func, verify="full")
    try:
        STEPS[step](s)
    except ScheduleError as error:
        if error.code == "BW309":  # a step that made a broken program
            raise
        return
    check(func, s.func)


@pytest.mark.parametrize("step", LEGAL)
def test_stated_accumulator(step: str) -> None:
    """A signature that lists the accumulator makes a reduction no less a reduction."""
    func = bw.from_source(STATED)
    s = Schedule(func, verify="full")
    STEPS[step](s)
    check(func, s.func)


@pytest.mark.parametrize("step", ["reorder", "parallel", "decompose", "blockize"])
def test_refused_elsewhere(step: str) -> None:
    """These change the result of a sum that reads what other instances make."""
    for name in ("next", "hidden"):
        with pytest.raises(ScheduleError):
            STEPS[step](Schedule(bw.from_source(ELSEWHERE[name])))


def test_signatures_of_either_kind() -> None:
    def reads(source: str) -> list[str]:
        block = ir.blocks(without_own_reads(bw.from_source(source)).body)[-1]
        return [r.buffer.name for r in block.reads]

    assert reads(PLAIN) == reads(STATED) == ["A"]
    assert set(reads(ELSEWHERE["next"])) == set(reads(ELSEWHERE["hidden"])) == {"A", "C"}
    assert set(reads(ELSEWHERE["initial value"])) == {"A", "C"}
    assert set(reads(ELSEWHERE["rare initial value"])) == {"A", "C"}
    assert reads(ELSEWHERE["four at once"]) == ["A"]
    assert set(reads(ELSEWHERE["in between"])) == {"A", "C"}


def test_narrow_signature_is_refused() -> None:
    """A written signature must state the reads of other elements."""
    hidden = ELSEWHERE["hidden"].replace("C[vi:vi + 2], ", "")
    with pytest.raises(bw.ValidationError) as found:
        bw.validate(bw.from_source(hidden))
    assert "BW216" in str(found.value)


@pytest.mark.parametrize("size", [32, 37])
@pytest.mark.parametrize("symbolic", [False, True])
def test_blockized_sums_need_no_accumulator(size: int, symbolic: bool) -> None:
    rows = "n" if symbolic else str(size)
    source = f"""
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, ({rows}, 40), "float32")
    C = T.match_buffer(c, ({rows},), "float32")
    for i, k in T.grid({rows}, 40):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
"""
    func = bw.from_source(source if symbolic else source.replace("    n = T.int32()\n", ""))
    s = Schedule(func, verify="full")
    i, k = s.get_loops("C")
    io, ii = s.split(i, [None, 8])
    ko, ki = s.split(k, [None, 5])
    s.reorder(io, ko, ii, ki)
    outer = s.blockize(ii)
    block = s.get(outer)
    assert isinstance(block, ir.Block)
    assert [r.buffer.name for r in block.reads] == ["A"]
    a, found = np.random.default_rng(1).random((size, 40), dtype="float32"), np.empty(size, "f4")
    bw.interpret(s.func, a, found)
    np.testing.assert_allclose(found, a.sum(1), rtol=1e-5)
