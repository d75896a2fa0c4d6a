"""TVM on the exported model, with its default schedules or those of MetaSchedule."""

# pyright: reportMissingImports=false
# (The library is installed only in the environment of this peer.)

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.target.codegen import llvm_get_system_cpu

from benchmarks.built_for import NATIVE
from benchmarks.cases import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TRIALS = 256
"""Measured candidates per tuned case."""


class Machine:
    """TVM's virtual machine, with this processor's instructions, or those of a target."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._threads = options["threads"]
        self._tuned = options.get("tuned", False)
        os.environ["TVM_NUM_THREADS"] = str(self._threads)
        target = options.get("target", NATIVE)
        self._processor = llvm_get_system_cpu() if target == NATIVE else target

    def about(self) -> dict[str, Any]:
        return {
            "version": tvm.__version__,
            "processor": self._processor,
            "trials": TRIALS if self._tuned else 0,
        }

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        kind = {"kind": "llvm", "mcpu": self._processor, "num-cores": self._threads}
        target = tvm.target.Target(kind)
        module = from_onnx(onnx.load(Path(point["folder"]) / "model.onnx"))
        module = self._scheduled(module, target)
        machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
        arrays = find(point["family"], point["case"]).arrays()
        inputs = [tvm.runtime.tensor(array) for array in arrays]
        main: Callable[..., Any] = machine["main"]

        def call() -> Any:
            return main(*inputs)

        return call

    def _scheduled(self, module: Any, target: Any) -> Any:
        if not self._tuned:
            return module
        with tempfile.TemporaryDirectory() as folder, target:
            tuning = relax.get_pipeline(
                "static_shape_tuning", target=target, total_trials=TRIALS, work_dir=folder
            )
            return tuning(module)
