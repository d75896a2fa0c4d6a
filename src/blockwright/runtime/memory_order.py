"""Arguments and results whose axes lie in memory in another order than they are counted in.

A model compiled for channels-last images takes a tensor (n, 3, h, w) whose memory is (n, h, w, 3).
Its code sees the memory as it lies: the axes are put into that order before a call and back after
it, which are views. Libraries loaded without this package take and give the stored order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright.runtime.arrays import as_numpy
from blockwright.runtime.artefact import Parameter
from blockwright.support import ArgumentError

Order = tuple[int, ...]


class MemoryOrders:
    """The orders of a function's parameters and results; empty for the usual one."""

    def __init__(self, parameters: Sequence[Parameter], results: Sequence[Parameter]) -> None:
        self.named = {p.name: p.order for p in (*parameters, *results) if p.order}
        self.orders = tuple(p.order for p in parameters)
        self.results = tuple(r.order for r in results)
        self.back = tuple(tuple(map(r.order.index, range(len(r.order)))) for r in results)

    @property
    def usual(self) -> bool:
        """Whether all lie as they are counted."""
        return not any(self.orders) and not any(self.back)

    def stored(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments with their axes as they lie in memory."""
        known = (*self.orders, *((),) * len(inputs))
        return tuple(map(_permuted, inputs, known))

    def written(self, memory: Sequence[Any]) -> tuple[Any, ...]:
        """Memory for all results with its axes as the code writes them."""
        return tuple(map(_permuted, memory, self.results))

    def counted(self, results: Any) -> Any:
        """Results with their axes as the model counts them."""
        if len(self.back) == 1:
            return _permuted(results, self.back[0])
        return tuple(map(_permuted, results, self.back))

    def explain(self, error: ArgumentError) -> ArgumentError:
        """An error of the code, which counts dimensions as they are stored."""
        orders = ", ".join(f"{name} as {order}" for name, order in self.named.items())
        help = f"{error.help}; " if error.help else ""
        return ArgumentError(
            error.message,
            code=error.code,
            help=f"{help}dimensions are numbered as they are stored: axes of {orders}",
        )


def _permuted(value: Any, order: Order) -> Any:
    """A view with the axes in that order; what has another rank is left for the code to refuse."""
    if not order:
        return value
    if not hasattr(value, "permute") and not hasattr(value, "transpose"):
        value = as_numpy(value)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != len(order):
        return value
    return value.permute(order) if hasattr(value, "permute") else value.transpose(order)
