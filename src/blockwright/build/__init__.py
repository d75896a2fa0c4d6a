"""Build tensor programs into callable libraries: lowering, code generation, linking, loading.

Exports are loaded lazily: compile workers import this package and need only a small part of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockwright.build.cache import ObjectCache as ObjectCache
    from blockwright.build.compile import Compiled as Compiled
    from blockwright.build.compile import compile_lowered as compile_lowered
    from blockwright.build.module import Module as Module
    from blockwright.build.module import Timing as Timing
    from blockwright.build.module import build as build

_EXPORTS = {
    "Compiled": "compile", "Module": "module", "ObjectCache": "cache", "Timing": "module",
    "build": "module", "compile_lowered": "compile",
}  # fmt: skip
__all__ = ["Compiled", "Module", "ObjectCache", "Timing", "build", "compile_lowered"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"blockwright.build.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'blockwright.build' has no attribute {name!r}")
