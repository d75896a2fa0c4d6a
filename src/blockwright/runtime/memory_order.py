"""Permute arguments and results whose storage order differs from their logical axis order.

A model compiled for channels-last images takes a tensor of shape (n, 3, h, w) stored as
(n, h, w, 3). Its code uses the storage order: axes are permuted before a call and back after it,
both as views. Callers that load the library without this package pass and get the storage order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright.runtime.arrays import as_numpy
from blockwright.runtime.artefact import Parameter
from blockwright.support import ArgumentError

Order = tuple[int, ...]


class MemoryOrders:
    """Storage orders of a function's parameters and results; empty for the default order."""

    def __init__(self, parameters: Sequence[Parameter], results: Sequence[Parameter]) -> None:
        self.named = {p.name: p.order for p in (*parameters, *results) if p.order}
        self.orders = tuple(p.order for p in parameters)
        self.results = tuple(r.order for r in results)
        self.back = tuple(tuple(map(r.order.index, range(len(r.order)))) for r in results)

    @property
    def usual(self) -> bool:
        """Whether all parameters and results have the default order."""
        return not any(self.orders) and not any(self.back)

    def stored(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments with their axes in storage order."""
        known = (*self.orders, *((),) * len(inputs))
        return tuple(map(_permuted, inputs, known))

    def written(self, memory: Sequence[Any]) -> tuple[Any, ...]:
        """Memory for all results, with its axes in storage order."""
        return tuple(map(_permuted, memory, self.results))

    def counted(self, results: Any) -> Any:
        """Results with their axes in logical order."""
        if len(self.back) == 1:
            return _permuted(results, self.back[0])
        return tuple(map(_permuted, results, self.back))

    def explain(self, error: ArgumentError) -> ArgumentError:
        """Extend an error of the code, which numbers dimensions in storage order."""
        orders = ", ".join(f"{name} as {order}" for name, order in self.named.items())
        help = f"{error.help}; " if error.help else ""
        return ArgumentError(
            error.message,
            code=error.code,
            help=f"{help}dimensions are numbered in storage order: axes of {orders}",
        )


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
