"""Something of another kind in place of a program is an error that says what to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

PROGRAM = bw.from_source("""
@T.prim_func
def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            b[vi] = a[vi] * T.float32(2)
""")


@pytest.mark.parametrize(
    "wrong", ["double", None, bw.Schedule(PROGRAM)], ids=["text", "none", "schedule"]
)
@pytest.mark.parametrize(
    ("function", "code"),
    [
        (bw.build, "BW606"),
        (bw.validate, "BW902"),
        (bw.compile, "BW902"),
        (lambda program: bw.interpret(program, np.zeros(8), np.zeros(8)), "BW757"),
    ],
    ids=["build", "validate", "compile", "interpret"],
)
def test_what_is_no_program_is_refused(function: Any, code: str, wrong: Any) -> None:
    with pytest.raises(bw.BlockwrightError) as caught:
        function(wrong)
    assert caught.value.code == code
    assert type(wrong).__name__ in str(caught.value) or "file" in str(caught.value)


def test_a_schedule_takes_programs_only() -> None:
    with pytest.raises(bw.ScheduleError, match="cannot schedule a str"):
        bw.Schedule("double")  # type: ignore[arg-type]


def test_compile_points_from_tensor_programs_to_build() -> None:
    with pytest.raises(bw.OptionError, match=r"bw\.build"):
        bw.compile(PROGRAM)


def test_example_inputs_are_a_sequence() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(bw.OptionError, match=r"bw\.compile\(model, \(x,\)\)"):
        bw.compile(torch.nn.Linear(3, 4), torch.ones(2, 3))
