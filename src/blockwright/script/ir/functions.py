"""Functions of the `I` dialect for the body of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright.script.relax.values import named_array

__all__ = ["constant", "module_attrs"]


def module_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the module."""
    return dict(attrs)


def constant(key: str) -> Any:
    """A named array that is passed separately from the script text."""
    return named_array(key)
