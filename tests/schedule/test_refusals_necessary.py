"""The samples of docs/refusals.md: each step is refused, and would have changed what is computed.

The page is the only place where the samples stand. A sample is a block of Python in three parts:

    <statements of a program>
    # refused BW317: sch.parallel(...)
    # would race:
    <statements of the program that the step would have made>

The second line may stand alone, where the refusal is conservative or what the step would have made
is no program. `would` goes with what the interpreter finds: `differ` (other results), `race`, or
`fail` and the code of its error. All programs have the parameters and buffers of `HEAD`.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.schedule import RECORDS, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing.moves import MOVES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "refusals.md").read_text(encoding="utf-8")
HEAD = re.search(
    r"^```python\n(@T\.prim_func\n.*?)    \.\.\.\n^```$", PAGE, re.DOTALL | re.MULTILINE
)
SHAPES = ((8,), (8, 8), (8,), (8, 8))
RACE = "BW756"


class Sample(msgspec.Struct, frozen=True):
    """A refused step on a program, and what it would have made of it."""

    section: str
    title: str
    program: str
    step: str
    code: str
    outcome: str
    made: str


def samples() -> list[Sample]:
    """All samples of the page, in its order."""
    found: list[Sample] = []
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        section = part.split("\n", 1)[0].strip("` ")
        for text in re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE):
            match = re.fullmatch(
                r"(?P<program>.*?)# refused (?P<code>BW\d+): (?P<step>.*?)\n"
                r"(?:# would (?P<outcome>.*?):\n(?P<made>.*))?",
                text,
                re.DOTALL,
            )
            assert match is not None, f"no sample:\n{text}"
            fields = {k: v or "" for k, v in match.groupdict().items()}
            number = sum(s.section == section for s in found) + 1
            fields["step"] = fields["step"].replace("\n# ", " ")
            found.append(Sample(section=section, title=f"{section}-{number}", **fields))
    return found


SAMPLES = samples()


def function(statements: str) -> ir.PrimFunc:
    assert HEAD is not None
    found = from_source(HEAD[1] + textwrap.indent(statements, "    "))
    assert isinstance(found, ir.PrimFunc)
    return found


def results(func: ir.PrimFunc, seed: int) -> list[np.ndarray]:
    """What the parameters hold after a run on random ones."""
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(0.5, 2.0, shape).astype("float32") for shape in SHAPES]
    interpret(func, *arrays)
    return arrays


@pytest.mark.parametrize("sample", SAMPLES, ids=[s.title for s in SAMPLES])
def test_the_step_is_refused(sample: Sample) -> None:
    func = function(sample.program)
    results(func, 0)  # the program itself is right
    sch = Schedule(func)
    with pytest.raises(ScheduleError) as caught:
        exec(sample.step, {"sch": sch})
    assert caught.value.code == sample.code, caught.value
    assert caught.value.diagnostics[0].message.startswith(f"{sample.section}: ")


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.outcome], ids=[s.title for s in SAMPLES if s.outcome]
)
def test_the_step_would_have_changed_the_meaning(sample: Sample) -> None:
    before, after = function(sample.program), function(sample.made)
    if sample.outcome == "differ":
        pairs = zip(results(before, 1), results(after, 1), strict=True)
        assert any(not np.allclose(x, y, rtol=1e-3) for x, y in pairs)
        return
    with pytest.raises(InterpretError) as caught:
        results(after, 1)
    code = RACE if sample.outcome == "race" else sample.outcome.removeprefix("fail with ")
    assert caught.value.code == code, caught.value


def test_every_primitive_that_rewrites_has_a_section() -> None:
    sections = {
        re.sub(r"[`\s]", "", title) for title in re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    }
    assert set(MOVES) | {"bind", "tensorize"} <= sections
    assert sections <= {record.method for record in RECORDS.values()}


def test_there_are_enough_samples_with_a_counterexample() -> None:
    assert sum(bool(s.outcome) for s in SAMPLES) >= 30
