"""Loading the members of a package: from a list of names, or one per file.

A list names its members (`"fold_affine.fold_affine"`) instead of importing them, so that adding one
takes one line. The type of a member is checked where it is defined: a pass by its decorator, an
operator row and a strategy by their constructors.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def load(package: str, entry: str) -> tuple[str, Any]:
    """Import the object that an entry names.

    `module.object` stands for the object of that name; `module.object as name` gives it another
    name. Returns the name and the object.
    """
    path, _, alias = entry.partition(" as ")
    module, _, name = path.rpartition(".")
    return alias or name, getattr(importlib.import_module(f"{package}.{module}"), name)


def submodules(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import all modules of a package, in alphabetical order."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names]
