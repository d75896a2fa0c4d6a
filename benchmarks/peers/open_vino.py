"""OpenVINO on the exported model, in single precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino

from benchmarks.cases import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Request:
    """One request for latency; inputs are shared with it, outputs are its own."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": options["threads"],
            "NUM_STREAMS": 1,
        }

    def about(self) -> dict[str, Any]:
        return {"version": openvino.__version__, **self._settings}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        path = Path(point["folder"]) / "model.onnx"
        model = openvino.Core().compile_model(path, "CPU", self._settings)
        request = model.create_infer_request()
        arrays = find(point["family"], point["case"]).arrays()
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))

        def call() -> Any:
            request.infer()
            return [request.get_output_tensor(place).data for place in range(len(model.outputs))]

        return call
