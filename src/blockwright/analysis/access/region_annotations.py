"""Block annotations that refer to read or write regions, as written in programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.ir.annotations import EXPLICIT_READ


def whole_number(value: object) -> int | None:
    """The value of an integer in an annotation; None for anything else."""
    if isinstance(value, ir.IntImm):
        value = value.value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def entries(value: object) -> tuple[Any, ...] | None:
    """The entries of a list or tuple in an annotation; None for anything else."""
    return tuple(cast(Sequence[Any], value)) if isinstance(value, (list, tuple)) else None


def explicit_names(block: ir.Block, reads: Sequence[ir.BufferRegion]) -> tuple[str, ...]:
    """Names of the buffers whose declared read regions exceed what the body reads.

    Args:
        block: the block with the annotation.
        reads: its read regions when the annotation was made; positions refer to these.
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
    """Why the annotation names no buffers; "" if it does or is absent."""
    if EXPLICIT_READ not in block.annotations:
        return ""
    value = block.annotations[EXPLICIT_READ]
    for each in _values(value):
        number = whole_number(each)
        if number is None and not isinstance(each, str):
            return f"{EXPLICIT_READ!r} is {value!r}, neither buffer names nor positions"
        if number is not None and not 0 <= number < len(block.reads):
            return f"{EXPLICIT_READ!r} names read region {number}, the block has {len(block.reads)}"
    return ""


def _values(value: object) -> tuple[Any, ...]:
    """The entries of a list, or a single value as a tuple."""
    listed = entries(value)
    if listed is not None:
        return listed
    return (value.value if isinstance(value, ir.StringImm) else value,)
