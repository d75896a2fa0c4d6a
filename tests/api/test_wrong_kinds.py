"""Something of another kind in place of a program is an error that says what to pass."""

from __future__ import annotations

import inspect
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


WRONG = [None, 3, 2.5, "nothing", [1], {"a": 1}, object(), (), b"x", len]
NAMES = [
    "alive", "axis", "diff", "explain_compute_at", "get", "get_loops", "replay", "seed", "split",
    "symbol", "take", "tile", "undo", "work_on",
]  # fmt: skip


def _calls(wrong: Any) -> dict[str, Any]:
    """Entry points with something of another kind in one place."""
    return {
        "compile": lambda: bw.compile(wrong),
        "compile, options": lambda: bw.compile(PROGRAM, options=wrong),
        "build": lambda: bw.build(wrong),
        "build, target": lambda: bw.build(PROGRAM, wrong),
        "build, sanitize": lambda: bw.build(PROGRAM, sanitize=wrong),
        "interpret": lambda: bw.interpret(wrong),
        "interpret, arrays": lambda: bw.interpret(PROGRAM, wrong, wrong),
        "verify": lambda: bw.verify(PROGRAM, wrong),
        "validate": lambda: bw.validate(wrong),
        "load": lambda: bw.load(wrong),
        "Target": lambda: bw.Target(wrong),
        "Target, threads": lambda: bw.Target("native", num_threads=wrong),
        "Schedule": lambda: bw.Schedule(wrong),
        "from_source": lambda: bw.from_source(wrong),
    }


FITTING = {  # what is of the right kind after all
    ("compile, options", None), ("build, sanitize", ()), ("Target, threads", None),
    ("Target, threads", 3), ("from_source", "nothing"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_entry_points_refuse_other_kinds_with_a_code(wrong: Any) -> None:
    for name, call in _calls(wrong).items():
        if not any(name == n and wrong is w for n, w in FITTING):
            with pytest.raises(bw.BlockwrightError) as caught:
                call()
            assert caught.value.help or caught.value.diagnostics, name


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_methods_of_schedules_refuse_other_kinds_with_a_code(name: str, wrong: Any) -> None:
    sch = bw.Schedule(PROGRAM)
    method = getattr(sch, name)
    required = [
        p for p in inspect.signature(method).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    known = {"block": sch.get_block("b"), "loop": sch.get_loops("b")[0]}
    given = [[wrong] * max(len(required), 1)]
    if len(required) > 1:  # all but the first are wrong
        given.append([known.get(required[0].name, wrong), *[wrong] * (len(required) - 1)])
    before = sch.func
    for arguments in given:
        if name == "seed" and isinstance(wrong, int):
            continue
        with pytest.raises(bw.ScheduleError) as caught:
            method(*arguments)
        assert caught.value.code.startswith("BW3")
    assert sch.func is before
