"""Convert arguments and results that code stores in another form than their callers.

A model compiled for channels-last images takes a tensor of shape (n, 3, h, w) stored as
(n, h, w, 3), and complex numbers are stored as pairs along one axis more. Axes are permuted before
a call and back after it, and pairs become complex numbers, as views. Callers that load the library
without this package pass and get the stored form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright.runtime.arrays import as_numpy
from blockwright.runtime.artefact import Parameter
from blockwright.runtime.complex_pairs import to_complex, to_pairs
from blockwright.support import ArgumentError

Order = tuple[int, ...]


class StoredForms:
    """The stored forms of a function's parameters and results: orders of axes, and pairs."""

    def __init__(self, parameters: Sequence[Parameter], results: Sequence[Parameter]) -> None:
        self.named = {p.name: p.order for p in (*parameters, *results) if p.order}
        self.parameters, self.results = tuple(parameters), tuple(results)
        self._back = tuple(tuple(map(r.order.index, range(len(r.order)))) for r in results)

    @property
    def usual(self) -> bool:
        """Whether all parameters and results are stored as callers see them."""
        return not any(p.order or p.paired for p in (*self.parameters, *self.results))

    def stored(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments as they are stored."""
        return _all_stored(inputs, self.parameters)

    def written(self, memory: Sequence[Any]) -> tuple[Any, ...]:
        """Memory for all results, as they are stored."""
        return _all_stored(memory, self.results)

    def counted(self, results: Any) -> Any:
        """Results as callers see them."""
        if len(self.results) == 1:
            return self._counted(0, results)
        return tuple(self._counted(k, result) for k, result in enumerate(results))

    def _counted(self, number: int, value: Any) -> Any:
        if self.results[number].paired:
            return to_complex(value)
        return _permuted(value, self._back[number])

    def explain(self, error: ArgumentError) -> ArgumentError:
        """Extend an error of the code, which names stored types and dimensions."""
        notes = [error.help] if error.help else []
        if self.named:
            orders = ", ".join(f"{name} as {order}" for name, order in self.named.items())
            notes.append(f"dimensions are numbered in storage order: axes of {orders}")
        names = [p.name for p in (*self.parameters, *self.results) if p.paired]
        if names:
            listed = ", ".join(names)
            notes.append(f"complex numbers are real ones with one axis more, of 2: {listed}")
        return ArgumentError(error.message, code=error.code, help="; ".join(notes))


def _all_stored(values: Sequence[Any], how: Sequence[Parameter]) -> tuple[Any, ...]:
    """Values as they are stored; those without a parameter are left to the code to reject."""
    known = [
        to_pairs(value) if parameter.paired else _permuted(value, parameter.order)
        for value, parameter in zip(values, how, strict=False)
    ]
    return (*known, *values[len(known) :])


def _permuted(value: Any, order: Order) -> Any:
    """A permuted view. Values of another rank are returned as they are; the code rejects them."""
    if not order:
        return value
    if not hasattr(value, "permute") and not hasattr(value, "transpose"):
        value = as_numpy(value)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != len(order):
        return value
    return value.permute(order) if hasattr(value, "permute") else value.transpose(order)
