"""Annotations of blocks that speak of their regions, as programs write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.ir.annotations import EXPLICIT_READ


def whole_number(value: object) -> int | None:
    """An integer in an annotation; None for anything else."""
    if isinstance(value, ir.IntImm):
        value = value.value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def entries(value: object) -> tuple[Any, ...] | None:
    """The entries of a list or tuple in an annotation; None for anything else."""
    return tuple(cast(Sequence[Any], value)) if isinstance(value, (list, tuple)) else None


def explicit_names(block: ir.Block, reads: Sequence[ir.BufferRegion]) -> tuple[str, ...]:
    """Names of the buffers of which a block states more than its body reads.

    Args:
        block: the block with the annotation.
        reads: the regions that it read when the annotation was made, which positions count.
    """
    if EXPLICIT_READ not in block.annotations:
        return ()
    names: list[str] = []
    for value in _values(block.annotations[EXPLICIT_READ]):
        number = whole_number(value)
        if number is not None and 0 <= number < len(reads):
            names.append(reads[number].buffer.name)
        elif isinstance(value, str):
            names.append(value)
    return tuple(names)


def explicit_problem(block: ir.Block) -> str:
    """Why the annotation of a block names no buffers; "" where it does, or is not there."""
    if EXPLICIT_READ not in block.annotations:
        return ""
    value = block.annotations[EXPLICIT_READ]
    for each in _values(value):
        number = whole_number(each)
        if number is None and not isinstance(each, str):
            return f"{EXPLICIT_READ!r} is {value!r}, neither names of buffers nor a position"
        if number is not None and not 0 <= number < len(block.reads):
            return (
                f"{EXPLICIT_READ!r} is about read region {number}, the block has {len(block.reads)}"
            )
    return ""


def _values(value: object) -> tuple[Any, ...]:
    """A list, or the only entry of one."""
    listed = entries(value)
    if listed is not None:
        return listed
    return (value.value if isinstance(value, ir.StringImm) else value,)
