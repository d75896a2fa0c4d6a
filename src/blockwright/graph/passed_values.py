"""What calls between tensor programs must pass: memory for each buffer, numbers in range."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.memory_span import byte_position, memory_span
from blockwright.analysis.canonical.pointers import address
from blockwright.analysis.facts import declared_range


class PassedMemory(NamedTuple):
    """Where a buffer of a callee lies in the buffer whose address it is given.

    Attributes:
        memory: the buffer of the caller; start: the byte of it at which the callee's begins.
        begins, ends: conditions that it begins and that it ends inside, if no extent is 0.
    """

    memory: ir.Buffer
    start: ir.Expr
    begins: ir.Expr
    ends: ir.Expr
    extents: tuple[ir.Expr, ...]


def passed_memory(
    laid_out: Container[ir.Buffer],
    buffer: ir.Buffer,
    pointer: ir.Expr,
    sizes: Mapping[ir.Var, ir.Expr],
) -> PassedMemory | None:
    """The place of a callee's buffer in the memory behind a pointer; None if it is not known.

    Args:
        laid_out: buffers of the caller whose shapes and strides tell where their elements are.
        sizes: values of the callee's sizes.
    """
    place = address(pointer)
    if place is None or place.buffer not in laid_out:
        return None
    start, whole = byte_position(place), memory_span(place.buffer)
    part = memory_span(buffer, sizes)
    if start is None or whole is None or part is None:
        return None
    begins, ends = part.inside(start, whole)
    return PassedMemory(place.buffer, start, begins, ends, (*part.extents, *whole.extents))


def range_conditions(
    callee: ir.PrimFunc, var: ir.Var, value: ir.Expr, size: bool
) -> list[tuple[ir.Expr, str]]:
    """What a callee requires of a number that it is passed, with words for messages."""
    low, high = declared_range(callee, var)
    low = 0 if low is None and size else low
    result: list[tuple[ir.Expr, str]] = []
    if low is not None:
        at_least = ir.compare(ir.GE, value, ir.const(low, value.dtype))
        result.append((at_least, f"at least {low}"))
    if high is not None and high < var.type.max_value:
        at_most = ir.compare(ir.LE, value, ir.const(high, value.dtype))
        result.append((at_most, f"at most {high}"))
    return result
