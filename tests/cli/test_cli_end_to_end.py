"""`compile`, `run` and `show` on a real model: a script in, arrays out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw

Run = Callable[..., Any]


@pytest.fixture
def compiled(blockwright: Run, script: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.bwx"
    done = blockwright("compile", script, "-o", path)
    assert done.status == 0, done.err
    return path


def test_compile_says_what_it_took_and_wrote(
    blockwright: Run, script: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.bwx"
    done = blockwright("compile", script, "-o", path, "--no-progress")
    assert done.status == 0, done.err
    assert "compiled in" in done.out
    assert f"wrote {path} (" in done.out
    assert done.err == ""
    assert path.stat().st_size > 1000


def test_progress_goes_to_standard_error(blockwright: Run, script: Path, tmp_path: Path) -> None:
    done = blockwright("compile", script, "-o", tmp_path / "tiny.bwx", "--progress")
    assert done.status == 0
    assert "TensorProgramOptim" in done.err
    assert "TensorProgramOptim" not in done.out


def test_every_pass_is_dumped_as_a_program(blockwright: Run, script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "passes"
    folder.mkdir()
    (folder / "07-stale.py").write_text("")
    (folder / "mine.txt").write_text("")
    done = blockwright("compile", script, "-o", tmp_path / "tiny.bwx", "--dump-dir", folder)
    assert done.status == 0, done.err
    names = sorted(path.name for path in folder.glob("*.py"))
    assert names[0] == "00-import.py"
    assert [name[:2] for name in names] == [f"{i:02d}" for i in range(len(names))]
    assert "07-stale.py" not in names
    assert {"fuse_tir", "schedule_programs", "lower_host"} <= {name[3:-3] for name in names}
    assert "R.matmul" in (folder / "00-import.py").read_text()
    assert (folder / "mine.txt").exists()


def test_a_missing_folder_is_refused_before_compiling(
    blockwright: Run, script: Path, tmp_path: Path
) -> None:
    done = blockwright("compile", script, "-o", tmp_path / "absent" / "tiny.bwx")
    assert done.status == 2
    assert "error[BW915]" in done.err
    assert "mkdir -p" in done.err


def test_an_unknown_target(blockwright: Run, script: Path, tmp_path: Path) -> None:
    done = blockwright("compile", script, "-o", tmp_path / "tiny.bwx", "--target", "z80")
    assert done.status == 2
    assert "error[BW650]" in done.err


def test_run_from_files(blockwright: Run, compiled: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    x, w = (generator.standard_normal(s).astype("float32") for s in ((5, 8), (8, 4)))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    done = blockwright(
        "run",
        compiled,
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--input",
        f"w={tmp_path / 'w.npy'}",
        "--output",
        tmp_path / "results",
    )
    assert done.status == 0, done.err
    assert "float32[5, 4]  min 0" in done.out
    (saved,) = (tmp_path / "results").glob("*.npy")
    np.testing.assert_allclose(np.load(saved), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_run_on_random_arguments(blockwright: Run, compiled: Path) -> None:
    done = blockwright("run", compiled, "--random", "x=7x8", "--random", "w=8x4:float32")
    assert done.status == 0, done.err
    assert "float32[7, 4]" in done.out
    again = blockwright("run", compiled, "--random", "x=7x8", "--random", "w=8x4")
    assert again.out.splitlines()[0] == done.out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--random", "x=7x8"), "BW923"),
        (("--random", "x=7x8", "--random", "v=8x4"), "BW924"),
        (("--random", "x=7x9", "--random", "w=8x4"), "BW704"),
        (("--random", "x=65x8", "--random", "w=8x4"), "BW708"),
        (("--random", "x=7x8:float64", "--random", "w=8x4"), "BW703"),
    ],
)
def test_wrong_arguments(
    blockwright: Run, compiled: Path, arguments: tuple[str, ...], code: str
) -> None:
    done = blockwright("run", compiled, *arguments)
    assert done.status == 2
    assert f"error[{code}]" in done.err
    assert "Traceback" not in done.err


def test_damaged_and_foreign_files(blockwright: Run, compiled: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.bwx"
    short.write_bytes(compiled.read_bytes()[:-100])
    assert "error[BW801]" in blockwright("run", short).err
    other = tmp_path / "other.bwx"
    other.write_text("hello")
    assert "error[BW800]" in blockwright("run", other).err
    assert "error[BW805]" in blockwright("run", tmp_path / "absent.bwx").err


def test_show_describes_a_compiled_model(blockwright: Run, compiled: Path) -> None:
    done = blockwright("show", compiled)
    assert done.status == 0, done.err
    for part in ("x: float32[n, 8],", "-> float32[n, 4]", "n: from 1 to 64", "triple", "arena"):
        assert part in done.out


@pytest.mark.parametrize("option", ["--stage", "--kernel"])
def test_a_compiled_model_has_no_stages(blockwright: Run, compiled: Path, option: str) -> None:
    done = blockwright("show", compiled, option, "schedule")
    assert done.status == 2
    assert "error[BW916]" in done.err
    assert "give the source model" in done.err


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ("graph", "R.matmul"),
        ("programs", "@T.prim_func"),
        ("schedule", "# "),
        ("packed", "@T.prim_func"),
        ("host", "call_global"),
        ("lowered", "@T.prim_func"),
        ("llvm", "define"),
        ("asm", ".text"),
        ("passes", "legalize"),
        ("fuse_ops", "R.function"),
    ],
)
def test_show_prints_every_stage(blockwright: Run, script: Path, stage: str, part: str) -> None:
    done = blockwright("show", script, "--stage", stage)
    assert done.status == 0, done.err
    assert part in done.out
    assert "\x1b" not in done.out  # plain where it is not a terminal


def test_show_one_kernel(blockwright: Run, script: Path) -> None:
    whole = blockwright("show", script)
    names = [line[2:].split(":")[0] for line in whole.out.splitlines() if line.startswith("# ")]
    assert names
    one = blockwright("show", script, "--kernel", names[0])
    assert one.status == 0, one.err
    assert f"# {names[0]}: strategy " in one.out
    wrong = blockwright("show", script, "--kernel", "absent")
    assert wrong.status == 2
    assert "error[BW905]" in wrong.err
    assert names[0] in wrong.err


def test_an_unknown_stage(blockwright: Run, script: Path) -> None:
    done = blockwright("show", script, "--stage", "fuse_op")
    assert done.status == 2
    assert "error[BW904]" in done.err
    assert "did you mean 'fuse_ops'?" in done.err


def test_the_graph_is_shown_of_a_model_that_does_not_compile(
    blockwright: Run, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import blockwright as package

    def broken(*arguments: Any, **options: Any) -> None:
        raise AssertionError("nothing to compile")

    monkeypatch.setitem(vars(package), "compile", broken)
    assert "R.matmul" in blockwright("show", script, "--stage", "graph").out


def test_an_exported_program_from_file_to_answer(blockwright: Run, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.linear(x))

    model = Tiny()
    rows = torch.export.Dim("rows", min=1, max=9)
    saved = tmp_path / "tiny.pt2"
    torch.export.save(
        torch.export.export(model, (torch.ones(3, 8),), dynamic_shapes=({0: rows},)), saved
    )
    x = np.random.default_rng(0).standard_normal((5, 8)).astype("float32")
    np.save(tmp_path / "x.npy", x)

    artefact, results = tmp_path / "tiny.bwx", tmp_path / "results"
    done = blockwright("compile", saved, "-o", artefact)
    assert done.status == 0, done.err
    done = blockwright("run", artefact, "--input", f"x={tmp_path / 'x.npy'}", "-o", results)
    assert done.status == 0, done.err
    (path,) = results.glob("*.npy")
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.load(path), wanted, rtol=1e-5, atol=1e-6)


def test_operators_that_run_in_the_framework_are_listed(blockwright: Run, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")

    class Next(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.igamma(x, x + 1)

    saved, artefact = tmp_path / "next.pt2", tmp_path / "next.bwx"
    torch.export.save(torch.export.export(Next(), (torch.ones(3, 8),)), saved)
    done = blockwright("compile", saved, "-o", artefact)
    assert done.status == 0, done.err
    assert "1 operators run in the framework:" in done.out
    assert "prims.igamma.default (1 uses)" in done.out
    assert "return torch.igamma(x, x + 1)" in done.out
    assert "BW513" not in done.err
    done = blockwright("compile", saved, "-o", artefact, "--fallback", "error")
    assert done.status != 0
    assert "BW501" in done.err


def test_schedules_are_proved_and_listed(blockwright: Run, script: Path, tmp_path: Path) -> None:
    pytest.importorskip("islpy")
    done = blockwright("compile", script, "-o", tmp_path / "tiny.bwx", "--prove")
    assert done.status == 0, done.err
    assert "1 of 1 schedules proved" in done.out
    assert "gemm" in done.out
    assert (tmp_path / "tiny.bwx").exists()


def test_an_artefact_for_several_targets(blockwright: Run, script: Path, tmp_path: Path) -> None:
    if not bw.Target("x86-64-v2").is_host:
        pytest.skip("levels of x86-64")
    path = tmp_path / "tiny.bwx"
    levels = ["--target", "x86-64-v2", "--target", "x86-64"]
    assert blockwright("compile", script, "-o", path, *levels).status == 0
    shown = [line.split() for line in blockwright("show", path).out.splitlines()]
    assert [line[1] for line in shown if line[:1] == ["name"]] == ["x86-64-v2", "x86-64"]
    assert bw.load(path).target == "x86-64-v2"
