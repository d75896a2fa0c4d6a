"""Blockwright, a machine-learning compiler. Public names are imported on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from blockwright.support.garbage import few_collections

__version__ = "0.1.0"

# Public name → module that defines it.
_EXPORTS: dict[str, str] = {
    "ArgumentError": "blockwright.support",
    "ArtefactError": "blockwright.support",
    "BlockwrightError": "blockwright.support",
    "BlockwrightWarning": "blockwright.support",
    "BuildError": "blockwright.support",
    "ImporterError": "blockwright.support",
    "InterpretError": "blockwright.support",
    "ScheduleError": "blockwright.support",
    "ScriptError": "blockwright.support",
    "StateError": "blockwright.support",
    "TargetError": "blockwright.support",
    "ValidationError": "blockwright.support",
    "CompiledModel": "blockwright.api.model",
    "Executable": "blockwright.runtime.executable",
    "GraphError": "blockwright.support",
    "IRError": "blockwright.support",
    "OptionError": "blockwright.support",
    "Instrument": "blockwright.passes",
    "Pipeline": "blockwright.passes",
    "Profile": "blockwright.runtime.profile",
    "Roofline": "blockwright.runtime.roofline",
    "Schedule": "blockwright.schedule",
    "Target": "blockwright.target",
    "TensorIntrin": "blockwright.verify",
    "build": "blockwright.build",
    "compile": "blockwright.api.compile",
    "default_pipeline": "blockwright.passes",
    "from_source": "blockwright.script.ir",
    "function_pass": "blockwright.passes",
    "graph_pass": "blockwright.passes",
    "import_model": "blockwright.api.importing",
    "interpret": "blockwright.api.interpret",
    "load": "blockwright.runtime.executable",
    "measure_roofline": "blockwright.measure",
    "num_threads": "blockwright.runtime.threads",
    "program_pass": "blockwright.passes",
    "set_num_threads": "blockwright.runtime.threads",
    "validate": "blockwright.api.validate",
    "verify": "blockwright.api.verify",
}
_MODULES = frozenset({"ir", "tir", "script", "testing"})


class _Package(ModuleType):
    """Package in which a function and a subpackage may share a name (`bw.build`, `build/`).

    Importing a subpackage would bind it as an attribute of the package. The attribute stays the
    function; the subpackage remains reachable by `import` and `from ... import`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _EXPORTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        with few_collections:  # modules are never freed
            value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"blockwright.{name}")
    raise AttributeError(f"module 'blockwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS, *_MODULES])
