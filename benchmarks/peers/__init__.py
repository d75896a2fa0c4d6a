"""The engines to compare, one module each, imported only in the process that runs them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.worker import Subject


@dataclass(frozen=True)
class Engine:
    """Location and capabilities of an engine.

    Attributes:
        environment: its environment in `benchmarks.environments`.
        build: "file.Class" in this package.
        options: passed to the class in addition to those of the run.
        formats: whether it is timed in every memory format of a case, or only in the first.
        searches: whether it measures candidates, and may take long to prepare.
    """

    environment: str
    build: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: bool = False
    searches: bool = False


OURS = "blockwright"
FALLBACK = "fallback"
"""Our compiler with the fallback strategy only; not a peer, and run only when named."""
ENGINES: dict[str, Engine] = {
    OURS: Engine("own", "ours.Compiled", formats=True),
    FALLBACK: Engine("own", "ours.Compiled", {"fallback": True}),
    "torch": Engine("torch", "pytorch.Eager", formats=True),
    "inductor": Engine("torch", "pytorch.Inductor", {"mode": "default"}, formats=True),
    "inductor-max": Engine(
        "torch",
        "pytorch.Inductor",
        {"mode": "max-autotune-no-cudagraphs"},
        formats=True,
        searches=True,
    ),
    "onnxruntime": Engine("onnxruntime", "onnx_runtime.Session"),
    "openvino": Engine("openvino", "open_vino.Request"),
    "tvm": Engine("tvm", "apache_tvm.Machine"),
    "tvm-tuned": Engine("tvm", "apache_tvm.Machine", {"tuned": True}, searches=True),
}
DEFAULT = ("torch", "inductor", "onnxruntime", "openvino", "tvm")
"""Peers without a search; the others take minutes per case and run only when named."""

# Helpers that run like engines: reference answers and model files, and the machine's own speed.
HELPERS: dict[str, Engine] = {
    "reference": Engine("torch", "reference.Reference"),
    "fma": Engine("own", "probes.Arithmetic"),
    "bandwidth": Engine("own", "probes.Bandwidth"),
}


def _factory(engine: Engine) -> Callable[[Mapping[str, Any]], Subject]:
    def make(options: Mapping[str, Any]) -> Subject:
        file, name = engine.build.split(".")
        module = importlib.import_module(f"benchmarks.peers.{file}")
        return getattr(module, name)({**engine.options, **options})

    return make


PEERS = {name: _factory(engine) for name, engine in {**ENGINES, **HELPERS}.items()}
