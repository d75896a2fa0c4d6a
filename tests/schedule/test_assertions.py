"""Programs with assertions: no step moves a statement to before an assertion.

The statement may rely on the condition: below, the last block writes outside of its buffer if the
assertion does not hold.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((64,), "int32"), C: T.Buffer((8,), "int32"), n: T.int32):
    B = T.alloc_buffer((64,), "int32")
    for i in range(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi] + 1
    assert n <= 8, "too many"
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = B[vi] * 2
"""
WHOLE = (
    PROGRAM.replace("range(n)", "range(8)").replace("spatial(n,", "spatial(8,").replace("64", "8")
)

Step = Callable[[Schedule], object]
BEFORE: dict[str, tuple[str, Step]] = {
    "reverse_compute_at": (
        WHOLE, lambda s: s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0]),
    ),
    "reverse_compute_inline": (WHOLE, lambda s: s.reverse_compute_inline(s.get_block("C"))),
    "merge": (
        WHOLE, lambda s: s.merge(*(s.get_loops(s.get_block(b))[0] for b in ("B", "C"))),
    ),
}  # fmt: skip
AFTER: dict[str, Step] = {
    "compute_at": lambda s: s.compute_at(s.get_block("B"), s.get_loops(s.get_block("C"))[0]),
    "compute_inline": lambda s: s.compute_inline(s.get_block("B")),
    "cache_read": lambda s: s.cache_read(s.get_block("C"), 0, "local"),
    "cache_write": lambda s: s.cache_write(s.get_block("C"), 0, "local"),
    "split": lambda s: s.split(s.get_loops(s.get_block("B"))[0], [None, 3]),
    "loop_partition": lambda s: s.loop_partition(s.get_loops(s.get_block("B"))[0], [3, None]),
    "vectorize": lambda s: s.vectorize(s.get_loops(s.get_block("C"))[0]),
}


@pytest.mark.parametrize("step", BEFORE)
def test_no_statement_moves_to_before_an_assertion(step: str) -> None:
    source, apply = BEFORE[step]
    with pytest.raises(ScheduleError, match="assert") as caught:
        apply(Schedule(bw.from_source(source)))
    assert caught.value.code == "BW316"


@pytest.mark.parametrize("step", AFTER)
def test_statements_may_be_rewritten_or_moved_to_after_an_assertion(step: str) -> None:
    sch = Schedule(bw.from_source(WHOLE))
    AFTER[step](sch)
    bw.validate(sch.func)


def test_a_copy_of_what_the_assertion_guards_is_made_behind_it() -> None:
    sch = Schedule(bw.from_source(PROGRAM))
    sch.cache_read(sch.get_block("C"), 0, "local")
    text = sch.func.script()
    assert text.index("assert") < text.index("B_local[")
