"""Run a saved model without the compiler: ``run_artefact.py MODEL INPUTS.npz OUTPUTS.npz``.

It needs numpy and blockwright's base install only, and is started by path, so that it cannot import
anything else from this repository. ``--hide NAME,...`` first hides packages from import, for a test
in an environment that has them.

INPUTS contains ``ids_0, mask_0, ids_1, ...``; OUTPUTS receives ``embedding_0, ...`` and ``report``,
a JSON text with the loaded modules and the memory used. Memory is the peak of the resident set
while loading and running, minus the resident set after the imports.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMPILER_ROOMS = (
    *("ir", "arith", "target", "analysis", "script", "intrin", "interp", "verify", "schedule"),
    *("ops", "graph", "lower", "codegen", "build", "measure", "strategies", "cost", "passes"),
    "frontend",
)
HEAVY = ("torch", "transformers", "llvmlite")


class Hidden(MetaPathFinder):
    """Import hook that hides the named top-level packages."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Reject a hidden name; leave all others to the finders after this one."""
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{fullname} is hidden for this run", name=fullname)


def resident(field: str) -> int:
    """Return ``VmRSS`` (now) or ``VmHWM`` (peak) of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel reports no {field}")


def reset_peak() -> bool:
    """Reset the peak to the present value.

    If the system does not allow that, the peak since start is kept, which only makes the figure
    worse.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def loaded_modules() -> list[str]:
    """Loaded modules that an artefact must not import: compiler packages and heavy packages."""
    rooms = [f"blockwright.{room}" for room in COMPILER_ROOMS]
    return sorted(name for name in (*rooms, *HEAVY) if name in sys.modules)


def main(model: str, inputs: str, outputs: str) -> None:
    """Load, run every batch, write embeddings and report."""
    import numpy as np

    import blockwright as bw

    importlib.import_module("tvm_ffi")  # memory of importing it is not the model's
    with np.load(inputs) as archive:
        arrays = {name: archive[name] for name in archive.files}
    batches = [(arrays[f"ids_{i}"], arrays[f"mask_{i}"]) for i in range(len(arrays) // 2)]
    bw.set_num_threads(2)
    gc.collect()
    before, exact = resident("VmRSS"), reset_peak()

    start = time.perf_counter()
    executable = bw.load(model)
    load_seconds = time.perf_counter() - start
    embeddings = [np.asarray(executable(ids, mask)) for ids, mask in batches]
    peak = resident("VmHWM")

    plan = executable.memory_plan
    report: dict[str, Any] = {
        "python": sys.executable,
        "loaded": loaded_modules(),
        "load_seconds": load_seconds,
        "peak_bytes": peak - before,
        "peak_was_reset": exact,
        "weight_bytes": plan.packed_weight_bytes,
        "activation_bytes": max(plan.activation_bytes(ids, mask) for ids, mask in batches),
    }
    named: dict[str, Any] = {f"embedding_{i}": value for i, value in enumerate(embeddings)}
    named["report"] = np.array(json.dumps(report))
    np.savez(outputs, **named)


if __name__ == "__main__":
    if sys.argv[1] == "--hide":
        sys.meta_path.insert(0, Hidden(sys.argv[2].split(",")))
        del sys.argv[1:3]
    main(*sys.argv[1:4])
