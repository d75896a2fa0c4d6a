"""What may stand for a model on the command line, and what is said when it may not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright import ir
from blockwright.cli.models import load_model
from blockwright.support import BlockwrightError, OptionError

TWO = """
from blockwright.script import ir as I, relax as R

@I.ir_module
class First:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return R.relu(x)

@I.ir_module
class Second:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return R.exp(x)

def make():
    return Second

def broken():
    return 1 / 0

number = 7
"""


def refusal(text: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        load_model(text)
    return caught.value


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.py"
    path.write_text(TWO, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _unchanged_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_script_with_one_module(script: Path) -> None:
    module = load_model(str(script))
    assert isinstance(module, ir.IRModule)
    assert list(module.functions) == ["main"]


def test_a_script_with_several_modules_needs_a_name(two: Path) -> None:
    error = refusal(str(two))
    assert error.code == "BW913"
    assert "First, Second" in error.message
    assert "relu" in load_model(f"{two}:First").script()
    assert "exp" in load_model(f"{two}:make").script()


def test_a_script_without_a_module(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert refusal(str(path)).code == "BW913"


def test_a_python_name(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two.parent)
    assert "exp" in load_model("two:make").script()
    assert "relu" in load_model("two:First").script()
    assert refusal("two:absent").code == "BW912"
    assert refusal("no_such_package.model:make").code == "BW918"
    monkeypatch.delitem(sys.modules, "two")


def test_failures_in_user_code_name_the_place(two: Path) -> None:
    error = refusal(f"{two}:broken")
    assert error.code == "BW918"
    assert "ZeroDivisionError: division by zero" in error.message
    assert "two.py:20" in str(error)


def test_errors_of_the_dialect_come_through(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    text = TWO.replace("R.relu(x)", "R.relu(undefined_name)")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BlockwrightError) as caught:
        load_model(str(path))
    assert caught.value.code != "BW912"
    assert "undefined_name" in str(caught.value)


@pytest.mark.parametrize("text", ["model.h5", "model.tflite", "model", "a:b:c", "model.bwx", ""])
def test_other_endings_are_refused(text: str) -> None:
    assert refusal(text).code == "BW902"


@pytest.mark.parametrize("text", ["absent.pt2", "absent.onnx", "absent.py", "absent.py:name"])
def test_files_must_exist(text: str) -> None:
    assert refusal(text).code == "BW910"


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    folder = tmp_path / "model.pt2"
    folder.mkdir()
    assert "is a directory" in refusal(str(folder)).message


def test_a_module_needs_main(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text(TWO.split("@I.ir_module\nclass Second")[0].replace("main", "forward"))
    error = refusal(str(path))
    assert error.code == "BW914"
    assert "forward" in str(error)


def test_exported_programs_need_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"")
    find = importlib.util.find_spec

    def without_torch(name: str, *rest: Any) -> Any:
        return None if name == "torch" else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    error = refusal(str(path))
    assert error.code == "BW911"
    assert "needs torch" in error.message
    assert error.help is not None
    assert "blockwright[torch]" in error.help


def test_exported_programs(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")

    class Tiny(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x) + 1.0

    path = tmp_path / "tiny.pt2"
    rows = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(Tiny(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},))
    torch.export.save(program, path)
    assert type(load_model(str(path))).__name__ == "ExportedProgram"

    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes(path.read_bytes()[:100])
    assert refusal(str(damaged)).code == "BW918"
