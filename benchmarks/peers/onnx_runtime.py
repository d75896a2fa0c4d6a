"""ONNX Runtime on the exported model."""

# pyright: reportMissingImports=false
# (The library is installed only in the environment of this peer.)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from benchmarks.cases import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Session:
    """A session with all graph optimizations, arrays in and out."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._threads = options["threads"]

    def about(self) -> dict[str, Any]:
        return {"version": onnxruntime.__version__}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = self._threads
        chosen.inter_op_num_threads = 1
        chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        path = str(Path(point["folder"]) / "model.onnx")
        session: Any = onnxruntime.InferenceSession(
            path, chosen, providers=["CPUExecutionProvider"]
        )
        arrays = find(point["family"], point["case"]).arrays()
        feed = dict(zip((one.name for one in session.get_inputs()), arrays, strict=True))

        def call() -> Any:
            return session.run(None, feed)

        return call
