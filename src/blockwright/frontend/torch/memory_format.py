"""Memory formats: which tensors of an exported program lie channels-last.

The exporter runs the model on stand-ins that carry strides, those of the example inputs to begin
with. So it knows which inputs and which results lie channels-last, as they would in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Order = tuple[int, ...]
_RANKS = (4, 5)  # torch.channels_last and torch.channels_last_3d


def memory_order(value: Any) -> Order:
    """The axes as they lie in memory, for a tensor that is channels-last; () for others.

    Symbolic sizes are taken as in the example: code for another order would be right as well, and
    copy what does not lie so.
    """
    rank = value.dim()
    if rank not in _RANKS:
        return ()
    sizes, strides = _numbers(value.shape), _numbers(value.stride())
    last = (0, *range(2, rank), 1)
    if sizes is None or strides is None or _lies(sizes, strides, tuple(range(rank))):
        return ()
    return last if _lies(sizes, strides, last) else ()


def counted(order: Order) -> Order:
    """The permutation from the stored axes back to those that are counted."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _numbers(values: Sequence[Any]) -> list[int] | None:
    """Sizes as in the example; None when one is known only at run time."""
    result = [v if isinstance(v, int) else v.node.hint for v in values]
    return None if any(v is None for v in result) else [int(v) for v in result]


def _lies(sizes: Sequence[int], strides: Sequence[int], order: Order) -> bool:
    """Whether the elements follow one another along the axes in that order."""
    wanted = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != wanted:
            return False
        wanted *= sizes[axis]
    return True
