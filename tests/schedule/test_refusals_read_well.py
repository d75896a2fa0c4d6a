"""What a terminal shows of a refusal: where, which loops, and no frames of the scheduler."""

from __future__ import annotations

import pickle
import traceback

import pytest

from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.refused_programs import ARGMAX, MATMUL


def start(text: str = MATMUL) -> Schedule:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return Schedule(found)


def refused_parallel(sch: Schedule) -> ScheduleError:
    *_, k = sch.get_loops("matmul")
    outer, _ = sch.split(k, [4, None])
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(outer)
    return caught.value


def files(error: ScheduleError) -> list[str]:
    return [
        frame.filename.rsplit("/", 1)[-1] for frame in traceback.extract_tb(error.__traceback__)
    ]


def test_a_traceback_ends_at_the_call() -> None:
    error = refused_parallel(start())
    assert files(error) == ["test_refusals_read_well.py", "traceback_frames.py"]
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_a_composite_call_is_one_place() -> None:
    with pytest.raises(ScheduleError) as caught:
        start().tile("matmul", "i j k -> i0 j k i1 i2", i1=4)
    assert files(caught.value) == ["test_refusals_read_well.py", "traceback_frames.py"]


def test_who_works_on_the_scheduler_sees_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_TRACEBACK", "full")
    assert len(files(refused_parallel(start()))) > 4


def test_a_loop_is_named_by_the_step_that_gave_it() -> None:
    """The schedule calls it `outer`; the program, `k_0`."""
    sch = start()
    (problem,) = refused_parallel(sch).diagnostics
    assert problem.notes[1:] == ("k_0 is result 1 of split(k, [4, None]), step 2",)
    assert sch.trace.instructions[2].record.method == "split"


def test_loops_that_the_program_came_with_need_no_origin() -> None:
    sch = start()
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(sch.get_loops("matmul")[2])
    (problem,) = caught.value.diagnostics
    assert len(problem.notes) == 1


def test_only_threads_of_one_block_sum_together() -> None:
    sch = start()
    with pytest.raises(ScheduleError) as caught:
        sch.bind(sch.get_loops("matmul")[2], "blockIdx.x")
    assert "only threads along threadIdx.x, .y and .z can combine their terms" in str(caught.value)


def test_an_atomic_update_is_offered_only_where_it_is_one() -> None:
    """`min` of a tuple is no single store."""
    sch = start(ARGMAX)
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(sch.get_loops("argmax")[1])
    assert "atomic" not in str(caught.value.help)
    assert "rfactor(k, 0)" in str(caught.value.help)


def test_a_refusal_travels_with_its_program() -> None:
    """A search in other processes sends back why a step was refused; nothing of it is lost."""
    error = refused_parallel(start())
    sent = pickle.loads(pickle.dumps(error))
    assert "the program, which stays as it is" in str(error)
    assert (str(sent), sent.code) == (str(error), error.code)
