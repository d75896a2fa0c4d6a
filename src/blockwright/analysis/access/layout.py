"""Memory layout of buffers: strides, alignment, and layout constraints of views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from blockwright import ir
from blockwright.analysis.access.stride_alignment import AlignRow
from blockwright.arith import Analyzer
from blockwright.arith.text import expr_text

OWN_ALIGNMENT = 64
"""Alignment of every allocated buffer, in bytes."""


def buffer_strides(buffer: ir.Buffer, align: Sequence[AlignRow] = ()) -> tuple[ir.Expr, ...]:
    """Element strides of a buffer: its own, or compact row-major ones padded according to `align`.

    `align` rows are (axis, factor, offset): the stride of `axis` is `offset` modulo `factor`.
    """
    if buffer.strides:
        return buffer.strides
    rows = {axis % buffer.ndim: (factor, offset) for axis, factor, offset in align}
    strides: list[ir.Expr] = []
    stride: ir.Expr = ir.const(1, buffer.shape[-1].dtype if buffer.shape else "int64")
    for axis in reversed(range(buffer.ndim)):
        factor, offset = rows.get(axis, (1, 0))
        if factor > 1:
            missing = ir.floormod(
                ir.add(ir.floormod(ir.sub(offset, stride), factor), factor), factor
            )
            stride = ir.add(stride, missing)
        strides.append(stride)
        stride = ir.mul(stride, buffer.shape[axis])
    return tuple(reversed(strides))


def span(shape: Sequence[ir.Expr], strides: Sequence[ir.Expr]) -> ir.Expr:
    """Elements from the first one to the end of the last one; meaningless if an extent is 0."""
    dtype = strides[0].dtype if strides else "int64"
    result: ir.Expr = ir.const(1, dtype)
    for extent, stride in zip(shape, strides, strict=True):
        reach = ir.mul(*ir.match_types(ir.sub(extent, 1), stride))
        result = ir.add(*ir.match_types(result, reach))
    return result


def unmet_demands(
    view: ir.Buffer,
    source: ir.BufferRegion,
    strides: Sequence[ir.Expr],
    allocated: bool,
    analyzer: Analyzer,
    resolved: Callable[[ir.Expr], ir.Expr] = lambda e: e,
) -> Iterator[tuple[str, str, str]]:
    """Constraints of a view on the memory of its source that are not known to hold.

    Checked are the type; the scope ("global" accepts any addressable memory); explicit strides and
    offset, unless they are variables to bind; `offset_factor`, which must divide the offset; and
    `data_alignment` in bytes. The stride of a dimension of extent 1 is irrelevant.

    Args:
        view, source: the view and its source region.
        strides: strides of the source buffer.
        allocated: whether the buffer is allocated by the program.
        resolved: rewrites an expression in terms of loops, where more facts may be known.

    Yields: (constraint, known fact, remedy).
    """
    buffer = source.buffer
    if view.dtype is not buffer.dtype:
        yield (
            f"elements of {view.dtype}",
            f"{buffer.name} holds {buffer.dtype}",
            f"choose an operation on {buffer.dtype}, or let a block before cast {buffer.name} "
            f"into a buffer of {view.dtype}",
        )
        return
    fragment = "." in buffer.scope.removesuffix(".dyn")
    if view.scope != buffer.scope and (view.scope != "global" or fragment):
        yield (
            f"scope {view.scope!r}",
            f"{buffer.name} lies in {buffer.scope!r}",
            _into_scope(buffer, view.scope, allocated),
        )

    def surely(a: ir.Expr, b: ir.Expr) -> bool:
        return any(
            analyzer.prove_equal(ir.cast_to(x, "int64"), ir.cast_to(y, "int64"))
            for x, y in ((a, b), (resolved(a), resolved(b)))
        )

    extra = len(source.region) - view.ndim
    zero: ir.Expr = ir.const(0, "int64")
    for axis, (wanted, have) in enumerate(zip(view.strides, strides[extra:], strict=False)):
        free = isinstance(wanted, ir.Var) or ir.is_const_int(source.region[extra + axis].extent, 1)
        if not free and not surely(wanted, have):
            yield (
                f"stride {expr_text(wanted)} in dimension {axis}",
                f"that of {buffer.name} is {expr_text(analyzer.simplify(have))}",
                f"cache_read or cache_write {buffer.name}, so that the part has a buffer with "
                "that stride, or state no stride that the memory does not have",
            )
    start = zero
    for rng, stride in zip(source.region, strides, strict=True):
        start = ir.add(start, ir.mul(ir.cast_to(rng.min, "int64"), ir.cast_to(stride, "int64")))
    shown = f"the part of {buffer.name} starts at element {expr_text(analyzer.simplify(start))}"
    offset = view.offset
    if offset is not None and not isinstance(offset, ir.Var) and not surely(offset, start):
        yield (
            f"element offset {expr_text(offset)}",
            shown,
            f"cache_read or cache_write the part of {buffer.name}, so that it starts a buffer",
        )
    factor = view.offset_factor
    if factor > 1 and not surely(ir.floormod(start, factor), zero):
        yield (
            f"an element offset that is a multiple of {factor}",
            shown,
            _into_step(buffer, factor, allocated),
        )
    wanted_bytes = view.data_alignment
    element = buffer.dtype.nbytes * buffer.dtype.lanes
    if wanted_bytes > element:
        known = max(buffer.data_alignment, OWN_ALIGNMENT) if allocated else element
        if known % wanted_bytes:
            yield (
                f"an address that is a multiple of {wanted_bytes} bytes",
                f"that of {buffer.name} is known to be one of {known}",
                "cache it in a buffer of the program: callers align to elements only",
            )
        elif not surely(ir.floormod(ir.mul(start, element), wanted_bytes), zero):
            yield (
                f"an address that is a multiple of {wanted_bytes} bytes",
                shown,
                _into_step(buffer, wanted_bytes // element, allocated),
            )


def _into_scope(buffer: ir.Buffer, scope: str, allocated: bool) -> str:
    """Schedule steps that move a buffer into a scope."""
    copies = (
        f'cache_read(block, "{buffer.name}", "{scope}") where it is read, '
        f'cache_write(block, "{buffer.name}", "{scope}") where it is written'
    )
    return f'set_scope(writer, "{buffer.name}", "{scope}"), or {copies}' if allocated else copies


def _into_step(buffer: ir.Buffer, factor: int, allocated: bool) -> str:
    """Schedule steps that align the tiles of a buffer to a multiple of `factor` elements."""
    tiles = f"split so that tiles of {buffer.name} start at multiples of {factor} elements"
    if buffer.ndim < 2:
        return tiles
    align = (
        f'storage_align(writer, "{buffer.name}", axis=-2, factor={factor}, offset=0), where '
        "rows are of another length"
    )
    return f"{tiles}, or {align if allocated else f'cache_read or cache_write it and {align}'}"
