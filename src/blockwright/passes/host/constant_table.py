"""Names of the constants of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from blockwright.passes.fold_constants import data_key


class ConstantTable:
    """Constants of a module by name; functions that use the same data share one.

    Attributes: `arrays` maps names to data.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays: dict[str, NDArray[Any]] = dict(arrays)
        self._names: dict[tuple[Any, ...], str] = {}

    def name_of(self, data: NDArray[Any], function: str) -> str:
        """The name of a constant; a new one is called after the function that uses it first."""
        key = data_key(data)
        if key not in self._names:
            self._names[key] = f"{function}.constant{len(self._names)}"
            self.arrays[self._names[key]] = data
        return self._names[key]
