"""`T.tensor(V[0, 0])`: a callee gets exactly the shape, the offset and the strides of the buffer
that is named, in the interpreter and in compiled code, also if it is a view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi

import blockwright as bw
from blockwright import ir
from blockwright.support import InterpretError, ScriptError, ValidationError

NAME = "blockwright.test.tensor_views.mark"
HEAD = """
@T.prim_func
def f(a: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 3), "int16")
"""
PASS = f'T.call_packed("{NAME}", T.tensor('

seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []


def mark(x: Any) -> None:
    """Note the shape and the strides (in elements) of a tensor, and add 100 to its elements."""
    array = x if isinstance(x, np.ndarray) else np.from_dlpack(x)
    steps = tuple(step // array.itemsize for step in array.strides)
    seen.append((array.shape, steps))
    array += 100


tvm_ffi.register_global_func(NAME, mark, override=True)


def run(program: str, how: str, rows: int = 4) -> tuple[np.ndarray, list[Any]]:
    """The array of a call on the first rows of a larger one, and what the callee saw."""
    func = bw.from_source(program)
    memory = np.arange(3 * rows + 9, dtype=np.int16).reshape(-1, 3)
    seen.clear()
    if how == "interpreted":
        bw.interpret(func, memory[:rows], packed={NAME: mark})
    else:
        checks = ["bounds"] if how == "sanitized" else []
        bw.build(func, sanitize=checks)["f"](memory[:rows])
    return memory, list(seen)


WAYS = ["interpreted", "compiled", "sanitized"]


@pytest.mark.parametrize("how", WAYS)
def test_rows_of_a_region_view(how: str) -> None:
    body = f"""
    with T.block("call"):
        T.reads(A[1:3, 0:3])
        T.writes(A[1:3, 0:3])
        V = T.match_buffer(A[1:3, 0:3], (2, 3), "int16")
        {PASS}V[0, 0]))
"""
    memory, calls = run(HEAD + body, how)
    assert calls == [((2, 3), (3, 1))]
    assert (memory // 100).any(axis=1).tolist() == [False, True, True, False, False, False, False]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("layout", ["", ", strides=[3, 1]", ", strides=[T.int64(), 1]"])
def test_columns_of_a_region_view_keep_the_strides_of_the_source(layout: str, how: str) -> None:
    body = f"""
    with T.block("call"):
        T.reads(A[0:n, 1:3])
        T.writes(A[0:n, 1:3])
        V = T.match_buffer(A[0:n, 1:3], (n, 2), "int16"{layout})
        {PASS}V[0, 0]))
"""
    memory, calls = run(HEAD + body, how)
    assert calls == [((4, 2), (3, 1))]
    assert (memory // 100)[:5].tolist() == [[0, 1, 1]] * 4 + [[0, 0, 0]]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("loop", ["range(n)", "T.unroll(2)"])
def test_one_row_per_iteration(loop: str, how: str) -> None:
    body = f"""
    for i in {loop}:
        with T.block("call"):
            vi = T.axis.spatial(n, i)
            T.reads(A[vi, 0:3])
            T.writes(A[vi, 0:3])
            V = T.match_buffer(A[vi, 0:3], (3,), "int16")
            V[1] = V[1] + T.int16(vi)
            {PASS}V[0]))
"""
    memory, calls = run(HEAD + body.replace("T.int16(vi)", 'T.Cast("int16", vi)'), how)
    rows = len(calls)
    assert calls == [((3,), (1,))] * rows
    wanted = np.arange(3 * rows).reshape(rows, 3) + 100
    wanted[:, 1] += np.arange(rows)
    assert (memory[:rows] == wanted).all()
    assert (memory[rows:] < 100).all()


@pytest.mark.parametrize("how", WAYS)
def test_a_view_of_a_view(how: str) -> None:
    body = f"""
    with T.block("outer"):
        T.reads(A[1:3, 0:3])
        T.writes(A[1:3, 0:3])
        V = T.match_buffer(A[1:3, 0:3], (2, 3), "int16")
        with T.block("inner"):
            T.reads(V[1, 1:3])
            T.writes(V[1, 1:3])
            W = T.match_buffer(V[1, 1:3], (2,), "int16")
            {PASS}W[0]))
"""
    memory, calls = run(HEAD + body, how)
    assert calls == [((2,), (1,))]
    assert np.argwhere(memory >= 100).tolist() == [[2, 1], [2, 2]]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("layout", "shape", "steps", "written"),
    [
        ("elem_offset=3", (2, 3), (3, 1), [3, 4, 5, 6, 7, 8]),
        ("elem_offset=n", (2, 3), (3, 1), [4, 5, 6, 7, 8, 9]),
        ("strides=[6, 2]", (2, 3), (6, 2), [0, 2, 4, 6, 8, 10]),
        ("strides=[1, n], elem_offset=1", (2, 3), (1, 4), [1, 2, 5, 6, 9, 10]),
    ],
)
def test_declared_views(layout: str, shape: Any, steps: Any, written: list[int], how: str) -> None:
    body = f"""
    with T.block("call"):
        T.reads(A[0:n, 0:3])
        T.writes(A[0:n, 0:3])
        V = T.decl_buffer((2, 3), "int16", data=A.data, {layout})
        {PASS}V[0, 0]))
"""
    memory, calls = run(HEAD + body, how)
    assert calls == [(shape, steps)]
    assert np.flatnonzero(memory.reshape(-1) >= 100).tolist() == written


@pytest.mark.parametrize("how", ["interpreted", "compiled"])
def test_the_part_of_a_temporary_that_is_used(how: str) -> None:
    """The temporary is passed as declared, although only a part of it is accessed."""
    body = f"""
    B = T.alloc_buffer((8, 5), "int16")
    for i, j in T.grid(8, 5):
        with T.block("fill"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.int16(1)
    with T.block("call"):
        T.reads(B[2:4, 1:4])
        T.writes(B[2:4, 1:4])
        V = T.match_buffer(B[2:4, 1:4], (2, 3), "int16", strides=[T.int64(), 1])
        {PASS}V[0, 0]))
    for i, j in T.grid(2, 3):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = B[vi + 2, vj + 1]
"""
    memory, calls = run(HEAD + body, how)
    assert [shape for shape, _ in calls] == [(2, 3)]
    assert memory[:3].tolist() == [[101] * 3] * 2 + [[6, 7, 8]]


@pytest.mark.parametrize("how", ["interpreted", "compiled"])
def test_a_temporary_with_aligned_rows(how: str) -> None:
    body = f"""
    B = T.alloc_buffer((4, 3), "int16")
    for i, j in T.grid(4, 3):
        with T.block("fill"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.block_attr({{"buffer_dim_align": [[0, 0, 8, 0]]}})
            B[vi, vj] = A[vi, vj]
    with T.block("call"):
        T.reads(B[0:4, 0:3])
        T.writes(B[0:4, 0:3])
        {PASS}B[0, 0]))
    for i, j in T.grid(4, 3):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = B[vi, vj]
"""
    memory, calls = run(HEAD + body, how)
    assert calls == [((4, 3), (8, 1))]
    assert (memory[:4] == np.arange(12).reshape(4, 3) + 100).all()


@pytest.mark.parametrize("place", ["A[1, 0]", "A[i, 0]", "A[1, 0:3]", "A[0, 0:3]", "3"])
def test_a_part_has_no_shape_of_its_own(place: str) -> None:
    program = HEAD.replace("a: T.handle", "a: T.handle, i: T.int64") + f"    {PASS}{place}))\n"
    with pytest.raises(ScriptError, match=r"T\.tensor passes a whole buffer") as error:
        bw.from_source(program)
    assert "declare a view" in str(error.value)


def test_a_part_in_a_program_that_is_built_from_nodes() -> None:
    func = bw.from_source(HEAD + f"    {PASS}A[0, 0]))\n")
    one = ir.const(1, "int32")

    def moved(node: ir.Node) -> ir.Node | None:
        return node.replace(indices=(one, one)) if isinstance(node, ir.BufferLoad) else None

    wrong = func.replace(body=ir.rewrite_bottom_up(func.body, moved))
    with pytest.raises(ValidationError, match=r"BW260.*whole buffer"):
        bw.build(wrong)
    with pytest.raises(InterpretError, match=r"BW757.*whole buffer"):
        bw.interpret(wrong, np.zeros((2, 3), np.int16))
