"""Check that the lane counts of an access agree: indices, stored value and mask."""

from __future__ import annotations

from blockwright import ir


def lane_problem(node: ir.BufferLoad | ir.BufferStore) -> str | None:
    """Why the lanes of an access do not agree; None if they do.

    The last index defines the lane count. Other indices must have the same count or one lane, a
    mask the same count, and a stored value that count times the lanes of an element.
    """
    name = node.buffer.name
    lanes = node.indices[-1].dtype.lanes if node.indices else 1
    for axis, index in enumerate(node.indices[:-1]):
        if index.dtype.lanes not in (1, lanes):
            return (
                f"index {axis} of {name} has {index.dtype.lanes} lanes, but the last index "
                f"has {lanes}"
            )
    mask = node.predicate
    if mask is not None and (mask.dtype.lanes != lanes or not mask.dtype.is_bool):
        return (
            f"the mask of an access of {name} is {mask.dtype}, but its indices have {lanes} lanes"
        )
    if isinstance(node, ir.BufferStore):
        wanted = node.buffer.dtype.lanes * lanes
        if node.value.dtype.lanes != wanted:
            return (
                f"a value of {node.value.dtype.lanes} lanes is stored to {name}, where the "
                f"indices name {wanted}"
            )
    return None
