"""`explain` says what a code stands for, for every code there is."""

from __future__ import annotations

import subprocess
import sys
from textwrap import indent

import pytest

from blockwright import ir
from blockwright.cli.explain import explain
from blockwright.cli.samples import SAMPLES
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support.codes import CODES, FAMILIES
from tests.cli.conftest import Run


def test_a_code_is_explained_with_its_rule_and_family(blockwright: Run) -> None:
    done = blockwright("explain", "BW317")
    assert done.status == 0
    rule, family, *_, see = done.out.splitlines()
    assert rule == f"BW317: {CODES['BW317']}"
    assert family == "  family: schedule (BW3xx)"
    assert "Schedule" in see


def test_capitals_do_not_matter(blockwright: Run) -> None:
    assert blockwright("explain", "bw101").out == blockwright("explain", "BW101").out


@pytest.mark.parametrize("text", ["BW999", "317", "matmul"])
def test_what_is_no_code_is_refused_with_the_form(blockwright: Run, text: str) -> None:
    done = blockwright("explain", text)
    assert done.status == 2
    assert "error[BW925]" in done.err
    assert text in done.err
    assert "docs/errors.md" in done.err


def test_every_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for code, rule in CODES.items():
        explain(code)
        out = capsys.readouterr().out
        assert rule in out
        assert FAMILIES[code[2]] in out


@pytest.mark.parametrize("code", SAMPLES)
def test_a_sample_is_refused_with_its_code_and_its_repair_is_taken(code: str) -> None:
    sample = SAMPLES[code]
    program = from_source(sample.program)
    assert isinstance(program, ir.PrimFunc)
    with pytest.raises(ScheduleError) as caught:
        exec(sample.refused, {"sch": Schedule(program, verify="full")})
    assert caught.value.code == code
    exec(sample.repair, {"sch": Schedule(program, verify="full")})


def test_the_sample_is_shown(blockwright: Run) -> None:
    done = blockwright("explain", "BW317")
    assert indent(SAMPLES["BW317"].repair, "    ") in done.out


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    for code, sample in SAMPLES.items():
        explain(code)
        out = capsys.readouterr().out
        assert out.count("[") >= sample.text().count("["), code


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blockwright", "explain", "BW318"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("BW318: ")
