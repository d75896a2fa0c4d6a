"""Converters that move elements: views, slices, concatenation, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.convert_run_time_sizes import positions
from blockwright.frontend.torch.operands import (
    Registry,
    axis_of,
    cast_to,
    dims_of,
    node_shape,
    reshape,
    result_type,
    size_of,
)
from blockwright.frontend.torch.run_time_sizes import depends_on_data
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()


@TABLE.row("reshape", "flatten", "expand_dims", "squeeze")
@TABLE.overload("aten.unflatten.int")
def _view(imp: Importer, node: Any, x: Any, *ignored: Any) -> Any:
    return reshape(imp, x, node_shape(imp, node))


@TABLE.overload("aten.copy.default")
def _copy(imp: Importer, node: Any, x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The result of assigning to all of `x`: the source in the type and shape of `x`."""
    return _expand(imp, node, cast_to(imp, source, result_type(node)))


@TABLE.row("broadcast_to")
def _expand(imp: Importer, node: Any, x: Any, *ignored: Any, **also: Any) -> Any:
    wanted = node_shape(imp, node)
    now = dims_of(x)
    same = len(wanted) == len(now) and all(
        imp.builder.analyzer.prove_equal(a, b) for a, b in zip(wanted, now, strict=True)
    )
    return x if same else imp.builder.op("broadcast_to", x, shape_value(wanted))


@TABLE.overload("aten.repeat.default")
def _repeat(imp: Importer, node: Any, x: Any, repeats: Sequence[Any]) -> Any:
    return tiled(imp, x, [size_of(imp, number) for number in repeats], node_shape(imp, node))


def tiled(imp: Importer, x: Any, repeats: Sequence[ir.Expr], wanted: tuple[ir.Expr, ...]) -> Any:
    """Copies of a tensor side by side, along as many axes as there are numbers of copies."""
    one = ir.const(1, "int64")
    shape = (*[one] * (len(repeats) - len(dims_of(x))), *dims_of(x))
    axes = [k for k, number in enumerate(repeats) if not ir.is_const_int(number, 1)]
    parts = [((one, size) if k in axes else (size,)) for k, size in enumerate(shape)]
    copies = [((repeats[k], size) if k in axes else (size,)) for k, size in enumerate(shape)]
    each = reshape(imp, x, tuple(size for part in parts for size in part))
    target = tuple(size for part in copies for size in part)
    return reshape(imp, imp.builder.op("broadcast_to", each, shape_value(target)), wanted)


@TABLE.overload("aten.transpose.int", "aten.t.default", "aten.swapaxes.default")
def _transpose(imp: Importer, node: Any, x: Any, a: int = 0, b: int = 1) -> Any:
    rank = len(dims_of(x))
    if rank < 2:  # PyTorch accepts 0 and -1 as axes of a number
        return x
    axes = list(range(rank))
    i, j = axis_of(a, rank), axis_of(b, rank)
    axes[i], axes[j] = axes[j], axes[i]
    return imp.builder.op("permute_dims", x, axes=tuple(axes))


@TABLE.overload("aten.numpy_T.default")
def _reverse_axes(imp: Importer, node: Any, x: Any) -> Any:
    axes = tuple(reversed(range(len(dims_of(x)))))
    return x if len(axes) < 2 else imp.builder.op("permute_dims", x, axes=axes)


@TABLE.row("permute_dims")
def _permute(imp: Importer, node: Any, x: Any, axes: list[int]) -> Any:
    return imp.builder.op("permute_dims", x, axes=tuple(axis_of(a, len(axes)) for a in axes))


def _from_front(imp: Importer, index: Any, size: ir.Expr) -> ir.Expr:
    """Normalize a possibly negative index to count from the front."""
    place = size_of(imp, index)
    if isinstance(place, ir.IntImm):
        return ir.add(size, place) if place.value < 0 else place
    zero = ir.const(0, "int64")
    if imp.builder.analyzer.prove(ir.compare(ir.GE, place, zero)):
        return place
    return ir.select(ir.compare(ir.LT, place, zero), ir.add(size, place), place)


def _start(imp: Importer, start: Any, size: ir.Expr) -> ir.Expr:
    """Start of a slice, clamped to the axis as in Python."""
    if start is None:
        return ir.const(0, "int64")
    place, zero = _from_front(imp, start, size), ir.const(0, "int64")
    analyzer = imp.builder.analyzer
    if not analyzer.prove(ir.compare(ir.GE, place, zero)):
        place = ir.maximum(place, zero)
    if not analyzer.prove(ir.compare(ir.LE, place, size)):
        place = ir.minimum(place, size)
    return analyzer.simplify(place)


@TABLE.row("slice")
def _slice(
    imp: Importer,
    node: Any,
    x: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Any:
    if not isinstance(step, int):
        raise ImporterError("slice with a symbolic step", code="BW507")
    axis = axis_of(dim, len(dims_of(x)))
    size = dims_of(x)[axis]
    length = node_shape(imp, node)[axis]
    begin = _start(imp, start, size)
    if depends_on_data(node.meta["val"].shape[axis]):  # the length has no value yet
        stop = size if end is None else _start(imp, end, size)
    else:
        stop = ir.add(begin, ir.mul(length, step))
    if step == 1 and imp.builder.analyzer.prove_equal(length, size):
        return x
    return imp.builder.op("slice", x, axis=axis, begin=begin, end=stop, step=step)


@TABLE.overload("aten.select.int")
def _select(imp: Importer, node: Any, x: Any, dim: int, index: Any) -> Any:
    axis = axis_of(dim, len(dims_of(x)))
    begin = _from_front(imp, index, dims_of(x)[axis])
    part = imp.builder.op("slice", x, axis=axis, begin=begin, end=ir.add(begin, 1), step=1)
    return reshape(imp, part, node_shape(imp, node))


@TABLE.overload(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
)
def _split(imp: Importer, node: Any, x: Any, parts: Any, dim: int = 0) -> list[Any]:
    """Split into adjacent parts whose sizes the exporter computed."""
    axis = axis_of(dim, len(dims_of(x)))
    begin: ir.Expr = ir.const(0, "int64")
    out: list[Any] = []
    for part in node.meta["val"]:
        end = ir.add(begin, imp.symbols.dim(part.shape[axis]))
        out.append(imp.builder.op("slice", x, axis=axis, begin=begin, end=end, step=1))
        begin = end
    return out


@TABLE.overload("aten.unbind.int")
def _unbind(imp: Importer, node: Any, x: Any, dim: int = 0) -> list[Any]:
    axis = axis_of(dim, len(dims_of(x)))
    out: list[Any] = []
    for index, part in enumerate(node.meta["val"]):
        one = imp.builder.op(
            "slice",
            x,
            axis=axis,
            begin=ir.const(index, "int64"),
            end=ir.const(index + 1, "int64"),
            step=1,
        )
        out.append(reshape(imp, one, tuple(imp.symbols.dim(s) for s in part.shape)))
    return out


@TABLE.row("concat")
def _cat(imp: Importer, node: Any, tensors: list[Any], dim: int = 0) -> Any:
    dtype, rank = result_type(node), len(node.meta["val"].shape)
    # PyTorch lets an empty vector join tensors of any rank; an empty cache is one.
    kept = [t for t in tensors if len(dims_of(t)) == rank and not _is_empty_vector(t)]
    if not kept:
        return cast_to(imp, tensors[0], dtype)
    joined = [cast_to(imp, t, dtype) for t in kept]
    return joined[0] if len(joined) == 1 else imp.builder.op("concat", *joined, axis=dim)


def _is_empty_vector(x: Any) -> bool:
    return len(dims_of(x)) == 1 and ir.is_const_int(dims_of(x)[0], 0)


@TABLE.overload("aten.select_scatter.default")
def _select_scatter(imp: Importer, node: Any, x: Any, part: Any, dim: int, index: int) -> Any:
    """Replace one index of an axis of `x` by `part`."""
    axis = axis_of(dim, len(dims_of(x)))
    shape = list(dims_of(part))
    shape.insert(axis, ir.const(1, "int64"))
    begin = _from_front(imp, index, dims_of(x)[axis])
    return _inserted(imp, x, reshape(imp, part, tuple(shape)), axis, begin)


@TABLE.overload("aten.slice_scatter.default")
def _slice_scatter(
    imp: Importer,
    node: Any,
    x: Any,
    part: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    """Replace a slice of `x` by `part`."""
    axis = axis_of(dim, len(dims_of(x)))
    begin = _start(imp, start, dims_of(x)[axis])
    if ir.is_const_int(dims_of(part)[axis], 0):
        return x
    if step == 1:
        return _inserted(imp, x, part, axis, begin)
    part = cast_to(imp, part, x.tensor_info.dtype)
    return imp.builder.op("slice_scatter", x, part, axis=axis, begin=begin, step=step)


def _inserted(imp: Importer, x: Any, part: Any, axis: int, begin: ir.Expr) -> Any:
    """Replace the elements of `x` from `begin` on along an axis by `part`."""
    end = imp.builder.analyzer.simplify(ir.add(begin, dims_of(part)[axis]))
    pieces = [cast_to(imp, part, x.tensor_info.dtype)]
    if not ir.is_const_int(begin, 0):
        pieces.insert(0, imp.builder.op("slice", x, axis=axis, begin=0, end=begin))
    if not imp.builder.analyzer.prove_equal(end, dims_of(x)[axis]):
        pieces.append(imp.builder.op("slice", x, axis=axis, begin=end))
    return pieces[0] if len(pieces) == 1 else imp.builder.op("concat", *pieces, axis=axis)


@TABLE.overload("aten.stack.default")
def _stack(imp: Importer, node: Any, tensors: list[Any], dim: int = 0) -> Any:
    tensors = [cast_to(imp, t, result_type(node)) for t in tensors]
    rank = len(dims_of(tensors[0])) + 1
    axis = axis_of(dim, rank)
    parts: list[Any] = []
    for value in tensors:
        shape = list(dims_of(value))
        shape.insert(axis, ir.const(1, "int64"))
        parts.append(reshape(imp, value, tuple(shape)))
    return imp.builder.op("concat", *parts, axis=axis)


@TABLE.row("repeat")
def _repeat_interleave(
    imp: Importer, node: Any, x: Any, repeats: Any, dim: int | None = None, **ignored: Any
) -> Any:
    """Repeat each element; without an axis, of the flattened tensor."""
    if dim is None or not dims_of(x):
        x, dim = imp.builder.op("reshape", x, shape=(-1,)), 0
    return imp.builder.op("repeat", x, repeats=repeats, axis=dim)


@TABLE.row("gather")
def _gather(
    imp: Importer, node: Any, x: Any, dim: int, index: Any, *, sparse_grad: bool = False
) -> Any:
    if any(ir.is_const_int(d, 0) for d in dims_of(index)):  # it may have any rank then
        return imp.builder.op("zeros", shape_value(dims_of(index)), dtype=x.tensor_info.dtype)
    if dims_of(x) and dims_of(index):
        return imp.builder.op("gather", x, index, axis=dim)
    result = imp.builder.op("gather", _vector(imp, x), _vector(imp, index), axis=0)
    return reshape(imp, result, node_shape(imp, node))


def _vector(imp: Importer, x: Any) -> Any:
    """Reshape a number to a vector of one element, as PyTorch treats it along an axis."""
    return x if dims_of(x) else reshape(imp, x, (ir.const(1, "int64"),))


@TABLE.row("take")
def _index_select(imp: Importer, node: Any, x: Any, dim: int, index: Any) -> Any:
    x_, index_ = _vector(imp, x), _vector(imp, index)
    result = imp.builder.op("take", x_, index_, axis=dim, from_end=False)
    return result if dims_of(x) else reshape(imp, result, node_shape(imp, node))


@TABLE.row("index")
def _index(imp: Importer, node: Any, x: Any, indices: list[Any]) -> Any:
    tensors = [k for k, index in enumerate(indices) if index is not None]
    # Behind a single mask, the axis of the selected elements is that of the mask.
    count = node.meta["val"].shape[tensors[0]] if len(tensors) == 1 else None
    indices = [place for index in indices for place in positions(imp, index, count)]
    given = [i for i in indices if i is not None]
    axes = tuple(axis for axis, index in enumerate(indices) if index is not None)
    if axes == tuple(range(axes[0], axes[-1] + 1)):
        return imp.builder.op("index", x, *given, axes=axes if axes[0] else None)
    # Indexed axes that are not adjacent come first in the result.
    others = [axis for axis in range(len(dims_of(x))) if axis not in axes]
    moved = imp.builder.op("permute_dims", x, axes=(*axes, *others))
    return imp.builder.op("index", moved, *given)


@TABLE.overload("aten.unfold.default")
def _unfold(imp: Importer, node: Any, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along an axis; the elements of a window are a new last axis."""
    rank = len(dims_of(x))
    if not rank:
        return reshape(imp, x, node_shape(imp, node))
    axis = axis_of(dim, rank)
    count = node_shape(imp, node)[axis]
    begins = imp.builder.op("arange", end=ir.mul(count, ir.const(step, "int64")), step=step)
    taps = imp.builder.op("arange", end=size)
    places = imp.builder.op("add", reshape(imp, begins, (count, ir.const(1, "int64"))), taps)
    taken = imp.builder.op("take", x, places, axis=axis)
    order = [a for a in range(rank + 1) if a != axis + 1]
    return imp.builder.op("permute_dims", taken, axes=(*order, axis + 1))


@TABLE.overload("aten.diagonal.default")
def _diagonal(
    imp: Importer, node: Any, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """The diagonal of two axes, as a new last axis."""
    rank = len(dims_of(x))
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    others = [a for a in range(rank) if a not in (first, second)]
    moved = imp.builder.op("permute_dims", x, axes=(first, second, *others))
    length = node_shape(imp, node)[-1]

    def places(begin: int) -> Any:
        end = ir.add(length, ir.const(begin, "int64"))
        return imp.builder.op("arange", begin=begin, end=end)

    taken = imp.builder.op("index", moved, places(max(0, -offset)), places(max(0, offset)))
    return imp.builder.op("permute_dims", taken, axes=(*range(1, rank - 1), 0))


@TABLE.overload("operator.getitem")
def _getitem(imp: Importer, node: Any, value: Any, index: Any) -> Any:
    return value[index]
