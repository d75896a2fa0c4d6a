"""Indices divided by a size that may be 0, in loops that are empty then.

The loop around such an access is its guard. A step that evaluates the index outside of that loop
must not divide by 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError


def program(index: str, *, least: int = 0, written: bool = False) -> ir.PrimFunc:
    """Rows of m elements, each a copy of the element at an index, or stored at one."""
    access = f"B[vi, {index}] = A[vi, 0]" if written else f"B[vi, vj] = A[vi, {index}]"
    parsed = bw.from_source(f"""
@T.prim_func(index_dtype="int64")
def main(a: T.handle, b: T.handle):
    T.func_attr({{"tir_var_lower_bound": {{"m": {least}}}, "tir_var_upper_bound": {{"m": 9}}}})
    m = T.int64()
    A = T.match_buffer(a, (2, m), "float32")
    B = T.match_buffer(b, (2, m), "float32")
    for i in range(2):
        with T.block("rows"):
            vi = T.axis.spatial(2, i)
            for j in range(m):
                with T.block("B"):
                    vj = T.axis.{"opaque" if written else "spatial"}(m, j)
                    {access}
""")
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


def run(func: ir.PrimFunc, m: int) -> Any:
    a, b = np.arange(2 * m, dtype="float32").reshape(2, m), np.zeros((2, m), "float32")
    interpret(func, a, b)
    return b


def steps(sch: Schedule, name: str) -> None:
    """Apply one step to the block or to a loop around it."""
    block = sch.get_block("B")
    loop = sch.get_loops(block)[-1]
    if "cache" in name:
        more = (lambda *i: i,) if name.startswith("reindex") else ()
        getattr(sch, name)(block, 0, "global", *more)
    elif name in ("read_at", "write_at"):
        getattr(sch, name)(loop, block, 0, "global")
    elif name == "reindex":
        sch.reindex(block, ("read", 0))
    else:
        sch.parallel(loop)


@pytest.mark.parametrize("index", ["7 % m", "m // m - 1", "vj * (8 // m) % m", "m - 1"])
@pytest.mark.parametrize(
    "name", ["cache_read", "reindex_cache_read", "read_at", "reindex", "cache_write", "write_at"]
)
def test_no_step_divides_where_the_program_did_not(name: str, index: str) -> None:
    for written in (False, True):
        func = program(index, written=written)
        sch = Schedule(func)
        try:
            steps(sch, name)
        except ScheduleError:
            assert sch.func is func
        for m in (0, 1, 3):
            np.testing.assert_array_equal(run(sch.func, m), run(func, m))


def test_a_copy_of_such_a_part_is_refused_unless_the_size_is_positive() -> None:
    sch = Schedule(program("7 % m"))
    with pytest.raises(ScheduleError, match="a size that may be 0") as caught:
        sch.cache_read(sch.get_block("B"), 0, "global")
    assert caught.value.code == "BW363"
    sch = Schedule(program("7 % m", least=1))
    sch.cache_read(sch.get_block("B"), 0, "global")
    np.testing.assert_array_equal(run(sch.func, 3), [[1, 1, 1], [4, 4, 4]])
