"""Running the command line inside the test process, on a model of a few operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockwright.cli import main

MODEL = """
from blockwright.script import ir as I, relax as R, tir as T


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 4), "float32")):
        R.func_attr({"tir_var_lower_bound": {"n": 1}, "tir_var_upper_bound": {"n": 64}})
        n = T.int64()
        with R.dataflow():
            h: R.Tensor((n, 4), "float32") = R.matmul(x, w)
            y: R.Tensor((n, 4), "float32") = R.relu(h)
            R.output(y)
        return y
"""


@dataclass(frozen=True)
class Finished:
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


Run = Callable[..., Finished]


@pytest.fixture
def blockwright(capfd: pytest.CaptureFixture[str]) -> Run:
    """``blockwright("show", path)`` runs the command as a shell would."""

    def run(*args: object) -> Finished:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Finished(int(end.value.code or 0), out, err)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that holds one small model: relu(x @ w) with a symbolic number of rows."""
    path = tmp_path / "tiny.py"
    path.write_text(MODEL, encoding="utf-8")
    return path
