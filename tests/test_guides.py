"""The Python blocks of the guides run, in order, as one script per page."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.intrin import TensorIntrin
from blockwright.passes.library import LIBRARIES
from blockwright.strategies import STRATEGIES
from blockwright.target import Target, target

DOCS = Path(__file__).resolve().parents[1] / "docs"


def load_page(name: str, folder: Path) -> dict[str, Any]:
    """The names that the page's blocks define when they are run as one file."""
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    path = folder / (Path(name).stem.replace("-", "_") + ".py")
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return runpy.run_path(str(path))


def run_page(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the page's blocks print."""
    load_page(name, folder)
    return capsys.readouterr().out


def test_looking_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("looking-inside.md", tmp_path, capsys)
    assert "define" in printed  # LLVM
    assert "BW713" in printed
    assert printed.count("error[BW7") == 2  # the compiled program and the interpreter
    assert "992 conflicts in 32 reads of tile" in printed


def test_a_new_primitive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("new-primitive.md", tmp_path, capsys)
    assert "BW317" in printed  # a reduction is not mirrored
    assert "mirror" in printed


@pytest.mark.parametrize("kind", ["error-code", "pass"])
def test_a_new_part(kind: str, tmp_path: Path) -> None:
    """Guides to extensions whose blocks hold assertions."""
    assert load_page(f"new-{kind}.md", tmp_path)


def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    run_page("models.md", tmp_path, capsys)


def test_graph_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("graph-functions.md", tmp_path, capsys)


def test_artefacts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("artefacts.md", tmp_path, capsys)


@pytest.mark.skipif(not Target("x86-64-v2").is_host, reason="the page names levels of x86-64")
def test_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("targets.md", tmp_path, capsys)


def test_graph_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("graph-patterns.md", tmp_path, capsys)
    assert "R.const(6.0" in printed
    assert "error[BW421]" in printed


@contextmanager
def without_registered() -> Generator[None, None, None]:
    """What is registered from outside meanwhile is gone afterwards."""
    strategies, named = list(STRATEGIES), (target._registered, TensorIntrin._known, LIBRARIES)
    before = [dict(known) for known in named]
    try:
        yield
    finally:
        STRATEGIES[:] = strategies
        for known, kept in zip(named, before, strict=True):
            known.clear()
            known.update(kept)


def test_a_new_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit with memories of its own: interpreted, proved, compiled; see tests/target too."""
    with without_registered():
        printed = run_page("new-target.md", tmp_path, capsys)
    assert "error[BW237]" in printed  # 16 accumulator tiles; there is room for 8
    assert "error[BW230]" in printed  # a target without the unit


def has_openblas() -> bool:
    try:
        return bool(metadata.distribution("scipy-openblas32"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(shutil.which("cc") is None, reason="the page compiles a C file: needs cc")
@pytest.mark.skipif(not has_openblas(), reason="needs pip install blockwright[openblas]")
def test_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with without_registered():
        printed = run_page("libraries.md", tmp_path, capsys)
    assert "# lv = linear(x, w, b): openblas.linear_bias" in printed
    assert 'R.call_dps_library("openblas.gemm", (x, w)' in printed
    assert "mean of x: 0.5" in printed


def test_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(bw.BlockwrightWarning, match=r"aten\._linalg_svd"):
        printed = run_page("fallback.md", tmp_path, capsys)
    assert "aten._linalg_svd.default 1 _linalg_svd in the model: " in printed


def test_overlapping_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_page("overlapping-work.md", tmp_path, capsys)
    assert "tile = T.alloc_buffer((2, 1, 64)" in printed
    assert "error[BW370]" in printed


def test_scheduling_a_matrix_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every step of the page runs; its schedules are those that `make bench` measures."""
    from examples.gemm.steps import STEPS

    page = load_page("scheduling.md", tmp_path)
    printed = capsys.readouterr().out
    assert "error[BW317]" in printed
    assert "decompose_reduction" in printed  # the difference, and the trace
    for name in ("vectorized", "in_registers", "packed", "parallel"):
        ir.assert_structural_equal(page[name]().func, STEPS[name]().func)


def test_the_measured_steps_are_all_steps() -> None:
    from benchmarks.gemm import STEP_NAMES
    from examples.gemm.steps import STEPS

    assert tuple(STEPS) == STEP_NAMES
