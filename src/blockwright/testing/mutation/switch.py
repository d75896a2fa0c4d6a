"""Faults switched on and off: the code of a function is exchanged, for all who know it."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from blockwright.testing.mutation import faults
from blockwright.testing.mutation.sites import HELPER, Mutant


@contextmanager
def switched_on(mutant: Mutant) -> Generator[None]:
    """The fault is there inside."""
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
    """The function of a qualified name, below its decorators."""
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    found: Any = vars(owner)[last]
    while not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
        elif isinstance(found, functools.cached_property):
            found = found.func
        else:
            found = found.__wrapped__
    return found
