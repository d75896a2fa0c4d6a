"""Switch faults on and off by exchanging the code object of a function."""

from __future__ import annotations

import importlib
import types
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fuzzing.mutation import faults
from fuzzing.mutation.sites import HELPER, Mutant

_BELOW = ("__wrapped__", "__func__", "fget", "func")
"""Attributes in which decorated functions store the original."""


@contextmanager
def switched_on(mutant: Mutant) -> Generator[None]:
    """Activate the fault in this context."""
    module = importlib.import_module(mutant.module)
    function = find(module, mutant.function)
    code = function.__code__
    setattr(module, HELPER, faults)
    function.__code__ = mutant.code
    try:
        yield
    finally:
        function.__code__ = code
        delattr(module, HELPER)


def find(module: types.ModuleType, name: str) -> types.FunctionType:
    """The function with a qualified name, below its decorators."""
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    return _below(vars(owner)[last])


def _below(found: Any) -> types.FunctionType:
    held = [getattr(found, name, None) for name in _BELOW]
    below = next((h for h in held if h is not None), None)
    if below is not None:
        return _below(below)
    assert isinstance(found, types.FunctionType)
    return found
