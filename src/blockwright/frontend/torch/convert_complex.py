"""Converters of operators on complex tensors, which are pairs of real numbers along a last axis.

    torch.view_as_real(x * y)       x: complex64 (n,) is R.Tensor((n, 2), "float32")
    → concat(xr * yr - xi * yi, xr * yi + xi * yr)

So are inputs and results of a model, which calls convert (`runtime.complex_pairs`). Operators
without a converter here are computed by PyTorch, if the model may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.fourier import (
    Complex,
    half_of,
    real_inverse,
    reciprocal,
    transformed,
)
from blockwright.frontend.torch.convert_shapes import tiled
from blockwright.frontend.torch.framework_calls import complex_part
from blockwright.frontend.torch.operands import (
    Registry,
    axis_of,
    cast_to,
    dims_of,
    is_tensor,
    size_of,
)
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_TWO, _I64 = ir.const(2, "int64"), ir.dtype_of("int64")


# ---------------------------------------------------------------------------------------- inputs
def input_info(imp: Importer, value: Any, changed: bool) -> ir.TensorInfo | None:
    """Annotation of an input of complex numbers as pairs; None for other inputs.

    Args: `changed` is whether the model writes into the input.
    """
    part = complex_part(value)
    if part is None:
        return None
    help = "pass torch.view_as_real(x), and call torch.view_as_complex in the model"
    if part == "float16":
        raise ImporterError(
            "complex numbers of half precision are not supported", code="BW504", help=help
        )
    if changed:
        raise ImporterError("the model changes complex numbers in place", code="BW504", help=help)
    shape = (*map(imp.symbols.dim, value.shape), _TWO)
    return ir.TensorInfo(shape, ir.dtype_of(part), len(shape))


def unsupported() -> ImporterError:
    """The error for an operator without a converter for complex tensors."""
    return ImporterError(
        "operators of complex tensors are not all supported",
        code="BW504",
        help="compute with real and imaginary parts, or let the framework compute it: "
        'options={"fallback": "framework"}',
    )


# ------------------------------------------------------------------------------------------ parts
def _parts(imp: Importer, x: Any) -> Complex:
    return Complex(*_pair(imp, x))


def _pair(imp: Importer, x: Any) -> tuple[Any, Any]:
    """Real and imaginary parts of pairs."""
    rank = len(dims_of(x))

    def part(which: int) -> Any:
        found = imp.builder.op("slice", x, axis=rank - 1, begin=which, end=which + 1, step=1)
        return imp.builder.op("squeeze", found, axis=rank - 1)

    return part(0), part(1)


def _joined(imp: Importer, x: Complex, node: Any) -> Any:
    """Pairs of the shape and type that the exporter states for a node."""
    stated = node.meta["val"]
    dtype = ir.dtype_of(str(complex_part(stated)))
    shape = tuple(map(imp.symbols.dim, stated.shape))
    imaginary = x.imaginary
    if imaginary is None:
        imaginary = imp.builder.op("zeros", shape=shape, dtype=dtype)
    parts = [_shaped(imp, cast_to(imp, p, dtype), shape) for p in (x.real, imaginary)]
    parts = [imp.builder.op("expand_dims", part, axis=len(shape)) for part in parts]
    return imp.builder.op("concat", *parts, axis=len(shape))


def _shaped(imp: Importer, x: Any, shape: Sequence[ir.Expr]) -> Any:
    own = dims_of(x)
    same = len(own) == len(shape) and all(map(imp.builder.analyzer.prove_equal, own, shape))
    return x if same else imp.builder.op("broadcast_to", x, shape_value(shape))


def _operand(imp: Importer, node: Any, place: int, value: Any) -> Complex:
    """The parts of an operand of a node, in the type of the parts of the result."""
    fake = node.args[place].meta["val"] if hasattr(node.args[place], "meta") else value
    if complex_part(fake):
        return _parts(imp, value)
    if isinstance(value, complex):
        parts: Any = (np.asarray(value.real), np.asarray(value.imag))
        return Complex(*parts)
    number: Any = value if is_tensor(value) else np.asarray(value)
    return Complex(number)


def _operands(imp: Importer, node: Any, *values: Any) -> list[Complex]:
    """Operands, with parts in the type of those of the result."""
    dtype = ir.dtype_of(complex_part(node.meta["val"]) or str(node.meta["val"].dtype)[6:])

    def typed(part: Any) -> Any:
        if part is None or is_tensor(part):
            return part if part is None else cast_to(imp, part, dtype)
        return np.asarray(part, dtype.numpy())

    found = [_operand(imp, node, place, value) for place, value in enumerate(values)]
    return [Complex(typed(x.real), typed(x.imaginary)) for x in found]


def _sum(imp: Importer, a: Any, b: Any, name: str = "add") -> Any:
    """The sum or difference of parts, of which one may be missing."""
    if b is None:
        return a
    if a is None:
        return imp.builder.op("negative", b) if name == "subtract" else b
    return imp.builder.op(name, a, b)


def _times(imp: Importer, a: Any, b: Any) -> Any:
    return None if a is None or b is None else imp.builder.op("multiply", a, b)


def _multiplied(
    imp: Importer, a: Complex, b: Complex, times: Callable[[Importer, Any, Any], Any] = _times
) -> Complex:
    real = _sum(imp, times(imp, a.real, b.real), times(imp, a.imaginary, b.imaginary), "subtract")
    cross = times(imp, a.real, b.imaginary), times(imp, a.imaginary, b.real)
    return Complex(real, _sum(imp, *cross))


# -------------------------------------------------------------------------------------- arithmetic
@TABLE.overload("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar")
def _add(imp: Importer, node: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    x, y = _operands(imp, node, a, b)
    if alpha != 1:
        factor: Any = np.asarray(alpha, _kind(x))
        y = _multiplied(imp, y, Complex(factor))
    name = "subtract" if ".sub." in str(node.target) else "add"
    return _joined(
        imp,
        Complex(_sum(imp, x.real, y.real, name), _sum(imp, x.imaginary, y.imaginary, name)),
        node,
    )


def _kind(x: Complex) -> Any:
    """The NumPy type of the parts."""
    part: Any = x.real
    return part.tensor_info.dtype.numpy() if is_tensor(part) else part.dtype


@TABLE.overload("aten.mul.Tensor", "aten.mul.Scalar")
def _multiply(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    x, y = _operands(imp, node, a, b)
    return _joined(imp, _multiplied(imp, x, y), node)


@TABLE.overload("aten.div.Tensor", "aten.div.Scalar")
def _divide(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    x, y = _operands(imp, node, a, b)
    op = imp.builder.op
    if y.imaginary is None:
        imaginary = None if x.imaginary is None else op("divide", x.imaginary, y.real)
        return _joined(imp, Complex(op("divide", x.real, y.real), imaginary), node)
    c, d = (_whole(imp, node, part) for part in (y.real, y.imaginary))
    re = _whole(imp, node, x.real)
    im = _whole(imp, node, np.zeros((), _kind(y)) if x.imaginary is None else x.imaginary)
    # Smith's method: the larger part of the divisor is divided by, so that no square overflows.
    larger = op("greater_equal", op("abs", c), op("abs", d))
    big, small = op("where", larger, c, d), op("where", larger, d, c)
    ratio = op("divide", small, big)
    below = op("add", big, op("multiply", small, ratio))
    first, second = op("where", larger, re, im), op("where", larger, im, re)
    real = op("divide", op("add", first, op("multiply", second, ratio)), below)
    turned = op("subtract", second, op("multiply", first, ratio))
    imaginary = op("divide", op("where", larger, turned, op("negative", turned)), below)
    return _joined(imp, Complex(real, imaginary), node)


def _whole(imp: Importer, node: Any, part: Any) -> Any:
    """A part in the shape of the result."""
    shape = tuple(map(imp.symbols.dim, node.meta["val"].shape))
    if not is_tensor(part):
        dtype = part.dtype.name
        return imp.builder.op("full", shape_value(shape), fill_value=part.item(), dtype=dtype)
    return _shaped(imp, part, shape)


@TABLE.overload("aten.neg.default")
def _negative(imp: Importer, node: Any, x: Any) -> Any:
    return imp.builder.op("negative", x)


@TABLE.overload("aten._conj.default", "aten.conj.default", "aten.conj_physical.default",
                "aten._conj_physical.default")  # fmt: skip
def _conjugate(imp: Importer, node: Any, x: Any) -> Any:
    signs: Any = np.array([1, -1], x.tensor_info.dtype.numpy())
    return imp.builder.op("multiply", x, signs)


@TABLE.overload("aten.resolve_conj.default", "aten.resolve_neg.default", "aten.clone.default",
                "aten.contiguous.default", "aten.alias.default", "aten.detach.default",
                "aten.view_as_real.default", "aten.view_as_complex.default",
                "aten.lift_fresh_copy.default")  # fmt: skip
def _same(imp: Importer, node: Any, x: Any, **ignored: Any) -> Any:
    return x


@TABLE.overload("aten.real.default", "aten.imag.default")
def _part(imp: Importer, node: Any, x: Any) -> Any:
    if not complex_part(node.args[0].meta["val"]):
        return x
    parts = _parts(imp, x)
    return parts.imaginary if "imag" in str(node.target) else parts.real


@TABLE.overload("aten.abs.default")
def _absolute(imp: Importer, node: Any, x: Any) -> Any:
    real, imaginary = _pair(imp, x)
    return imp.builder.op("hypot", real, imaginary)


@TABLE.overload("aten.angle.default")
def _angle(imp: Importer, node: Any, x: Any) -> Any:
    real, imaginary = _pair(imp, x)
    return imp.builder.op("atan2", imaginary, real)


@TABLE.overload("aten.complex.default")
def _from_parts(imp: Importer, node: Any, real: Any, imaginary: Any) -> Any:
    return _joined(imp, Complex(real, imaginary), node)


@TABLE.overload("aten.polar.default")
def _polar(imp: Importer, node: Any, length: Any, angle: Any) -> Any:
    op = imp.builder.op
    parts = (op("multiply", length, op(wave, angle)) for wave in ("cos", "sin"))
    return _joined(imp, Complex(*parts), node)


@TABLE.overload("aten.exp.default")
def _exponential(imp: Importer, node: Any, x: Any) -> Any:
    op, (real, imaginary) = imp.builder.op, _pair(imp, x)
    length = op("exp", real)
    waves = (op("multiply", length, op(wave, imaginary)) for wave in ("cos", "sin"))
    return _joined(imp, Complex(*waves), node)


@TABLE.overload("aten.pow.Tensor_Scalar")
def _power(imp: Importer, node: Any, x: Any, exponent: Any) -> Any:
    if exponent != 2:
        raise ImporterError(
            f"a complex tensor to the power {exponent}", code="BW507", help="only 2 is supported"
        )
    parts = _parts(imp, x)
    return _joined(imp, _multiplied(imp, parts, parts), node)


@TABLE.overload("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def _matmul(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    def times(imp: Importer, x: Any, y: Any) -> Any:
        return None if x is None or y is None else imp.builder.op("matmul", x, y)

    x, y = _operands(imp, node, a, b)
    return _joined(imp, _multiplied(imp, x, y, times), node)


@TABLE.overload("aten.sum.dim_IntList", "aten.mean.dim", "aten.sum.default", "aten.mean.default")
def _reduced(
    imp: Importer, node: Any, x: Any, dim: Any = None, keepdim: bool = False, **ignored: Any
) -> Any:
    rank = len(dims_of(x)) - 1
    given = (dim,) if isinstance(dim, int) else dim
    axes = tuple(axis_of(a, rank) for a in given) if given else tuple(range(rank))
    name = "mean" if ".mean." in str(node.target) else "sum"
    return imp.builder.op(name, x, axes=axes, keepdims=keepdim) if axes else x


@TABLE.overload("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout")
def _converted(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    wanted, given = complex_part(node.meta["val"]), complex_part(node.args[0].meta["val"])
    if not wanted:  # PyTorch drops the imaginary part, with a warning
        return cast_to(imp, _parts(imp, x).real, ir.dtype_of(str(node.meta["val"].dtype)[6:]))
    if given:
        return cast_to(imp, x, ir.dtype_of(wanted))
    return _joined(imp, Complex(x), node)


@TABLE.overload("aten.sym_size.int")
def _size(imp: Importer, node: Any, x: Any, dim: int) -> Any:
    return imp.symbols.dim(node.meta["val"])


# ---------------------------------------------------------------------------------------- movement
def _shape_of(imp: Importer, node: Any) -> ir.ShapeExpr:
    return shape_value((*map(imp.symbols.dim, node.meta["val"].shape), _TWO))


@TABLE.overload("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
                "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default",
                "aten.unsqueeze.default", "aten.flatten.using_ints",
                "aten.unflatten.int")  # fmt: skip
def _reshaped(imp: Importer, node: Any, x: Any, *ignored: Any) -> Any:
    return imp.builder.op("reshape", x, _shape_of(imp, node))


@TABLE.overload("aten.expand.default")
def _expanded(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    return imp.builder.op("broadcast_to", x, _shape_of(imp, node))


@TABLE.overload("aten.repeat.default")
def _repeated(imp: Importer, node: Any, x: Any, repeats: Sequence[Any]) -> Any:
    numbers = [*(size_of(imp, number) for number in repeats), ir.const(1, "int64")]
    return tiled(imp, x, numbers, _shape_of(imp, node).values)


@TABLE.overload("aten.permute.default")
def _permuted(imp: Importer, node: Any, x: Any, dims: Sequence[int]) -> Any:
    rank = len(dims_of(x)) - 1
    axes = tuple(axis_of(d, rank) for d in dims)
    return imp.builder.op("permute_dims", x, axes=(*axes, rank))


@TABLE.overload("aten.transpose.int")
def _transposed(imp: Importer, node: Any, x: Any, first: int, second: int) -> Any:
    rank = len(dims_of(x)) - 1
    axes, (a, b) = list(range(rank + 1)), (axis_of(first, rank), axis_of(second, rank))
    axes[a], axes[b] = axes[b], axes[a]
    return imp.builder.op("permute_dims", x, axes=tuple(axes))


@TABLE.overload("aten.cat.default", "aten.stack.default")
def _concatenated(imp: Importer, node: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    rank = len(node.meta["val"].shape)
    axis, op = axis_of(dim, rank), imp.builder.op
    if ".stack." in str(node.target):
        tensors = [op("expand_dims", tensor, axis=axis) for tensor in tensors]
    return op("concat", *tensors, axis=axis)


@TABLE.overload("aten.slice.Tensor", "aten.select.int", "aten.index_select.default")
def _sliced(imp: Importer, node: Any, x: Any, dim: int = 0, *where: Any) -> Any:
    """The converter of real tensors, for the pairs as real numbers."""
    import torch

    from blockwright.frontend.torch.converters import CONVERTERS

    axis = axis_of(dim, len(dims_of(x)) - 1)
    return CONVERTERS[str(node.target)](
        imp, _Stated(torch.view_as_real(node.meta["val"].resolve_conj())), x, axis, *where
    )


@TABLE.overload("aten.constant_pad_nd.default", "aten.pad.default")
def _padded(
    imp: Importer, node: Any, x: Any, pad: Sequence[Any], *how: Any, value: Any = None
) -> Any:
    """The converter of real tensors; the pairs, which are the last axis, stay as they are."""
    import torch

    from blockwright.frontend.torch.converters import CONVERTERS

    stated = _Stated(torch.view_as_real(node.meta["val"].resolve_conj()))
    more = {} if value is None else {"value": value}
    return CONVERTERS[str(node.target)](imp, stated, x, [0, 0, *pad], *how, **more)


class _Stated:
    """A node of which only the exporter's value is known."""

    def __init__(self, value: Any) -> None:
        self.meta = {"val": value}
        self.users: dict[Any, Any] = {}


# -------------------------------------------------------------------------------------- transforms
def _factor(imp: Importer, counts: Sequence[Any], normalization: int) -> Any:
    """Division by the number of elements (2), by its square root (1), or none at all (0)."""
    if normalization == 0:
        return 1.0
    total: Any = 1
    for count in counts:
        total = ir.mul(ir.as_expr(total, _I64), ir.as_expr(count, _I64))
    return reciprocal(imp.builder.op, total, root=normalization == 1)


@TABLE.overload("aten._fft_r2c.default")
def _from_real(
    imp: Importer, node: Any, x: Any, dim: Sequence[int], normalization: int, onesided: bool
) -> Any:
    """Only the last of the axes is onesided."""
    rank = len(dims_of(x))
    axes = [axis_of(d, rank) for d in dim]
    counts = [dims_of(x)[axis] for axis in axes]
    op, factor = imp.builder.op, _factor(imp, counts, normalization)
    *others, (axis, count) = zip(axes, counts, strict=True)
    rows = half_of(count) if onesided else count
    value = transformed(op, Complex(x), axis, count, rows, factor=factor)
    for axis, count in others:
        value = transformed(op, value, axis, count)
    return _joined(imp, value, node)


@TABLE.overload("aten._fft_c2c.default")
def _from_complex(
    imp: Importer, node: Any, x: Any, dim: Sequence[int], normalization: int, forward: bool
) -> Any:
    rank = len(dims_of(x)) - 1
    axes = [axis_of(d, rank) for d in dim]
    counts = [dims_of(x)[axis] for axis in axes]
    value, factor = _parts(imp, x), _factor(imp, counts, normalization)
    for axis, count in zip(axes, counts, strict=True):
        value = transformed(imp.builder.op, value, axis, count, None, not forward, factor)
        factor = 1.0
    return _joined(imp, value, node)


@TABLE.overload("aten._fft_c2r.default")
def _to_real(
    imp: Importer, node: Any, x: Any, dim: Sequence[int], normalization: int, last: Any
) -> Any:
    rank = len(dims_of(x)) - 1
    *axes, axis = [axis_of(d, rank) for d in dim]
    counts = [dims_of(x)[other] for other in axes]
    value = _parts(imp, x)
    for other, count in zip(axes, counts, strict=True):
        value = transformed(imp.builder.op, value, other, count, inverse=True)
    factor = _factor(imp, [*counts, last], normalization)
    return real_inverse(imp.builder.op, value, axis, last, factor)
