"""explain_compute_at: which axes line up, what a tile needs, what is computed again."""

from __future__ import annotations

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.lower import lower
from blockwright.schedule import LoopRV, Schedule
from blockwright.script.ir import from_source
from tests.schedule.location_programs import PROGRAMS


def schedule(name: str) -> Schedule:
    found = from_source(PROGRAMS[name])
    assert isinstance(found, ir.PrimFunc)
    return Schedule(found)


def at(sch: Schedule, block: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(block))[position]


def test_a_tile_with_a_halo_shows_what_it_needs() -> None:
    sch = schedule("blur")
    outer, _ = sch.split(at(sch, "bz", 0), [None, 4])
    found = sch.explain_compute_at(sch.get_block("by"), outer)
    rows, columns = found.axes
    assert (rows.follows, columns.follows) == (("h_0",), ())
    assert ir.const_int(rows.needed.extent) == 6
    assert columns.is_whole
    assert found.loops == ("ax0", "ax1")
    assert found.recomputation == 1.5  # three tiles of six rows for twelve
    assert not found.refusal
    assert [need.consumer for need in found.buffers] == ["bz"]
    assert str(found).splitlines() == [
        "compute_at(by, h_0)",
        "  bz reads By[h_0 * 4:(h_0 * 4) + 6, 0:8] in one iteration",
        "  vh (S) in 0:12  needs h_0 * 4:(h_0 * 4) + 6  loop ax0 of 6  follows h_0",
        "  vw (S) in 0:8   all of it                    loop ax1 of 8",
        "  work: 1.5 times (144 runs for 96 instances)",
        "  By is still 12 x 8 in the program; lowering (compact_buffers) keeps the 6 x 8 that one "
        "iteration needs",
    ]


def test_loops_that_no_axis_follows_are_named() -> None:
    sch = schedule("conv_bn_relu")
    found = sch.explain_compute_at(sch.get_block("pad"), at(sch, "conv", 2))
    assert found.idle == ("f",)
    assert found.recomputation == 25.0
    assert "the same in each iteration of f" in str(found)


def test_sizes_may_be_symbols() -> None:
    sch = schedule("matmul_gelu")
    found = sch.explain_compute_at(sch.get_block("mm"), at(sch, "bias", 0))
    assert found.recomputation is None
    assert [axis.follows for axis in found.axes] == [("i",), (), ()]
    assert "n * 90 runs for n * 90 instances" in str(found)


def test_a_reshaped_axis_follows_through_the_inverse_of_its_index() -> None:
    sch = schedule("flatten")
    (axis,) = sch.explain_compute_at(sch.get_block("a"), at(sch, "y", 0)).axes
    assert axis.follows == ("i",)
    assert ir.const_int(axis.needed.extent) == 6


def test_a_step_that_would_be_refused_says_why() -> None:
    sch = schedule("blur")
    found = sch.explain_compute_at(sch.get_block("bx"), at(sch, "bz", 0))
    assert found.axes == ()
    assert "is not inside loop" in found.refusal
    assert "[BW322]" in found.refusal
    assert "refused: " in str(found)


def test_the_explanation_is_what_the_step_does_and_changes_nothing() -> None:
    sch = schedule("blur")
    before = script(sch.func)
    loop = at(sch, "bz", 0)
    found = sch.explain_compute_at(sch.get_block("by"), loop)
    assert script(sch.func) == before
    assert not sch.trace.instructions[-1].record.method.startswith("explain")
    sch.compute_at(sch.get_block("by"), loop)
    made = [sch.get(f) for f in sch.get_loops(sch.get_block("by"))[1:]]
    extents = [ir.const_int(axis.needed.extent) for axis in found.axes if axis.made]
    assert [ir.const_int(f.extent) for f in made if isinstance(f, ir.For)] == extents


def test_lowering_keeps_of_the_buffer_what_the_explanation_says() -> None:
    sch = schedule("blur")
    outer, _ = sch.split(at(sch, "bz", 0), [None, 4])
    (kept,) = sch.explain_compute_at(sch.get_block("by"), outer).kept
    assert [ir.const_int(n) for n in kept.buffer.shape] == [12, 8]
    sch.compute_at(sch.get_block("by"), outer)
    lowered: list[list[int | None]] = []

    def watch(name: str, _: ir.PrimFunc, func: ir.PrimFunc) -> None:
        if name == "compact_buffers":
            lowered.extend(
                [ir.const_int(n) for n in a.buffer.shape]
                for a in ir.collect(func.body, ir.Allocate)
                if a.buffer.name.startswith("By")
            )

    lower(sch.func, on_pass=watch)
    assert lowered == [[ir.const_int(n) for n in kept.box]] == [[6, 8]]
