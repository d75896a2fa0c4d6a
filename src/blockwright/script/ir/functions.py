"""Functions of the `I` dialect that stand in the body of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright.script.relax.values import named_array

__all__ = ["constant", "module_attrs"]


def module_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the module."""
    return dict(attrs)


def constant(key: str) -> Any:
    """An array kept beside the text, by name."""
    return named_array(key)
