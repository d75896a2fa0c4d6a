"""Lanes of accesses, and names of storage scopes, are checked."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import BlockwrightError, ScheduleError
from blockwright.target.scopes import is_known_scope

LANES = """
@T.prim_func
def main(A: T.Buffer((9, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi : vi + 2, vj] + T.float32(1)
"""
COPY = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
"""


def codes(func: ir.PrimFunc) -> str:
    with pytest.raises(BlockwrightError) as found:
        bw.validate(func)
    return found.value.code


def test_two_lanes_are_not_stored_to_one_element() -> None:
    func = bw.from_source(LANES)
    assert codes(func) == "BW254"
    with pytest.raises(BlockwrightError):
        bw.interpret(func, np.zeros((9, 8), "float32"), np.zeros((8, 8), "float32"))


@pytest.mark.parametrize(
    ("lanes", "value", "good"), [(4, 4, True), (4, 1, False), (1, 4, False), (4, 8, False)]
)
def test_lanes_of_a_store(lanes: int, value: int, good: bool) -> None:
    buffer = ir.Buffer("B", ir.dtype_of("float32"), (ir.const(16, "int32"),))
    one: ir.Expr = ir.const(1, "float32")
    zero: ir.Expr = ir.const(0, "int32")
    at = zero if lanes == 1 else ir.Ramp(zero, ir.const(1, "int32"), lanes)
    store = ir.BufferStore(buffer, one if value == 1 else ir.Broadcast(one, value), (at,))
    param = ir.Var("b", ir.dtype_of("handle"))
    func = ir.PrimFunc((param,), ((param, buffer),), store, {"global_symbol": "main"})
    if good:
        bw.validate(func)
    else:
        assert codes(func) == "BW254"


@pytest.mark.parametrize("name", ["sharde", "Global", "shared.", ".local", "nowhere", ""])
def test_unknown_scopes(name: str) -> None:
    assert not is_known_scope(name)
    s = Schedule(bw.from_source(COPY))
    with pytest.raises(ScheduleError) as read:
        s.cache_read("B", "A", name)
    with pytest.raises(ScheduleError) as written:
        s.cache_write("B", 0, name)
    assert read.value.code == written.value.code == "BW304"


def test_scope_of_an_allocation() -> None:
    made = '    C = T.alloc_buffer((8,), "float32", scope="{}")\n'
    text = COPY.replace("    for i", f"{made}    for i")
    assert codes(bw.from_source(text.replace("{}", "sharde"))) == "BW230"
    for name in (
        "global",
        "shared",
        "shared.dyn",
        "local",
        "warp",
        "wmma.accumulator",
        "global.mine",
    ):
        bw.validate(bw.from_source(text.replace("{}", name)))
