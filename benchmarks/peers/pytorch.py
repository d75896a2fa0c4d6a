"""PyTorch: the module in eager mode, and compiled by `torch.compile`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.cases import find
from benchmarks.modules import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def in_format(
    module: nn.Module, inputs: list[Tensor], memory_format: str
) -> tuple[nn.Module, list[Tensor]]:
    """Convert weights and inputs of four or five dimensions to channels-last, if requested."""
    if memory_format == "contiguous":
        return module, inputs
    ranks = {x.ndim for x in (*inputs, *module.parameters()) if x.ndim in CHANNELS_LAST}
    for rank in ranks:
        module = module.to(memory_format=CHANNELS_LAST[rank])  # pyright: ignore[reportCallIssue]
    moved = [
        x.contiguous(memory_format=CHANNELS_LAST[x.ndim]) if x.ndim in CHANNELS_LAST else x
        for x in inputs
    ]
    return module, moved


class Eager:
    """Every operator runs one of PyTorch's own kernels."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(options["threads"])

    def about(self) -> dict[str, Any]:
        return {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "vector": torch.backends.cpu.get_cpu_capability(),
        }

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        case = find(point["family"], point["case"])
        inputs = [torch.from_numpy(array) for array in case.arrays()]
        start = time.perf_counter()
        module, moved = in_format(build(case), inputs, point["format"])
        self.made_s = time.perf_counter() - start
        run = self.compiled(module)

        def call() -> Any:
            with torch.inference_mode():
                return run(*moved)

        return call

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        return module


class AbsentError(RuntimeError):
    """The machine lacks something that an engine needs."""


class Inductor(Eager):
    """`torch.compile` with frozen weights and an empty cache; the first call compiles."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise AbsentError("torch.compile needs a C++ compiler, and there is no g++")
        super().__init__(options)
        self._mode = options["mode"]
        self._cache = tempfile.TemporaryDirectory()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._cache.name
        from torch._inductor import config

        config.freezing = True

    def about(self) -> dict[str, Any]:
        return {**super().about(), "mode": self._mode}

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        return torch.compile(module, mode=self._mode)
