"""Virtual environments of the peers, created on demand from pinned requirements.

The libraries disagree about common dependencies, so each has its own environment under ``.venvs``.
An environment is recreated when one of its requirement files has changed. Extra options for pip
come from the variable ``PIP_ARGS``, as in the Makefile.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venvs"

# Environment → (requirement file, with its dependencies?), in the order of installation.
ENVIRONMENTS: dict[str, tuple[tuple[str, bool], ...]] = {
    "torch": (("torch.txt", True), ("peers/torch.txt", False)),
    "onnxruntime": (("peers/onnxruntime.txt", False),),
    "openvino": (("peers/openvino.txt", False),),
    "tvm": (("peers/tvm.txt", False),),
}


class MakeError(RuntimeError):
    """An environment could not be created; the message ends with pip's error output."""


def interpreter(name: str) -> str:
    """The Python of an environment, which is created if it is missing or out of date.

    The name "own" stands for the environment that runs this program.
    """
    if name == "own":
        return sys.executable
    folder = FOLDER / name
    stamp = folder / "requirements.sha256"
    wanted = _digest(name)
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != wanted:
        print(f"==> {folder.relative_to(ROOT)}: new environment", flush=True)
        _make(name, folder)
        stamp.write_text(wanted, encoding="ascii")
    return str(folder / "bin" / "python")


def with_bytecode() -> None:
    """Compile this source tree to bytecode, as pip does for installed packages.

    Otherwise each new process would compile the sources first where Python may not write bytecode
    (`python -B`).
    """
    compileall.compile_dir(ROOT / "src", quiet=1)


def _digest(name: str) -> str:
    files = (ROOT / "requirements" / file for file, _ in ENVIRONMENTS[name])
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _make(name: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)
    _run([base, "-m", "venv", str(folder)])
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-input",
        "--disable-pip-version-check",
        *shlex.split(os.environ.get("PIP_ARGS", "")),
    ]
    for file, complete in ENVIRONMENTS[name]:
        alone = [] if complete else ["--no-deps"]
        _run([*pip, *alone, "--requirement", str(ROOT / "requirements" / file)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MakeError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
