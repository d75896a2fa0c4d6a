"""What an intrinsic demands of its operands is proved or refused at tensorize."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import blockwright as bw
import blockwright.testing.moves.tensor  # intrinsics for small copies
from blockwright import ir
from blockwright.intrin import TensorIntrin
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

NUMBERS = itertools.count()
INTRINSIC = """
@T.prim_func
def intrinsic(a: T.handle, b: T.handle):
    s = T.int64()
    A = T.match_buffer(a, (4, 4), "float32"{demands})
    B = T.match_buffer(b, (4, 4), "float32", offset_factor=1)
    with T.block("root"{scope}):
        {body}
"""
MEANING = """for i, j in T.grid(4, 4):
            with T.block("add"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + T.float32(1)"""
ROWS = """for i in range(4):
            B[i, T.ramp(0, 1, 4)] = A[i, T.ramp(0, 1, 4)] + T.broadcast(T.float32(1), 4)"""
PROGRAM = """
@T.prim_func
def main(A: T.Buffer((16, 12), "float32"), B: T.Buffer((16, 12), "float32")):
    for i, j in T.grid(16, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
"""


def intrinsic(demands: str, where: str = "both", scope: str = "") -> str:
    """Registers a 4 × 4 intrinsic that states `demands` for its operand; its name."""
    name = f"demanding_{next(NUMBERS)}"
    mine = f", {demands}" if demands else ""
    meaning = INTRINSIC.format(
        demands=mine if where != "implementation" else "", body=MEANING, scope=""
    )
    rows = INTRINSIC.format(demands=mine if where != "meaning" else "", body=ROWS, scope=scope)
    first, second = from_source(meaning), from_source(rows)
    assert isinstance(first, ir.PrimFunc)
    assert isinstance(second, ir.PrimFunc)
    TensorIntrin.register(name, first, second)
    return name


def tensorized(name: str, cache: str = "") -> ir.PrimFunc:
    func = from_source(PROGRAM)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    block = sch.get_block("B")
    if cache:
        sch.cache_read(block, 0, cache)
    i, j = sch.get_loops(block)
    _, ii = sch.split(i, [None, 4])
    jo, ji = sch.split(j, [None, 4])
    sch.reorder(jo, ii, ji)
    sch.tensorize(ii, name)
    return sch.func


@pytest.mark.parametrize(
    ("demands", "cache"),
    [("", ""), ("offset_factor=4", ""), ("strides=(12, 1)", ""), ("strides=(s, 1)", ""),
     ("align=16", "global"), ("align=16, offset_factor=4, strides=(s, 1)", "local"),
     ('scope="local"', "local")],
)  # fmt: skip
def test_demands_that_hold(demands: str, cache: str) -> None:
    func = tensorized(intrinsic(demands), cache)
    assert_same_meaning(from_source(PROGRAM), func, exact=True)
    a = np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32)
    out = np.zeros_like(a)
    bw.build(func)["main"](a, out)
    assert np.array_equal(out, a + np.float32(1))


@pytest.mark.parametrize(
    ("demands", "cache", "demand", "known"),
    [
        ("offset_factor=8", "", "an element offset that is a multiple of 8", "starts at element"),
        ("align=16", "", "an address that is a multiple of 16 bytes", "known to be one of 4"),
        ("align=32", "local", "an address that is a multiple of 32 bytes", "starts at element"),
        ("strides=(4, 1)", "", "stride 4 in dimension 0", "that of A is 12"),
        ("strides=(s, 2)", "", "stride 2 in dimension 1", "that of A is 1"),
        ("elem_offset=0", "", "element offset 0", "starts at element"),
        ('scope="shared"', "local", "scope 'shared'", "A_local lies in 'local'"),
    ],
)
@pytest.mark.parametrize("where", ["both", "meaning", "implementation"])
def test_demands_that_do_not_hold(
    demands: str, cache: str, demand: str, known: str, where: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        tensorized(intrinsic(demands, where), cache)
    error = caught.value
    assert error.code == "BW373"
    assert "operand A" in error.message
    assert demand in error.message
    assert known in error.message
    assert error.help


def test_all_demands_that_fail_are_listed() -> None:
    with pytest.raises(ScheduleError) as caught:
        tensorized(intrinsic('align=16, strides=(4, 1), scope="shared"'))
    assert caught.value.message.count("must have") == 3


def test_the_block_runs_where_the_implementation_says() -> None:
    func = tensorized(intrinsic("", scope=', exec_scope="gpu_warp"'))
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(func, "cuda-sm_90a")
    assert {d.code for d in caught.value.diagnostics} == {"BW239"}


def test_what_later_steps_spoil_is_found_at_build() -> None:
    """Another layout of the operand: the stride that was proved is gone."""
    func = tensorized(intrinsic("strides=(12, 1)"), "global")

    def wider(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.Buffer) and node.name == "A_global":
            return node.replace(strides=(ir.const(16, "int32"), ir.const(1, "int32")))
        return None

    spoilt = func.replace(body=ir.rewrite_bottom_up(func.body, wider))
    with pytest.raises(bw.ValidationError) as caught:
        bw.build(spoilt)
    assert [d.code for d in caught.value.diagnostics] == ["BW241"]


SHIFTED = """
@T.prim_func
def main(A: T.Buffer((10,), "float32"), B: T.Buffer((10,), "float32")):
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial((2, 10), i + 2)
            B[v] = A[v]{value}
"""


def test_the_tile_lies_where_iterators_that_do_not_start_at_0_are() -> None:
    """Found by fuzzing: the tile of a copy of elements 2 to 10 was placed at 0."""
    func = from_source(SHIFTED.format(value=""))
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    _, inner = sch.split(sch.get_loops("B")[0], [None, 4])
    sch.tensorize(inner, "random_copy_4_float32")
    assert_same_meaning(func, sch.func, exact=True)


def test_an_iterator_that_is_computed_with_starts_where_the_intrinsic_starts() -> None:
    name = f"demanding_{next(NUMBERS)}"
    text = """
@T.prim_func
def intrinsic(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (8,), "float32", offset_factor=1)
    B = T.match_buffer(b, (8,), "float32", offset_factor=1)
    with T.block("root"):
        for i in range(8):
            with T.block("number"):
                v = T.axis.spatial(8, i)
                B[v] = A[v] + T.cast(v, "float32")
"""
    made = from_source(text)
    assert isinstance(made, ir.PrimFunc)
    TensorIntrin.register(name, made, made)
    func = from_source(SHIFTED.format(value=' + T.cast(v, "float32")'))
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    with pytest.raises(ScheduleError, match="starts at 2, v of the intrinsic at 0") as caught:
        sch.tensorize(sch.get_loops("B")[0], name, preserve_unit_iters=False)
    assert caught.value.code == "BW327"


PRODUCT = """
@T.prim_func
def main(
    A: T.Buffer((2, 2), "float32"), B: T.Buffer((2, 1), "float32"), C: T.Buffer((2, 1), "float32")
):
    for i, j, k in T.grid(2, 1, 2):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def test_a_tile_of_one_element_holds_no_vectors() -> None:
    """Vectors of one lane met lanes of loops in the interpreter, and LLVM knows none."""
    func = from_source(PRODUCT)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    i, j, k = sch.get_loops("C")
    (io, ii), (jo, ji) = (sch.split(loop, [None, 1]) for loop in (i, j))
    sch.reorder(io, jo, k, ii, ji)
    sch.tensorize(ii, "outer_product_1x1_float32")
    assert_same_meaning(func, sch.func)
    a, b = np.array([[1, 2], [3, 4]], "float32"), np.array([[10], [100]], "float32")
    c = np.full((2, 1), np.nan, "float32")
    bw.build(sch.func)["main"](a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_a_tile_of_one_element_is_tensorized_again() -> None:
    """Views of the first time belong to the block inside, which is gone after the second."""
    func = from_source(PRODUCT)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    i, j, k = sch.get_loops("C")
    (io, ii), (jo, ji), (ko, ki) = (sch.split(loop, [None, 1]) for loop in (i, j, k))
    sch.reorder(io, jo, ko, ki, ii, ji)
    sch.tensorize(ii, "outer_product_1x1_float32")
    sch.tensorize(ki, "outer_product_1x1_float32")
    views = [view for block in ir.blocks(sch.func) for view in block.match_buffers]
    assert {view.source.buffer.name for view in views} == {"A", "B", "C"}
    assert_same_meaning(func, sch.func)


@pytest.mark.parametrize("several", [False, True])
def test_views_follow_into_a_new_block(several: bool) -> None:
    """Where the region of a view starts is said by iterators that the new block divides."""
    func = tensorized(intrinsic("offset_factor=1"))
    sch = Schedule(func, verify="full")
    tile = next(b for b in sch.get_child_blocks(sch.get_block("root")))
    rows = sch.get_loops(tile)[0]
    sch.blockize([tile] if several else rows)
    assert_same_meaning(func, sch.func)
