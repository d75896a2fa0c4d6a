"""Copies inside the loop of a reduction: over no elements the result is the initial value."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

TEXT = """
@T.prim_func
def f(a: T.handle, C: T.Buffer((4,), "float32"), n: T.int64):
    A = T.match_buffer(a, (4, n + 3), "float32")
    for i, k in T.grid(4, {extent}):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(2)
            C[vi] = C[vi] + A[vi, vk]
"""


@pytest.mark.parametrize("extent", ["n", "0", "n // 2", "T.min(n, 3)"])
def test_no_copy_is_stored_where_the_loop_may_run_nothing(extent: str) -> None:
    schedule = bw.Schedule(bw.from_source(TEXT.format(extent=extent)))
    with pytest.raises(bw.ScheduleError, match="may run no iteration") as caught:
        schedule.write_at(schedule.get_loops("C")[1], "C", 0, "local")
    assert caught.value.code == "BW314"


@pytest.mark.parametrize(("extent", "loop"), [("n", 0), ("n + 1", 0), ("n + 1", 1), ("3", 1)])
def test_copies_of_sums_hold_the_result(extent: str, loop: int) -> None:
    schedule = bw.Schedule(bw.from_source(TEXT.format(extent=extent)))
    schedule.write_at(schedule.get_loops("C")[loop], "C", 0, "local")
    for n in (0, 1, 5):
        given = np.arange(4 * (n + 3), dtype="float32").reshape(4, n + 3)
        count = int(eval(extent, {"n": n}))
        out = np.full(4, -7, "float32")
        bw.interpret(schedule.func, given, out, n)
        np.testing.assert_array_equal(out, 2 + given[:, :count].sum(1))
