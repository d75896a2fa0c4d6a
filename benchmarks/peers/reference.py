"""The answer in double precision, the exported model, and the operation count of a case."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import Case, find
from benchmarks.modules import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

OPSET = 20


class Reference:
    """Writes ``model.onnx`` when a point is prepared; its call computes the answer in float64."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._about: dict[str, Any] = {"version": torch.__version__, "opset": OPSET}

    def about(self) -> dict[str, Any]:
        return self._about

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        case = find(point["family"], point["case"])
        inputs = tuple(torch.from_numpy(array) for array in case.arrays())
        module = build(case)
        self._about["flops"], self._about["moved"] = work(case, module, inputs)
        self._about["export"] = export(module, inputs, Path(point["folder"]) / "model.onnx")
        # The module computes in the types of its weights and inputs: everything is double now.
        double = module.double()
        wide = [x.double() if x.is_floating_point() else x for x in inputs]

        def call() -> Any:
            with torch.inference_mode():
                return double(*wide)

        return call


def export(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> str:
    """Export the model for the other engines; returns "" or the reason of a failure."""
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                inputs,
                path,
                dynamo=True,
                opset_version=OPSET,
                external_data=True,
                input_names=[f"x{number}" for number in range(len(inputs))],
            )
    except Exception as error:  # noqa: BLE001  the engines that need the file report it
        return f"{type(error).__name__}: {error}"
    return ""


def work(case: Case, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[float, int]:
    """Operations and bytes of one call; counted unless the case states them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = module(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    weights = (*module.parameters(), *module.buffers())
    moved = sum(x.element_size() * math.prod(x.shape) for x in (*inputs, *weights, *outputs))
    flops = counter.get_total_flops() if case.flops is None else case.flops
    return float(flops), moved if case.moved is None else case.moved
