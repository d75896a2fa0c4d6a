"""The Python blocks of the guides run, in order, as one script per page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run_page(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the page's blocks print when they are run as one file."""
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    path = folder / (Path(name).stem.replace("-", "_") + ".py")
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(path))
    return capsys.readouterr().out


def test_looking_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("looking-inside.md", tmp_path, capsys)
    assert "define" in printed  # LLVM
    assert "BW713" in printed
    assert printed.count("error[BW7") == 2  # the compiled program and the interpreter


def test_a_new_primitive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("new-primitive.md", tmp_path, capsys)
    assert "BW317" in printed  # a reduction is not mirrored
    assert "mirror" in printed


def test_overlapping_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("overlapping-work.md", tmp_path, capsys)
    assert "tile = T.alloc_buffer((2, 1, 64)" in printed
    assert "error[BW370]" in printed
