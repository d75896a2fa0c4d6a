"""Independent kernels as ranges of one loop: different work, symbolic extents, refused pairs."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.compute import Program
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning

HETEROGENEOUS = """
@T.prim_func
def main(a: T.handle, w: T.handle, x: T.handle, c: T.handle, s: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, 16), "float32")
    W = T.match_buffer(w, (16, 8), "float32")
    X = T.match_buffer(x, (m, 5), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    S = T.match_buffer(s, (m,), "float32")
    Y = T.alloc_buffer((m, 5), "float32")
    for i, j, k in T.grid(n, 8, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for r in range(m):
        for q in range(5):
            with T.block("Y"):
                vr, vq = T.axis.remap("SS", [r, q])
                Y[vr, vq] = T.exp(X[vr, vq])
        for q in range(5):
            with T.block("S"):
                vr, vq = T.axis.remap("SR", [r, q])
                with T.init():
                    S[vr] = T.float32(0)
                S[vr] = S[vr] + Y[vr, vq]
"""
"""A matrix product and a row sum of exponentials, with nothing in common."""


def loop(sch: Schedule, name: str, at: int = 0) -> LoopRV:
    return sch.get_loops(sch.get_block(name))[at]


def test_a_matrix_product_and_a_row_sum_in_one_launch() -> None:
    func = from_source(HETEROGENEOUS)
    sch = Schedule(func, verify="full")
    fused = sch.horizontal_fuse(loop(sch, "C"), loop(sch, "S"))
    sch.parallel(fused)
    sch.vectorize(loop(sch, "C", 1))
    node = sch.get(fused)
    assert isinstance(node, ir.For)
    assert node.kind is ir.ForKind.PARALLEL
    assert sum(f.kind is ir.ForKind.PARALLEL for f in ir.loops(sch.func.body)) == 1
    module = bw.build(sch.func)
    for n, m in [(4, 9), (1, 1), (0, 3), (33, 0)]:
        assert_same_meaning(func, sch.func, sizes={"n": n, "m": m})
        rng = np.random.default_rng(n)
        a, w, x = (rng.standard_normal(s).astype("float32") for s in ((n, 16), (16, 8), (m, 5)))
        c, s = np.zeros((n, 8), "float32"), np.zeros(m, "float32")
        module["main"](a, w, x, c, s)
        np.testing.assert_allclose(c, a @ w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(s, np.exp(x).sum(1), rtol=1e-5)


def test_parallel_loops_stay_parallel() -> None:
    func = from_source(HETEROGENEOUS)
    sch = Schedule(func, verify="full")
    for name in ("C", "S"):
        sch.parallel(loop(sch, name))
    node = sch.get(sch.horizontal_fuse(loop(sch, "C"), loop(sch, "S")))
    assert isinstance(node, ir.For)
    assert node.kind is ir.ForKind.PARALLEL
    assert_same_meaning(func, sch.func, sizes={"n": 5, "m": 3})


def test_pieces_of_a_loop_become_one_loop_again() -> None:
    """Pieces start where the one before ends; the fused loop runs the range as it was."""
    func = from_source(HETEROGENEOUS)
    sch = Schedule(func, verify="full")
    pieces = sch.loop_partition(loop(sch, "C", 1), [3, None])
    sch.horizontal_fuse(*pieces)
    sch.horizontal_fuse(*sch.loop_partition(loop(sch, "Y", 1), [1, 2, 2])[1:])
    assert_same_meaning(func, sch.func, sizes={"n": 5, "m": 3}, exact=True)


PAIR = """
for i in range(8):
    with T.block("first"):
        vi = T.axis.spatial(8, i)
        B[vi] = A[vi]
for i in range(8):
    with T.block("second"):
        vi = T.axis.spatial(8, i)
        D[vi] = C[vi]
"""
REFUSED = {
    "the second reads what the first writes": (
        PAIR.replace("C[vi]", "B[vi]"), [("first", 0), ("second", 0)], "BW372", "depend on one"),
    "the second writes what the first reads": (
        PAIR.replace("D[vi]", "A[vi]"), [("first", 0), ("second", 0)], "BW372",
        "uses A, which block second writes"),
    "both write one element": (
        PAIR.replace("D[vi]", "B[vi]"), [("first", 0), ("second", 0)], "BW372", "uses B"),
    "one loop": (PAIR, [("first", 0)], "BW304", "two or more loops"),
    "one loop twice": (PAIR, [("first", 0), ("first", 0)], "BW304", "each once"),
    "the wrong order": (
        PAIR, [("second", 0), ("first", 0)], "BW310", "not given in program order"),
    "another level": (
        PAIR.replace('for i in range(8):\n    with T.block("second"):\n        ',
                     'for o, i in T.grid(1, 8):\n    with T.block("second"):\n        '),
        [("first", 0), ("second", 1)], "BW310", "not adjacent"),
    "different kinds": (
        PAIR.replace("range(8)", "T.parallel(8)", 1), [("first", 0), ("second", 0)], "BW312",
        "not all serial"),
    "an annotation": (
        PAIR.replace("range(8)", "T.serial(8, annotations={'note': 1})", 1),
        [("first", 0), ("second", 0)], "BW312", "annotated with note"),
    "statements outside blocks": (
        PAIR + "    D[0] = 1.0\n", [("first", 0), ("second", 0)], "BW313", "outside blocks"),
    "dependent work between": (
        PAIR.replace('for i in range(8):\n    with T.block("second")',
                     'with T.block("between"):\n    C[0] = 1.0\n'
                     'for i in range(8):\n    with T.block("second")'),
        [("first", 0), ("second", 0)], "BW372", "uses C"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_meaning_is_refused(name: str) -> None:
    lines, places, code, words = REFUSED[name]
    names = ", ".join(f'{b}: T.Buffer((8,), "float32")' for b in "ABCD")
    text = f"@T.prim_func\ndef main({names}):\n" + textwrap.indent(lines.strip("\n"), "    ")
    sch = Schedule(from_source(text))
    before = sch.func
    with pytest.raises(ScheduleError, match=words) as error:
        sch.horizontal_fuse(*(loop(sch, block, at) for block, at in places))
    assert error.value.code == code
    assert sch.func is before


def test_independent_work_between_is_passed() -> None:
    lines = PAIR.replace(
        'for i in range(8):\n    with T.block("second")',
        'with T.block("between"):\n    E[0] = A[0]\nfor i in range(8):\n    with T.block("second")',
    )
    names = ", ".join(f'{b}: T.Buffer((8,), "float32")' for b in "ABCDE")
    text = f"@T.prim_func\ndef main({names}):\n" + textwrap.indent(lines.strip("\n"), "    ")
    sch = Schedule(from_source(text), verify="full")
    sch.horizontal_fuse(loop(sch, "first"), loop(sch, "second"))
    assert_same_meaning(from_source(text), sch.func, exact=True)


def test_projections_of_one_input_become_one_launch() -> None:
    """Query, key and value of attention: kernels of different widths, each tiled its own way."""
    p = Program("qkv")
    x = p.param("X", (24, 16), "float32")
    widths = {"Q": 16, "K": 8, "V": 4}
    weights = {n: p.param(f"W{n}", (16, w), "float32") for n, w in widths.items()}
    made = [
        p.reduce(n, (24, w), (16,), lambda i, j, k, n=n: x[i, k] * weights[n][k, j])
        for n, w in widths.items()
    ]
    func = p.finish(made)
    sch = Schedule(func, verify="full")
    outer: list[LoopRV] = []
    for name, tile in (("Q", 8), ("K", 4), ("V", 12)):
        i, j, k = sch.get_loops(sch.get_block(name))
        io, ii = sch.split(i, [None, tile])
        sch.reorder(io, k, ii, j)
        init = sch.decompose_reduction(sch.get_block(name), k)
        sch.vectorize(sch.get_loops(init)[-1])
        sch.vectorize(j)
        outer.append(io)
    sch.parallel(sch.horizontal_fuse(*outer))
    (launch,) = [f for f in ir.loops(sch.func.body) if f.kind is ir.ForKind.PARALLEL]
    assert ir.is_const_int(launch.extent, 3 + 6 + 2)
    assert_same_meaning(func, sch.func)
    rng = np.random.default_rng(1)
    a, *ws = (
        rng.integers(-4, 5, s).astype("float32") for s in ((24, 16), (16, 16), (16, 8), (16, 4))
    )
    outs = [np.empty((24, w), "float32") for w in widths.values()]
    bw.build(sch.func)["qkv"](a, *ws, *outs)
    for w, out in zip(ws, outs, strict=True):
        np.testing.assert_array_equal(out, a @ w)
