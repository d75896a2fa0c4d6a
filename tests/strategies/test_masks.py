"""Where masks cost something (AVX2), whole vectors are read and written without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.lower import lower
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.strategies import apply_strategies
from blockwright.target import Target

MACHINE = Target("x86-64-v3", num_threads=2)
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": 1}


def program(operator: str, *shapes: tuple[int, ...], **attrs: Any) -> ir.PrimFunc:
    row = OPERATORS[operator]
    infos = [
        ir.TensorInfo(tuple(ir.const(n, "int64") for n in shape), ir.dtype_of("float32"))
        for shape in shapes
    ]
    return lower_call(row, OpContext(operator), infos, {**row.attrs, **attrs})


def masked(func: ir.PrimFunc, kind: type[ir.BufferLoad | ir.BufferStore]) -> float:
    """Which share of the vectors that a program moves to or from memory is moved with a mask."""

    def count(node: ir.Node, times: int) -> tuple[int, int]:
        if isinstance(node, ir.For):
            times *= ir.const_int(node.extent) or 1
        every = of_it = 0
        if isinstance(node, kind) and isinstance(node.indices[-1], ir.Ramp):
            every = times * (node.buffer.scope != "local")
            of_it = every * (node.predicate is not None)
        inside = [count(child, times) for child in node.children()]
        return every + sum(n for n, _ in inside), of_it + sum(n for _, n in inside)

    every, of_it = count(func.body, 1)
    return of_it / every


HEADS = [(1, 2, 129, 64)] * 3
CASES: dict[str, ir.PrimFunc] = {
    "keys": program("attention", *HEADS),
    "keys of a causal form": program("attention", *HEADS, is_causal=True),
    "elements of a head": program("attention", *[(1, 2, 128, 65)] * 3),
    "columns of a short sum": program("matmul", (4, 96, 64), (4, 64, 129)),
    "channels of tiles": program(
        "nn.conv2d", (1, 112, 112, 65), (3, 3, 65, 64), implementation="winograd(tile=4)", **NHWC
    ),
    "filters of tiles": program(
        "nn.conv2d", (1, 112, 112, 64), (3, 3, 64, 67), implementation="winograd(tile=4)", **NHWC
    ),
    "pixels beside a border": program(
        "nn.conv2d", (1, 8, 112, 112), (8, 1, 3, 3), groups=8, padding=1
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_masks_are_for_the_ends_of_rows(name: str) -> None:
    lowered = lower(apply_strategies(CASES[name], MACHINE).func, MACHINE)
    assert masked(lowered, ir.BufferStore) < 0.25
    assert masked(lowered, ir.BufferLoad) < 0.3


COPY = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (LENGTH,), "DTYPE")
    B = T.match_buffer(b, (LENGTH,), "DTYPE")
    for i in range((LENGTH + 7) // 8):
        for v in T.vectorized(8):
            if i * 8 + v < LENGTH:
                B[i * 8 + v] = A[i * 8 + v] + A[i * 8 + v]
"""


@pytest.mark.parametrize("dtype", ["float32", "int16", "float64"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length", [1, 7, 8, 12, 13, 22])
def test_nothing_is_stored_beyond_an_end(length: int, known: bool, dtype: str) -> None:
    """Of a known number of lanes parts are stored, of an unknown one all or those of a mask."""
    text = COPY.replace("DTYPE", dtype).replace("LENGTH", str(length) if known else "n")
    a, room = np.arange(length).astype(dtype), np.full(length + 16, 77).astype(dtype)
    bw.build(bw.from_source(text), MACHINE)(a, room[:length])
    np.testing.assert_array_equal(room[:length], a + a)
    assert (room[length:] == 77).all()


@pytest.mark.parametrize(("machine", "masks"), [("x86-64-v3", False), ("x86-64-v4", True)])
def test_known_ends_are_stored_in_parts_where_masks_cost(machine: str, masks: bool) -> None:
    """Seven elements: four, two and one. A store under a mask takes as long as ten others."""
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((7,), "float32"), B: T.Buffer((7,), "float32")):
    for v in T.vectorized(8):
        if v < 7:
            B[v] = A[v] + A[v]
""")
    assert ("masked.store" in bw.build(func, machine).source("llvm")) is masks


def test_vectors_of_which_all_lanes_exist_are_stored_without_a_mask() -> None:
    """Where calls decide that, a branch leads to a whole store, or to one under a mask."""
    func = bw.from_source(COPY.replace("DTYPE", "float32").replace("LENGTH", "n"))
    made = bw.build(func, MACHINE).source("llvm")
    assert "call void @llvm.masked.store" in made
    assert "store <8 x float>" in made


def test_heads_of_any_size_are_multiplied_in_slices_that_are_laid_out() -> None:
    """Values of 65 elements would be read across lines, under a mask, for each tile of rows."""
    func = apply_strategies(program("attention", *[(1, 2, 256, 65)] * 3), MACHINE).func
    values = func.buffers[2].name
    (product,) = (b for b in ir.collect(func, ir.Block) if b.name == "O")
    assert values not in {region.buffer.name for region in product.reads}
