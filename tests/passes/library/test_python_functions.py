"""Python functions in a graph, for debugging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support import ArtefactError

SEEN: list[tuple[Any, ...]] = []


def show(x: np.ndarray, y: np.ndarray, factor: float, label: str) -> None:
    SEEN.append((label, x.dtype.name, x.shape))
    y[...] = x * factor


TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "{kind}")):
    n = T.int64()
    y = R.negative(x)
    z = R.call_dps_library(show, (y,), out_sinfo=R.Tensor((n, 4), "{kind}"), factor=2.0, label="y")
    return R.negative(z)
"""


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_python_function_sees_values_and_writes_its_result(kind: str, tmp_path: Path) -> None:
    SEEN.clear()
    exe = bw.compile(bw.from_source(TEXT.format(kind=kind), env={"show": show}))
    x = np.arange(12).reshape(3, 4).astype(ir.dtype_of(kind).numpy())
    np.testing.assert_array_equal(np.asarray(exe(x), "f4"), 2 * np.asarray(x, "f4"))
    assert [("y", kind, (3, 4))] == SEEN
    with pytest.raises(ArtefactError, match="calls Python functions: show") as caught:
        exe.save(tmp_path / "model.bwx")
    assert caught.value.code == "BW810"


def test_the_interpreter_calls_it_too() -> None:
    function = bw.from_source(TEXT.format(kind="float32"), env={"show": show})
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(bw.interpret(function, x), 2 * x)


def test_it_prints_by_its_python_name() -> None:
    function = bw.from_source(TEXT.format(kind="float32"), env={"show": show})
    assert "R.call_dps_library(show, (y,)" in function.script()
    again = bw.from_source(function.script(), env={"show": show})
    ir.assert_structural_equal(again, function)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(bw.ScriptError, match="needs a name"):
        bw.from_source(TEXT.format(kind="float32"), env={"show": lambda x, y: None})


def test_its_exceptions_reach_the_caller() -> None:
    def fail(x: Any, y: Any, factor: float, label: str) -> None:
        raise ValueError(f"not {label}")

    exe = bw.compile(bw.from_source(TEXT.format(kind="float32"), env={"show": fail}))
    with pytest.raises(ValueError, match="not y"):
        exe(np.zeros((2, 4), np.float32))
