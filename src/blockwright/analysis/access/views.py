"""Mapping of the elements of a view to the underlying buffer.

A view is a second name for the memory of a buffer: declared on it
(`T.decl_buffer(..., data=A.data)`), or matched to a region in a block (`T.match_buffer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides
from blockwright.arith import Analyzer


class Shift(NamedTuple):
    """An index that is a dimension of the view plus a start, or only a start (`dim` None)."""

    dim: int | None
    start: ir.Expr


class Placement(NamedTuple):
    """Position of the element `[variables]` of a view in the underlying buffer.

    Attributes:
        shifts: the indices as shifts, if all of them are; otherwise None.
    """

    root: ir.Buffer
    variables: tuple[ir.Var, ...]
    indices: tuple[ir.Expr, ...]
    shifts: tuple[Shift, ...] | None

    def at(self, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """Indices of one element, or of the lanes of a vector if all indices are shifts."""
        if all(i.dtype.is_scalar for i in indices):
            values = {
                v: ir.cast_to(i, v.type) for v, i in zip(self.variables, indices, strict=True)
            }
            return tuple(ir.substitute(e, values) for e in self.indices)
        assert self.shifts is not None
        return tuple(
            s.start if s.dim is None else _moved(indices[s.dim], s.start) for s in self.shifts
        )

    def keeps_rows(self) -> bool:
        """Whether the view has, in order, the last dimensions of the underlying buffer."""
        if self.shifts is None:
            return False
        ahead = len(self.indices) - len(self.variables)
        return [s.dim for s in self.shifts] == [*[None] * ahead, *range(len(self.variables))]


def _moved(index: ir.Expr, start: ir.Expr) -> ir.Expr:
    if ir.is_const_int(start, 0):
        return index
    if isinstance(index, ir.Ramp):
        return index.replace(base=ir.add(index.base, start))
    if isinstance(index, ir.Broadcast):
        return index.replace(value=ir.add(index.value, start))
    if index.dtype.lanes > 1:
        return index + ir.Broadcast(ir.cast_to(start, index.dtype.element), index.dtype.lanes)
    return ir.add(index, start)


def placement(node: ir.DeclBuffer, analyzer: Analyzer) -> Placement | None:
    """Position of the elements of a declared view in the underlying buffer.

    None if the position is not known for each element.
    """
    first, view = behind(node), node.buffer
    if first is None or first.predicate is not None or view.axis_separators:
        return None
    root = first.buffer
    if root.dtype is not view.dtype or not plain_scope(root.scope) or root.axis_separators:
        return None
    offset = ir.const(0, "int32") if view.offset is None else view.offset
    given = (*first.indices, offset, *view.shape, *view.strides)
    if any(isinstance(n, ir.BufferLoad) for e in given for n in ir.walk(e)):
        return None  # the layout is evaluated where the view is declared
    if any(i.dtype.lanes > 1 for i in first.indices):
        return None
    known = analyzer.copy()
    variables = tuple(ir.Var(f"i{k}", n.dtype) for k, n in enumerate(view.shape))
    for var, size in zip(variables, view.shape, strict=True):
        known.bind(var, ir.Range(ir.const(0, var.type), size))
    result = _same_rows(view, root, first.indices, offset, variables, known)
    if result is None:
        result = _unflattened(view, root, first.indices, offset, variables, known)
    if result is None:
        return None
    return Placement(root, variables, result, _shifts(result, variables, known))


def behind(node: ir.DeclBuffer) -> ir.BufferLoad | None:
    """The element at which a declared view starts, or None."""
    source = node.source
    if isinstance(source, ir.Call) and source.op == "address_of":
        first = source.args[0]
        return first if isinstance(first, ir.BufferLoad) else None
    return None


def plain_scope(scope: str) -> bool:
    """Whether memory of a scope has a well-defined layout."""
    return scope in ("global", "local", "warp") or scope.startswith("shared")


def _same_rows(
    view: ir.Buffer,
    root: ir.Buffer,
    first: Sequence[ir.Expr],
    offset: ir.Expr,
    variables: Sequence[ir.Var],
    known: Analyzer,
) -> tuple[ir.Expr, ...] | None:
    """Indices for a view with the strides of the last dimensions of the underlying buffer.

    None if the strides differ or if rows of the view may exceed those of the buffer.
    """
    ahead = root.ndim - view.ndim
    if ahead < 0 or not ir.is_const_int(offset, 0):
        return None
    ours, theirs = buffer_strides(view), buffer_strides(root)[ahead:]
    if not all(known.prove_equal(*ir.match_types(a, b)) for a, b in zip(ours, theirs, strict=True)):
        return None
    for k in range(view.ndim):
        start, size = first[ahead + k], root.shape[ahead + k]
        if (k or ahead) and not ir.is_const_int(start, 0):
            end = ir.add(start, view.shape[k])
            if not known.prove(ir.LE(*ir.match_types(end, size))):
                return None
        elif (k or ahead) and not known.prove(ir.LE(*ir.match_types(view.shape[k], size))):
            return None
    moved = [known.simplify(ir.add(s, v)) for s, v in zip(first[ahead:], variables, strict=True)]
    return (*first[:ahead], *moved)


def _unflattened(
    view: ir.Buffer,
    root: ir.Buffer,
    first: Sequence[ir.Expr],
    offset: ir.Expr,
    variables: Sequence[ir.Var],
    known: Analyzer,
) -> tuple[ir.Expr, ...] | None:
    """The indices as digits of the flat position in the compact underlying buffer."""
    compact = buffer_strides(root.replace(strides=()))
    if root.strides and not all(
        known.prove_equal(*ir.match_types(a, b)) for a, b in zip(root.strides, compact, strict=True)
    ):
        return None
    flat = offset
    for index, stride in (
        *zip(first, compact, strict=True),
        *zip(variables, buffer_strides(view), strict=True),
    ):
        flat = ir.add(flat, ir.mul(index, stride))
    if not root.shape:
        return ()
    result: list[ir.Expr] = []
    for k, (size, stride) in enumerate(zip(root.shape, compact, strict=True)):
        digit = ir.floordiv(*ir.match_types(flat, stride))
        if k:
            digit = ir.floormod(*ir.match_types(digit, size))
        result.append(known.simplify(digit))
    return tuple(result)


def _shifts(
    indices: Sequence[ir.Expr], variables: Sequence[ir.Var], known: Analyzer
) -> tuple[Shift, ...] | None:
    result: list[Shift] = []
    for index in indices:
        used = [k for k, v in enumerate(variables) if ir.uses_var(index, v)]
        if not used:
            result.append(Shift(None, index))
            continue
        start = known.simplify(ir.sub(*ir.match_types(index, variables[used[0]])))
        if len(used) > 1 or ir.uses_var(start, set(variables)):
            return None
        result.append(Shift(used[0], start))
    return tuple(result)


def shown(match: ir.MatchBufferRegion) -> Placement | None:
    """Position of the elements of a region view in the underlying buffer."""
    view, source = match.buffer, match.source
    ahead = len(source.region) - view.ndim
    if ahead < 0 or view.dtype is not source.buffer.dtype or not plain_scope(source.buffer.scope):
        return None
    if any(isinstance(n, ir.BufferLoad) for r in source.region for n in ir.walk(r)):
        return None
    variables = tuple(ir.Var(f"i{k}", n.dtype) for k, n in enumerate(view.shape))
    starts = [r.min for r in source.region]
    shifts = [Shift(None, s) for s in starts[:ahead]]
    shifts += [Shift(k, s) for k, s in enumerate(starts[ahead:])]
    moved = [ir.add(s, v) for s, v in zip(starts[ahead:], variables, strict=True)]
    return Placement(source.buffer, variables, (*starts[:ahead], *moved), tuple(shifts))


def element_behind_view(source: ir.BufferRegion, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
    """Indices in the underlying buffer of an element, or of vector lanes, of a region view."""
    extra = len(source.region) - len(indices)
    moved = (r.min + i for r, i in zip(source.region[extra:], indices, strict=True))
    return (*(r.min for r in source.region[:extra]), *moved)


def box_behind_view(source: ir.BufferRegion, box: Sequence[ir.Range]) -> tuple[ir.Range, ...]:
    """The box of the underlying buffer that a box of a region view denotes."""
    extra = len(source.region) - len(box)
    inner = (_within(o, r) for o, r in zip(source.region[extra:], box, strict=True))
    return (*source.region[:extra], *inner)


def filled_behind_view(source: ir.BufferRegion, box: Sequence[ir.Range]) -> tuple[ir.Range, ...]:
    """The box of the underlying buffer that is written if a box of a region view is.

    Unlike in `box_behind_view`, a leading dimension of the region that the view lacks is only its
    first element.
    """
    extra = len(source.region) - len(box)
    return (
        *(ir.point(r.min) for r in source.region[:extra]),
        *box_behind_view(source, box)[extra:],
    )


def _within(outer: ir.Range, rng: ir.Range) -> ir.Range:
    """Translate a range of a view to coordinates of its source, in one integer type."""
    start = outer.min + rng.min
    return ir.Range(start, ir.cast_to(rng.extent, start.dtype))
