"""Allocated buffers with declared strides: each element has memory of its own, in each version."""

from itertools import permutations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import simplify
from blockwright.build import build
from blockwright.support import ValidationError
from blockwright.testing.check import assert_same_meaning
from blockwright.testing.generators import random_program


def program(shape: str, strides: str) -> str:
    return f"""
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, {shape}, "float32")
    B = T.match_buffer(b, {shape}, "float32")
    C = T.alloc_buffer({shape}, "float32", strides={strides})
    for i, j in T.grid(*{shape}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(*{shape}):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] * T.float32(2)
"""


@pytest.mark.parametrize("strides", ["(1, 7)", "(8, 1)", "(11, 2)", "(2, 13)"])
@pytest.mark.parametrize("step", ["double_buffer", "software_pipeline"])
def test_versions_do_not_overlap(strides: str, step: str) -> None:
    func = bw.from_source(program("(6, 5)", strides).replace("    n = T.int32()\n", ""))
    sch = bw.Schedule(func, verify="full")
    loop = sch.get_loops(sch.get_block("B"))[0]
    sch.compute_at(sch.get_block("C"), loop)
    if step == "double_buffer":
        sch.double_buffer(sch.get_block("C"), 0)
    else:
        sch.software_pipeline(loop, [0, 1], [0, 1])
    assert_same_meaning(func, sch.func, exact=True)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ("(4, 4)", "(1, 1)"),
        ("(4, 4)", "(3, 1)"),
        ("(4, 4)", "(0, 1)"),
        ("(4, 4)", "(-4, 1)"),
        ("(4, 4)", "(1, 3)"),
        ("(n, 4)", "(3, 1)"),
        ("(n, n)", "(n - 1, 1)"),
        ("(n, 4)", "(1, 8)"),
    ],
)
def test_elements_that_share_memory_are_rejected(shape: str, strides: str) -> None:
    with pytest.raises(ValidationError) as caught:
        bw.validate(bw.from_source(program(shape, strides)))
    assert caught.value.code == "BW261"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ("(3, 2)", "(2, 3)"),
        ("(4, 4)", "(1, 4)"),
        ("(1, 4)", "(0, 1)"),
        ("(n, 4)", "(9, 2)"),
        ("(n, n)", "(1, n)"),
        ("(n, n)", "(n + 3, 1)"),
    ],
)
def test_elements_apart_are_accepted(shape: str, strides: str) -> None:
    bw.validate(bw.from_source(program(shape, strides)))


SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    T.func_attr({{"tir_var_lower_bound": {{"n": 0, "m": 0}}}})
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (n, m, n + 1), "float32")
    B = T.match_buffer(b, (n, m, n + 1), "float32")
    C = T.alloc_buffer((n, m, n + 1), "float32", strides=({}, {}, {}))
    for i, j, k in T.grid(n, m, n + 1):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi, vj, vk] = A[vi, vj, vk] + T.float32(1)
    for i, j, k in T.grid(n, m, n + 1):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = C[vi, vj, vk] * T.float32(2)
"""


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("padding", [0, 1, 3])
def test_versions_of_symbolic_strides_in_any_order(order: tuple[int, ...], padding: int) -> None:
    """The order of strides such as (n + 2, (n + 2) * n + 1, 1) need not be proved."""
    sizes, strides, step = ("n", "m", "(n + 1)"), ["", "", ""], "1"
    for axis in order:
        strides[axis] = step
        step = f"({step} * {sizes[axis]} + {padding})"
    func = bw.from_source(SYMBOLIC.format(*strides))
    sch = bw.Schedule(func, verify="full")
    sch.compute_at(sch.get_block("C"), sch.get_loops(sch.get_block("B"))[0])
    sch.double_buffer(sch.get_block("C"), 0)
    assert_same_meaning(func, sch.func, exact=True, sizes={"n": 3, "m": 2})


def test_random_programs_draw_strides() -> None:
    programs = [random_program(seed, unusual=True, stages=3) for seed in range(40)]
    buffers = [b for func in programs for b in func.root.alloc_buffers]
    assert any(b.strides for b in buffers)


def test_a_padded_buffer_without_rows_has_no_size() -> None:
    """`(m // 2 - 1) * 19 + 1` is negative for m = 1; lowered sizes never are."""
    func = bw.from_source("""
@T.prim_func
def main(a: T.handle, c: T.handle):
    m = T.int32()
    A = T.match_buffer(a, (m, 1), "float32")
    C = T.match_buffer(c, (m // 2, 1), "float32")
    B = T.alloc_buffer((m // 2, 1), "float32", strides=(19, 2))
    for i in range(m // 2):
        with T.block("B"):
            vi = T.axis.spatial(m // 2, i)
            B[vi, 0] = A[vi, 0]
    for i in range(m // 2):
        with T.block("C"):
            vi = T.axis.spatial(m // 2, i)
            C[vi, 0] = B[vi, 0]
""")
    (lowered,) = build(func).lowered.functions.values()
    (made,) = ir.collect(lowered.body, ir.Allocate)
    for m in (1, 2, 5):
        sizes = {v: ir.const(m, v.dtype) for v in ir.free_vars(made.buffer.shape[0])}
        size = ir.const_int(simplify(ir.substitute(made.buffer.shape[0], sizes)))
        assert size == max(0, (m // 2 - 1) * 19 + 1)
