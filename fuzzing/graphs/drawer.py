"""A graph function under construction: its values so far, and random choices among them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuzzing.graphs.program import Array, Binding, Compute, Inexact, Run, Value, checked

TYPES = (
    "int32", "int32", "int32", "int8", "uint8", "float32", "int64", "bool", "uint32", "int16",
    "float64",
)  # fmt: skip
ROWS = (1, 2, 3, 5, 8, 17)
COLUMNS = (1, 2, 3, 4, 7, 16, 33)
_MOST_ELEMENTS = 1 << 14
_NAMES = re.compile(r"\b[ps]\d+\b|\bv\d+\b")


class Drawer:
    """A graph function under construction.

    Attributes:
        chance: source of random choices; values: all tensors so far; run: their values.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        sizes = {"n": self.chance.choice(ROWS), "m": self.chance.choice(COLUMNS)}
        self.run = Run(sizes, {})
        self.values: list[Value] = []
        self.bindings: list[Binding] = []
        self._symbols: dict[str, str] = {}
        self.count = 0

    # ---------------------------------------------------------------- choices
    def pick(self, holds: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A random value for which the condition holds; None if there is none."""
        found = [value for value in self.values if holds(value)]
        return self.chance.choice(found) if found else None

    def axis(self, value: Value) -> tuple[int, int]:
        """An axis, and a way to write it: counted from either end."""
        axis = self.chance.randrange(len(value.dims))
        return axis, self.chance.choice((axis, axis - len(value.dims)))

    def array(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Random elements: small numbers, or for integers also the ends of the type."""
        if dtype == "bool":
            return self.numbers.integers(0, 2, shape).astype(bool)
        if dtype.startswith("float"):
            return self.numbers.integers(-8, 9, shape).astype(dtype)
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if self.chance.random() < 0.4:
            ends = np.array([low, high, 0, 1, high - 1, low + 1, 3], dtype)
            return ends[self.numbers.integers(0, len(ends), shape)]
        return self.numbers.integers(max(low, -20), 20, shape).astype(dtype)

    # ---------------------------------------------------------------- bindings
    def name(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def define(
        self, name: str, text: str, compute: Compute, left: Mapping[str, Compute] | None = None
    ) -> bool:
        """Add a binding unless its value is not exact or has too many elements."""
        try:
            with np.errstate(all="ignore"):
                result = checked(compute(self.run))
        except Inexact:
            return False
        if isinstance(result, np.ndarray) and result.size > _MOST_ELEMENTS:
            return False
        self.run.values[name] = result
        uses = {word for word in _NAMES.findall(text) if word != name}
        uses |= {self._symbols[word] for word in uses if word in self._symbols}
        self.bindings.append(Binding(name, text, frozenset(uses), compute, left or {}))
        return True

    def bind(self, dims: Sequence[str], dtype: str, text: str, compute: Compute) -> Value | None:
        """Define a tensor `text`; a quarter of them are annotated."""
        value = Value(self.name(), tuple(dims), dtype)
        note = f": {value.info}" if self.chance.random() < 0.25 else ""
        if not self.define(value.name, f"{value.name}{note} = {text}", compute):
            return None
        self.add(value)
        return value

    def add(self, value: Value) -> None:
        """Make a defined tensor available to later bindings."""
        result = self.run[value.name]
        shape = self.run.shape(value.dims)
        assert result.shape == shape, (value, result.shape, self.bindings[-1].text)
        assert result.dtype == value.dtype, (value, result.dtype, self.bindings[-1].text)
        self.values.append(value)

    def symbol(self, owner: str, size: int) -> str:
        """A new symbol, which the binding of `owner` declares."""
        name = f"s{len(self._symbols)}"
        self._symbols[name] = owner
        self.run.sizes[name] = size
        return name
