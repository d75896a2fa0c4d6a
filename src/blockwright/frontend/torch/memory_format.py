"""Memory formats: find the channels-last tensors of an exported program.

The exporter runs the model on fake tensors with strides, starting from those of the example inputs.
Their strides show which inputs and results are channels-last in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Order = tuple[int, ...]
_RANKS = (4, 5)  # torch.channels_last and torch.channels_last_3d


def memory_order(value: Any) -> Order:
    """The axes in memory order, for a channels-last tensor; () for others.

    Symbolic sizes are assumed as in the example. If another order occurs at run time, the result is
    still correct, at the cost of a copy.
    """
    rank = value.dim()
    if rank not in _RANKS:
        return ()
    sizes, strides = _numbers(value.shape), _numbers(value.stride())
    last = (0, *range(2, rank), 1)
    if sizes is None or strides is None or _is_contiguous_in(sizes, strides, tuple(range(rank))):
        return ()
    return last if _is_contiguous_in(sizes, strides, last) else ()


def counted(order: Order) -> Order:
    """The inverse permutation: from the stored axes back to the logical ones."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _numbers(values: Sequence[Any]) -> list[int] | None:
    """Sizes as in the example; None if one is known only at run time."""
    result = [v if isinstance(v, int) else v.node.hint for v in values]
    return None if any(v is None for v in result) else [int(v) for v in result]


def _is_contiguous_in(sizes: Sequence[int], strides: Sequence[int], order: Order) -> bool:
    """Whether the elements are contiguous in an order of the axes."""
    wanted = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != wanted:
            return False
        wanted *= sizes[axis]
    return True
