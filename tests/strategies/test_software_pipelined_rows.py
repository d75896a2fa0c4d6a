"""Long rows that pass the caches by are written while the next row is worked on."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.script.compute import Program
from blockwright.strategies import StrategyResult, apply_strategies
from blockwright.target import Cache, Target
from blockwright.testing import assert_same_meaning
from tests.strategies.row_programs import Size, softmax


def small(machine: str) -> Target:
    """A machine of small caches, for which programs are large that the interpreter runs in no
    time."""
    return Target(machine, num_threads=2, caches=(Cache(2048), Cache(65536), Cache(1 << 18)))


SMALL = small("native")

ROWS, COLUMNS = 256, 256
N = ir.var("n", "int64")


def centred(rows: Size = ROWS, columns: Size = COLUMNS) -> ir.PrimFunc:
    """Each row over its spread, whose mean both later passes read."""
    p = Program("centred")
    x = p.param("X", (rows, columns), "float32")
    mean = p.reduce("mean", (rows,), (columns,), lambda i, k: x[i, k] * (1.0 / COLUMNS))
    var = p.reduce(
        "var", (rows,), (columns,), lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i])
    )
    return p.finish(
        [
            p.compute(
                "o",
                (rows, columns),
                lambda i, k: (x[i, k] - mean[i]) * ir.call("rsqrt", var[i] + 1.0),
            )
        ]
    )


def overlapped(func: ir.PrimFunc, target: Target = SMALL) -> StrategyResult | None:
    """The program as the rules schedule it, where they let two rows share a loop."""
    result = apply_strategies(func, target)
    assert result.strategy == "inner_reduction"
    assert "gave up" not in result.note
    return result if "software_pipeline" in str(result.trace) else None


RAGGED = softmax(ROWS, COLUMNS + 9)
"""Rows that end within a vector, and begin within a line."""


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("program", [softmax(ROWS, COLUMNS), centred(), softmax(240, 1024), RAGGED])
def test_a_row_is_written_while_the_next_one_is_worked_on(
    program: ir.PrimFunc, machine: str
) -> None:
    result = overlapped(program, small(machine))
    assert result is not None
    serial = [f for f in ir.loops(result.func.body) if f.kind is ir.ForKind.SERIAL]
    assert sum("prefetch_read" in loop.annotations for loop in serial) == 1
    innermost = [f for f in serial if not any(f is not g and g in set(ir.walk(f)) for g in serial)]
    passes = [[b.name for b in ir.collect(loop.body, ir.Block)] for loop in innermost]
    (together,) = [names for names in passes if "o" in names]
    assert len(together) > 1
    assert together[0] == "o"  # of a row, before the next one overwrites what it reads
    assert_same_meaning(program, result.func)


@pytest.mark.parametrize("program", [softmax(ROWS, COLUMNS), centred(), RAGGED])
def test_rows_side_by_side_give_the_same_numbers(program: ir.PrimFunc) -> None:
    result = overlapped(program)
    assert result is not None
    shape = tuple(ir.const_int(n) or 0 for n in program.buffers[0].shape)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    plain, beside = (np.zeros_like(x) for _ in range(2))
    build(apply_strategies(program, Target("native", num_threads=2)).func)[program.name](x, plain)
    build(result.func)[program.name](x, beside)
    np.testing.assert_array_equal(beside, plain)


def test_the_schedule_is_proved() -> None:
    result = overlapped(softmax(ROWS, COLUMNS))
    assert result is not None
    assert bw.verify(softmax(ROWS, COLUMNS), result.func).verdict == "proved"


@pytest.mark.parametrize(
    "program",
    [
        softmax(ROWS * 16, 16),  # a short row is written at once
        softmax(251, COLUMNS),  # no number divides the rows
        softmax(64, COLUMNS),  # what is written is found in the last cache
        softmax(N, COLUMNS),
    ],
)
def test_other_rows_are_written_in_turn(program: ir.PrimFunc) -> None:
    assert overlapped(program) is None


@pytest.mark.parametrize(("rows", "together"), [(64, 8), (67, 8), (31, 3), (7, 1)])
def test_short_rows_near_the_processor_are_taken_together(rows: int, together: int) -> None:
    """Eight of them, or fewer, so that each of two threads has four tasks."""
    func = softmax(rows, 48)
    machine = Target("x86-64-v3", num_threads=2)
    found = apply_strategies(func, machine).func
    (outer,) = [loop for loop in ir.loops(found.body) if loop.kind is ir.ForKind.PARALLEL]
    assert ir.const_int(outer.extent) == -(-rows // together)
    assert_same_meaning(func, found, sizes={})
    long = apply_strategies(softmax(rows, 512), machine).func
    (outer,) = [loop for loop in ir.loops(long.body) if loop.kind is ir.ForKind.PARALLEL]
    assert ir.const_int(outer.extent) == rows
