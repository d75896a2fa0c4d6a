"""Run a saved model without blockwright installed: ``run_ffi.py LIBRARY INPUTS.npz OUTPUTS.npz``.

Only ``tvm_ffi`` and numpy are imported. The library's entry point takes tensors and returns a
tensor through the packed calling convention, which C++, Rust and JAX also use.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import tvm_ffi

ENTRY = "main"


def main(library: str, inputs: str, outputs: str) -> None:
    """Load, run every batch, write embeddings and report."""
    loader: Any = tvm_ffi
    entry = loader.load_module(library)[ENTRY]
    with np.load(inputs) as archive:
        arrays = {name: archive[name] for name in archive.files}
    outcome: dict[str, Any] = {
        f"embedding_{i}": np.from_dlpack(
            entry(tvm_ffi.from_dlpack(arrays[f"ids_{i}"]), tvm_ffi.from_dlpack(arrays[f"mask_{i}"]))
        )
        for i in range(len(arrays) // 2)
    }
    report = {
        "python": sys.executable,
        "blockwright_installed": find_spec("blockwright") is not None,
    }
    outcome["report"] = np.array(json.dumps(report))
    np.savez(outputs, **outcome)


if __name__ == "__main__":
    main(*sys.argv[1:4])
