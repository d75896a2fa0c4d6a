"""The element-wise rule: one parallel nest with vectors along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.lower import lower
from blockwright.script.compute import Program

N, S = (ir.var(name, "int64") for name in "ns")


def chain(*shape: ir.Expr | int) -> ir.PrimFunc:
    p = Program("chain")
    x, bias = p.param("X", shape, "float32"), p.param("bias", shape[-1:], "float32")
    a = p.compute("a", shape, lambda *i: x[i] + bias[i[-1]])
    b = p.compute("b", shape, lambda *i: ir.call("tanh", a[i]))
    return p.finish([p.compute("c", shape, lambda *i: b[i] * 2.0 + 1.0)])


def transposed() -> ir.PrimFunc:
    p = Program("transposed")
    x = p.param("X", (N, S), "float32")
    t = p.compute("t", (S, N), lambda j, i: x[i, j] * 0.5)
    return p.finish([p.compute("y", (S, N), lambda j, i: t[j, i] + 1.0)])


def gathered() -> ir.PrimFunc:
    p = Program("gathered")
    table, rows = p.param("T", (12, 10), "float32"), p.param("R", (N,), "int64")
    return p.finish([p.compute("y", (N, 10), lambda i, j: table[rows[i], j])])


def padded() -> ir.PrimFunc:
    p = Program("padded")
    x = p.param("X", (N, 5), "float32")

    def body(i: ir.Expr, j: ir.Expr) -> ir.Expr:
        inside = ir.logical_and(ir.compare(ir.GE, j, 2), ir.compare(ir.LT, j, 7))
        return ir.if_then_else(inside, x[i, j - 2], 0.0)

    return p.finish([p.compute("y", (N, 9), body)])


def two_outputs() -> ir.PrimFunc:
    p = Program("two_outputs")
    x = p.param("X", (N, 6), "float32")
    a = p.compute("a", (N, 6), lambda i, j: x[i, j] + 1.0)
    return p.finish([a, p.compute("b", (N, 6), lambda i, j: a[i, j] * 2.0)])


def joined(axis: int, *sizes: ir.Expr | int) -> ir.PrimFunc:
    """max(X0, 0) in front of X1 in front of X2 …, times 2 plus R."""
    p = Program("joined")
    shapes = [(size, 5) if axis == 0 else (4, size) for size in sizes]
    xs = [p.param(f"X{k}", shape, "float32") for k, shape in enumerate(shapes)]
    total: ir.Expr | int = 0
    starts: list[ir.Expr | int] = []
    for size in sizes:
        starts.append(total)
        total = total + size
    whole = (total, 5) if axis == 0 else (4, total)
    r = p.param("R", whole, "float32")
    first = p.compute("first", shapes[0], lambda i, j: ir.maximum(xs[0][i, j], 0.0))
    b = p.alloc("b", whole, "float32")
    for start, shape, x in zip(starts, shapes, [first, *xs[1:]], strict=True):

        def place(i: ir.Expr, j: ir.Expr, start: Any = start) -> tuple[ir.Expr, ir.Expr]:
            return (i + start, j) if axis == 0 else (i, j + start)

        p.compute("b_part", shape, lambda i, j, x=x: x[i, j], into=(b, place))
    return p.finish([p.compute("y", whole, lambda i, j: b[i, j] * 2.0 + r[i, j])])


def scalar() -> ir.PrimFunc:
    p = Program("scalar")
    x = p.param("X", (), "float32")
    return p.finish([p.compute("y", (), lambda: x[()] + 1.0)])


PROGRAMS: dict[str, tuple[ir.PrimFunc, list[dict[str, int]]]] = {
    "one axis": (chain(N), [{"n": 1}, {"n": 9}]),
    "two axes": (chain(N, 6), [{"n": 1}, {"n": 5}]),
    "four axes": (chain(N, 2, S, 3), [{"n": 2, "s": 3}]),
    "odd fixed extents": (chain(3, 17), [{}]),
    "one element per row": (chain(N, 1), [{"n": 7}]),
    "one element": (chain(1, 1), [{}]),
    "larger than a task": (chain(70, 65), [{}]),
    "transposed": (transposed(), [{"n": 3, "s": 9}]),
    "gathered": (gathered(), [{"n": 4}]),
    "padded": (padded(), [{"n": 3}]),
    "two outputs": (two_outputs(), [{"n": 3}]),
    "joined rows": (joined(0, N, 3, S), [{"n": 1, "s": 2}, {"n": 4, "s": 9}]),
    "joined columns": (joined(1, N, 3, S), [{"n": 1, "s": 2}, {"n": 4, "s": 9}]),
    "joined columns of fixed sizes": (joined(1, 17, 1, 8), [{}]),
    "no axes": (scalar(), [{}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_means_the_same(checks: Any, name: str) -> None:
    func, sizes = PROGRAMS[name]
    checks.taken_by("elementwise", func, *sizes)


def test_light_blocks_are_inlined(checks: Any) -> None:
    func = checks.taken_by("elementwise", chain(N, 6)).func
    assert [b.name for b in ir.blocks(func)] == ["root", "c"]
    assert "vectorized" in checks.loop_kinds(func)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_whole_are_made_in_place_and_without_branches(checks: Any, axis: int) -> None:
    """What comes before and after a concatenation moves into its parts: one store each."""
    func = checks.taken_by("elementwise", joined(axis, 24, 8, 40)).func
    assert [b.name for b in ir.blocks(func)] == ["root", "b_part", "b_part_1", "b_part_2"]
    assert not func.root.alloc_buffers
    lowered = lower(func, "x86-64-v3")
    choices = [
        n
        for n in ir.walk(lowered.body)
        if isinstance(n, (ir.Select, ir.IfThenElse))
        or (isinstance(n, ir.Call) and n.op == "if_then_else")
    ]
    assert not choices
    nests = func.root.body.seq if isinstance(func.root.body, ir.SeqStmt) else [func.root.body]
    assert len(nests) == (3 if axis == 0 else 1)  # columns of a row in one pass


@pytest.mark.parametrize("axis", [0, 1])
def test_joined_tensors_agree_with_numpy(checks: Any, axis: int) -> None:
    run = checks.native(joined(axis, N, 3, S))
    for n, s in ((1, 1), (7, 20), (64, 33), (300, 0), (0, 2)):
        shapes = [(k, 5) if axis == 0 else (4, k) for k in (n, 3, s)]
        xs = [checks.normal(*shape, seed=k) for k, shape in enumerate(shapes)]
        whole = np.concatenate([np.maximum(xs[0], 0), *xs[1:]], axis)
        r, out = checks.normal(*whole.shape, seed=9), np.full_like(whole, np.nan)
        run(*xs, r, out)
        np.testing.assert_array_equal(out, whole * 2 + r)


def test_a_part_that_reads_another_part_is_made_after_it(checks: Any) -> None:
    p = Program("halves")
    x = p.param("X", (6, 8), "float32")
    half = p.compute("half", (6, 8), lambda i, j: x[i, j] * 0.5)
    whole = p.alloc("y", (6, 16), "float32")
    p.compute("left", (6, 8), lambda i, j: half[i, j], into=(whole, lambda i, j: (i, j)))
    p.compute("right", (6, 8), lambda i, j: half[i, 7 - j], into=(whole, lambda i, j: (i, j + 8)))
    checks.taken_by("elementwise", p.finish([whole]), {})


def test_short_loops_stay_on_one_thread(checks: Any) -> None:
    assert "parallel" not in checks.loop_kinds(checks.taken_by("elementwise", chain(4, 8)).func)
    assert "parallel" in checks.loop_kinds(checks.taken_by("elementwise", chain(4096, 8)).func)


def test_reductions_are_refused(checks: Any) -> None:
    p = Program("total")
    x = p.param("X", (N, 6), "float32")
    func = p.finish([p.reduce("y", (N,), (6,), lambda i, k: x[i, k])])
    assert checks.refusal("elementwise", func) == "a block reduces"


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_the_library_agrees_with_numpy(checks: Any, rows: int) -> None:
    run = checks.native(chain(N, 13))
    x, bias = checks.normal(rows, 13), checks.normal(13, seed=1)
    out = np.full((rows, 13), np.nan, "float32")
    run(x, bias, out)
    np.testing.assert_allclose(out, np.tanh(x + bias) * 2 + 1, rtol=1e-5, atol=1e-6)


def test_a_transposition_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(transposed())
    x = checks.normal(37, 21)
    out = np.empty((21, 37), "float32")
    run(x, out)
    np.testing.assert_array_equal(out, x.T * np.float32(0.5) + 1)


def test_few_elements_from_far_apart_are_moved_one_by_one(checks: Any) -> None:
    """Channels of a picture that come to lie together: no vector of three is gathered."""
    p = Program("channels_last")
    x = p.param("X", (3, 20, 24), "float32")
    func = p.finish([p.compute("y", (20, 24, 3), lambda h, w, c: x[c, h, w])])
    result = checks.taken_by("elementwise", func, {})
    assert "vectorized" not in checks.loop_kinds(result.func)
    pixels = checks.normal(3, 20, 24)
    out = np.empty((20, 24, 3), "float32")
    checks.native(func)(pixels, out)
    np.testing.assert_array_equal(out, pixels.transpose(1, 2, 0))
