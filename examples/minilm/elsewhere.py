"""Run parts of the example in other processes: a second compilation, and saved models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
IMPORT_PROBE = """
import sys, time
start = time.perf_counter()
import blockwright
seconds = time.perf_counter() - start
print(seconds, *(name for name in ("torch", "tvm_ffi", "llvmlite") if name in sys.modules))
"""


@dataclass(frozen=True)
class Answer:
    """The embeddings that another process computed, and its report."""

    embeddings: list[NDArray[np.float32]]
    report: dict[str, Any]


def run_python(python: str, *arguments: str, own_tree: bool = True) -> str:
    """Run a Python process and return its output; on failure, raise with its error output.

    With ``own_tree`` it can import this repository; otherwise only the packages of ``python``.
    """
    env = dict(os.environ)
    if own_tree:
        paths = [str(ROOT / "src"), str(ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [python, *([] if own_tree else ["-I"]), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def import_cost() -> tuple[float, list[str]]:
    """Seconds to ``import blockwright`` in a new process, and the heavy packages that it loads.

    The better of two runs, because the first may read the files from disk.
    """
    runs = [run_python(sys.executable, "-c", IMPORT_PROBE).split() for _ in range(2)]
    best = min(runs, key=lambda run: float(run[0]))
    return float(best[0]), best[1:]


def compile_again(path: Path) -> dict[str, Any]:
    """Compile and save in a new process; return its times."""
    output = run_python(sys.executable, "-m", "examples.minilm.compile_model", str(path))
    times: dict[str, Any] = json.loads(output.splitlines()[-1])
    return times


def run_base(
    artefact: Path,
    batches: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    python: str | None,
) -> Answer:
    """Run the artefact with only the base install available.

    Without such an environment this one is used, with the other packages hidden from import.
    """
    script = str(HERE / "run_artefact.py")
    if python is not None:
        return _run(python, [script], artefact, batches, own_tree=False)
    hidden = "torch,transformers,llvmlite"
    return _run(sys.executable, ["-P", script, "--hide", hidden], artefact, batches)


def run_plain_ffi(
    artefact: Path,
    batches: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    python: str | None,
) -> Answer:
    """Run the artefact's library through ``tvm_ffi.load_module``, without blockwright.

    The artefact is a shared library; the loader determines the file type by its extension.
    """
    library = artefact.with_suffix(".so")
    shutil.copyfile(artefact, library)
    script = str(HERE / "run_ffi.py")
    return _run(python or sys.executable, [script], library, batches, own_tree=False)


def _run(
    python: str,
    script: Sequence[str],
    model: Path,
    batches: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    *,
    own_tree: bool = True,
) -> Answer:
    folder = model.parent
    inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
    arrays: dict[str, Any] = {}
    for i, (ids, mask) in enumerate(batches):
        arrays |= {f"ids_{i}": ids, f"mask_{i}": mask}
    np.savez(inputs, **arrays)
    outputs.unlink(missing_ok=True)
    files = [str(path.resolve()) for path in (model, inputs, outputs)]
    run_python(python, *script, *files, own_tree=own_tree)
    with np.load(outputs) as archive:
        embeddings = [archive[f"embedding_{i}"] for i in range(len(batches))]
        return Answer(embeddings, json.loads(str(archive["report"])))
