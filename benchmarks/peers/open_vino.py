"""OpenVINO on the exported model, in single precision."""

# pyright: reportMissingImports=false
# (The library is installed only in the environment of this peer.)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino

from benchmarks.cases import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Request:
    """One inference request, tuned for latency; inputs are shared, outputs are its own."""

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
        # A shared tensor does not keep its array alive; the call below does.
        shared = [(array, openvino.Tensor(array, shared_memory=True)) for array in arrays]
        for place, (_, tensor) in enumerate(shared):
            request.set_input_tensor(place, tensor)

        def call(_alive: Any = shared) -> Any:
            request.infer()
            return [request.get_output_tensor(place).data for place in range(len(model.outputs))]

        return call
