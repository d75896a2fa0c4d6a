"""Sequential scheduling: stages, differences, undo, and showing programs."""

from __future__ import annotations

import sys

import pytest

from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source

SOURCE = """
@T.prim_func
def main(A: T.Buffer((64, 32), "float32"), C: T.Buffer((64, 32), "float32")):
    B = T.alloc_buffer((64, 32), "float32")
    for i, j in T.grid(64, 32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(64, 32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
"""


def program() -> ir.PrimFunc:
    parsed = from_source(SOURCE)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def test_undo_brings_back_the_program_and_its_handles(sch: Schedule) -> None:
    b = sch.get_block("B")
    start = sch.func
    i, j = sch.get_loops(b)
    i0, i1 = sch.split(i, [None, 8])
    assert not sch.alive(i)
    sch.undo()
    assert sch.func is start
    assert sch.alive(i)
    assert [sch.get(loop) for loop in sch.get_loops(b)] == [sch.get(i), sch.get(j)]
    with pytest.raises(
        ScheduleError, match="loop behind l3 is gone: step 2, split, which returned it, was undone"
    ) as caught:
        sch.unroll(i0)
    assert caught.value.code == "BW301"
    assert not sch.alive(i1)
    again, _ = sch.split(i, [None, 4])
    assert sch.alive(again)


def test_queries_are_not_what_undo_counts(sch: Schedule) -> None:
    sch.compute_inline("B")
    changed = sch.func
    c = sch.get_block("C")
    sch.get_loops(c)
    sch.tile("C", "i j -> i0 j0 i1 j1", i1=8, j1=8)
    sch.undo()
    assert sch.func is changed
    assert sch.alive(c)
    assert [step.record.method for step in sch.trace] == [
        "get_block",
        "compute_inline",
        "get_block",
        "get_loops",
    ]
    sch.undo()
    assert ir.structural_equal(sch.func, program())
    assert not sch.alive(c)


def test_a_consumed_block_comes_back(sch: Schedule) -> None:
    b = sch.get_block("B")
    sch.compute_inline(b)
    assert not sch.alive(b)
    sch.undo()
    assert sch.get(b).name == "B"
    sch.cache_write(b, 0, "local")
    sch.undo()
    assert sch.get(b).name == "B"


@pytest.mark.parametrize("n", [0, 3])
def test_there_must_be_something_to_undo(sch: Schedule, n: int) -> None:
    sch.compute_inline("B")
    sch.vectorize(sch.axis("C", "j"))
    with pytest.raises(ScheduleError, match="2 have changed the program") as caught:
        sch.undo(n)
    assert caught.value.code == "BW304"
    sch.undo(2)
    assert ir.structural_equal(sch.func, program())


def test_a_trace_after_undo_replays(sch: Schedule) -> None:
    sch.tile("B", "i j -> i0 j0 i1 j1", i1=8, j1=8)
    sch.undo()
    sch.tile("B", "i -> i0 i1", i1=4)
    sch.parallel(sch.axis("B", "i0"))
    again = Schedule(program())
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_history_holds_the_program_after_each_call(sch: Schedule) -> None:
    sch.get_block("C")
    sch.tile("C", "i -> i0 i1", i1=8)
    sch.compute_at("B", sch.axis("C", "i0"))
    stages = sch.history
    assert [stage.call for stage in stages] == [
        "the start",
        "tile('C', 'i -> i0 i1', i1=8)",
        "compute_at(b10, l7)",
    ]
    assert [stage.number for stage in stages] == [0, 1, 2]
    assert ir.structural_equal(stages[0].func, program())
    assert stages[-1].func is sch.func
    twin = sch.copy()
    sch.undo()
    assert len(sch.history) == 2
    assert len(twin.history) == 3


def test_the_difference_of_two_stages(sch: Schedule) -> None:
    assert not sch.diff()
    sch.tile("C", "i -> i0 i1", i1=8)
    sch.parallel(sch.axis("C", "i0"))
    lines = str(sch.diff()).splitlines()
    assert lines[0] == "--- 1: tile('C', 'i -> i0 i1', i1=8)"
    assert lines[1].startswith("+++ 2: parallel(l")
    assert "-    for i0, i1, j in T.grid(8, 8, 32):" in lines
    assert "+    for i0 in T.parallel(8):" in lines
    whole = str(sch.diff(0, -1))
    assert whole.startswith("--- 0: the start\n+++ 2: parallel(")
    assert not sch.diff(1, 1)
    with pytest.raises(ScheduleError, match="there is no stage 7 for 'after'") as caught:
        sch.diff(0, 7)
    assert caught.value.code == "BW304"


def test_modules_are_undone_program_by_program() -> None:
    module = ir.IRModule({"f": program(), "g": program()})
    sch = Schedule(module)
    sch.compute_inline("B")
    sch.work_on("g")
    sch.tile("C", "i -> i0 i1", i1=8)
    assert [stage.function for stage in sch.history] == ["f", "f", "g"]
    assert "i0, i1" in str(sch.diff())
    again = Schedule(module)
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.mod["g"], sch.mod["g"])
    sch.undo(2)
    ir.assert_structural_equal(sch.mod["f"], program())
    ir.assert_structural_equal(sch.mod["g"], program())


def test_blocks_of_other_functions_are_reached_by_name() -> None:
    sch = Schedule(ir.IRModule({"f": program(), "g": program()}))
    sch.compute_inline(sch.get_block("B", func_name="g"))
    assert len(ir.blocks(sch.mod["f"])) == 3
    assert len(ir.blocks(sch.mod["g"])) == 2
    with pytest.raises(ScheduleError, match="no tensor program 'h'") as caught:
        sch.get_block("B", "h")
    assert caught.value.code == "BW302"


# ------------------------------------------------------------------------------------- showing
def test_show_prints_plain_text_where_no_one_looks(
    sch: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    sch.show()
    assert capsys.readouterr().out == sch.func.script() + "\n"


def test_show_highlights_in_a_terminal(
    sch: Schedule, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    sch.show()
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert "prim_func" in out


def test_notebooks_get_text_and_html(sch: Schedule) -> None:
    sch.compute_inline("B")
    for shown in (sch, sch.diff(), sch.zoom(sch.axis("C", "i"))):
        bundle = shown._repr_mimebundle_()
        assert bundle["text/plain"] == shown.text()
        assert bundle["text/html"].startswith("<pre")
        assert "<span style=" in bundle["text/html"]


def test_a_level_that_does_not_exist_says_why() -> None:
    for level, words in (("off", "sch.unsafe"), ("x", "not a level")):
        with pytest.raises(ScheduleError, match=words) as caught:
            Schedule(program(), verify=level)
        assert caught.value.code == "BW304"
