"""The Python examples of the README run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.S | re.M)


def run_block(number: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    script = folder / f"example_{number}.py"
    script.write_text(BLOCKS[number], encoding="utf-8")
    runpy.run_path(str(script))
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_there_is_one_of_each_kind() -> None:
    assert [re.search(r"\w+_?\w* = bw\.\w+", block) is not None for block in BLOCKS] == [True] * 3


def test_a_model_is_compiled_saved_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    printed = run_block(0, tmp_path, capsys)
    assert "gelu" in printed
    assert "(50, 8)" in printed


def test_a_tensor_program_is_scheduled_and_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run_block(1, tmp_path, capsys)
    assert "T.vectorized(16)" in printed
    assert "sch.split(" in printed


def test_an_illegal_step_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_block(2, tmp_path, capsys)
    assert "error[BW3" in printed
    assert "T.block" in printed
