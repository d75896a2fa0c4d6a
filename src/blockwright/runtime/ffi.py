"""Lazy import of `tvm_ffi`, which can take seconds; all other modules import it through here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from blockwright.support import BlockwrightError


def tvm_ffi() -> Any:
    """The `tvm_ffi` module; BW790 when it is not installed."""
    module: ModuleType | None = sys.modules.get("tvm_ffi")
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module  # while another thread imports it, the import below waits
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise BlockwrightError(
            f"compiled code is called through tvm_ffi, which cannot be imported: {error}",
            code="BW790",
            help="pip install apache-tvm-ffi",
        ) from error


def loaded_function(name: str) -> Any:
    """A global FFI function if `tvm_ffi` is loaded and has it, else None; imports nothing."""
    module = sys.modules.get("tvm_ffi")
    find = getattr(module, "get_global_func", None)
    return None if find is None else find(name, allow_missing=True)
