"""The engines that are compared, one file each, imported only in the process that runs them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.worker import Subject


@dataclass(frozen=True)
class Engine:
    """Where an engine lives and what it can be asked for.

    Attributes:
        environment: of `benchmarks.environments`.
        build: "file.Class" in this package.
        options: given to the class besides those of the run.
        formats: whether it is timed in every memory format of a case, or in the first alone.
        searches: whether it measures candidates, and may take long before it is ready.
    """

    environment: str
    build: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: bool = False
    searches: bool = False


OURS = "blockwright"
FALLBACK = "fallback"
"""Us again, without the rules for patterns; no peer, and only when named."""
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
"""Peers without a search; the others take minutes per case and are named when wanted."""

# What is no engine, but runs as one: the answers and files, and the machine's own speed.
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
