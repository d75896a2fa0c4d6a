"""One converter per PyTorch overload: `(importer, node, *args, **kwargs) -> value`.

Values are graph expressions for tensors, `ir.Expr` or Python numbers for sizes and scalars. An
operator row lists its overloads (`OpRow.torch`); most of these are converted from their schema by
`calls`. Converters that a row cannot describe are here and in the modules `convert_*`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.frontend.torch import (
    convert_arithmetic,
    convert_control,
    convert_gradients,
    convert_images,
    convert_layers,
    convert_random,
    convert_recurrent,
    convert_run_time_sizes,
    convert_selection,
    convert_shapes,
    convert_sizes,
    convert_thresholds,
)
from blockwright.frontend.torch.calls import apply, row_converter
from blockwright.frontend.torch.operands import (
    EVALUATION,
    Converter,
    Registry,
    axis_of,
    cast_to,
    dims_of,
    element_of,
    is_half,
    node_shape,
    norm,
    reshape,
    result_type,
    size_of,
)
from blockwright.frontend.torch.promotion import stored_number
from blockwright.graph import shape_value
from blockwright.ops.table import OPERATORS
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_FLOAT32 = ir.dtype_of("float32")

# Calls without a result that can be dropped: assertions that the annotations imply.
IGNORED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default",
    }
)


@TABLE.row("matmul")
def _matmul(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return imp.builder.op("matmul", a, b)


@TABLE.row("linear")
def _linear(imp: Importer, node: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    operands = (x, weight) if bias is None else (x, weight, bias)
    return imp.builder.op("linear", *operands)


@TABLE.overload("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def _addmm(
    imp: Importer, node: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """alpha · a · b + beta · bias; a beta of 0 drops the bias, even if it is NaN or infinite.

    For integers, fractions of alpha and beta are truncated, as in PyTorch.
    """
    dtype = result_type(node)
    if not dtype.is_float:
        beta, alpha = (stored_number(factor, dtype) for factor in (beta, alpha))

    def scaled(value: Any, factor: Any) -> Any:
        if not isinstance(factor, ir.Expr) and factor == 1:
            return value
        return imp.builder.op("multiply", value, scalar=factor, scalar_side="right")

    product = scaled(imp.builder.op("matmul", a, b), alpha)
    if not isinstance(beta, ir.Expr) and beta == 0:
        return product
    return imp.builder.op("add", product, scaled(bias, beta))


@TABLE.overload("aten._int_mm.default")
def _int_mm(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    """A product of int8 or uint8 matrices, summed in int32."""
    return imp.builder.op("matmul", a, b, out_dtype="int32")


@TABLE.row("attention")
def _attention(
    imp: Importer,
    node: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p:
        raise ImporterError(
            "attention with dropout is training only", code="BW507", help=EVALUATION
        )
    head = ir.const_int(dims_of(q)[-1])
    if scale is None:
        if head is None:
            raise ImporterError("attention with a symbolic head size needs scale=", code="BW507")
        scale = 1.0 / math.sqrt(head)
    q, k, v, mask = _four_axes(imp, q, k, v, mask)
    v = _as_long_as_keys(imp, k, v)
    q, k, v = _broadcast_batches(imp, q, k, v)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    out = imp.builder.op("attention", *operands, scale=float(scale), is_causal=bool(is_causal))
    return reshape(imp, out, node_shape(imp, node)) if len(node.meta["val"].shape) != 4 else out


def _four_axes(imp: Importer, q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
    """Reshape the operands to (batch, heads, length, size); several batch axes become one."""
    rank = max(4, *(len(dims_of(x)) for x in (q, k, v)))
    one = ir.const(1, "int64")

    def padded(x: Any) -> Any:
        shape = dims_of(x)
        return reshape(imp, x, (*[one] * (rank - len(shape)), *shape)) if len(shape) < rank else x

    q, k, v = padded(q), padded(k), padded(v)
    if rank == 4:
        return q, k, v, mask
    batches = tuple(
        next((n for n in sizes if not ir.is_const_int(n, 1)), one)
        for sizes in zip(*(dims_of(x)[: rank - 3] for x in (q, k, v)), strict=True)
    )

    def folded(x: Any) -> Any:
        x = imp.builder.op("broadcast_to", x, shape_value((*batches, *dims_of(x)[rank - 3 :])))
        return imp.builder.op("reshape", x, shape_value((-1, *dims_of(x)[rank - 3 :])))

    if mask is not None and len(dims_of(mask)) > 3:
        mask = folded(padded(mask))
    return folded(q), folded(k), folded(v), mask


def _broadcast_batches(imp: Importer, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Broadcast queries, keys and values to common batches and numbers of heads.

    Queries have the heads of the result, and keys as many heads as values.
    """

    def stretched(x: Any, axis: int, *others: Any) -> Any:
        shape = dims_of(x)
        wanted = (dims_of(other)[axis] for other in others)
        more = next((size for size in wanted if not ir.is_const_int(size, 1)), shape[axis])
        if more is shape[axis] or not ir.is_const_int(shape[axis], 1):
            return x
        shape = (*shape[:axis], more, *shape[axis + 1 :])
        return imp.builder.op("broadcast_to", x, shape_value(shape))

    q, k, v = stretched(q, 0, k, v), stretched(k, 0, q, v), stretched(v, 0, q, k)
    k, v = stretched(k, 1, v), stretched(v, 1, k)
    return stretched(q, 1, k), k, v


def _as_long_as_keys(imp: Importer, keys: Any, values: Any) -> Any:
    """Cast the values to the length of the keys: an export may use two symbols for it."""
    length, (*outer, own, size) = dims_of(keys)[2], dims_of(values)
    known = ir.const_int(length) is not None and ir.const_int(own) is not None
    if known or ir.structural_equal(length, own):
        return values
    pattern = msgspec.structs.replace(values.tensor_info, shape=(*outer, length, size))
    return imp.builder.match_cast(values, pattern, "values")


@TABLE.row("layer_norm")
def _layer_norm(
    imp: Importer,
    node: Any,
    x: Any,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    operands = tuple(t for t in (x, weight, bias) if t is not None)
    if weight is None and bias is not None:
        raise ImporterError("layer_norm with bias but no weight", code="BW507")
    axes = tuple(range(-len(shape), 0))
    return norm(imp, node, "layer_norm", operands, axes=axes, eps=float(eps))


@TABLE.row("softmax")
def _softmax(imp: Importer, node: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    if isinstance(dtype, ir.DType):
        x = cast_to(imp, x, dtype)
    return _along(imp, "softmax", x, dim)


@TABLE.row("log_softmax")
def _log_softmax(imp: Importer, node: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    if isinstance(dtype, ir.DType):
        x = cast_to(imp, x, dtype)
    return _along(imp, "log_softmax", x, dim)


@TABLE.overload("aten.logsumexp.default")
def _logsumexp(imp: Importer, node: Any, x: Any, dim: Any, keepdim: bool = False) -> Any:
    """log(sum(exp(x))), computed in float32 or wider; minus infinity over no elements.

    PyTorch's decomposition subtracts the maximum element, which must exist for `aten.amax`.
    """
    dtype, op = result_type(node), imp.builder.op
    x = cast_to(imp, x, _FLOAT32 if is_half(dtype) else dtype)
    rank = len(dims_of(x))
    dims = (dim,) if isinstance(dim, int) else dim
    axes = tuple(axis_of(a, rank) for a in dims) if dims and rank else tuple(range(rank))
    largest = op("max", x, axes=axes, keepdims=True)
    zero = element_of(imp, 0, x.tensor_info.dtype)
    shift = op("where", op("isinf", largest), zero, largest)
    powers = op("exp", op("subtract", x, shift))
    total = op("log", op("sum", powers, axes=axes, keepdims=keepdim))
    return cast_to(imp, op("add", total, reshape(imp, shift, dims_of(total))), dtype)


def _along(imp: Importer, name: str, x: Any, dim: int) -> Any:
    """Apply an operator along an axis; PyTorch treats a single number as an axis of one."""
    if dims_of(x):
        return imp.builder.op(name, x, axis=dim)
    one = reshape(imp, x, (ir.const(1, "int64"),))
    return reshape(imp, imp.builder.op(name, one, axis=0), ())


@TABLE.row("rms_norm")
def _rms_norm(
    imp: Importer, node: Any, x: Any, shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    if eps is None:
        # PyTorch computes half types in float32, with that type's eps.
        eps = float(np.finfo("float64" if x.tensor_info.dtype.bits == 64 else "float32").eps)
    operands = (x,) if weight is None else (x, weight)
    return norm(imp, node, "rms_norm", operands, axes=tuple(range(-len(shape), 0)), eps=float(eps))


@TABLE.row("embedding")
def _embedding(imp: Importer, node: Any, weight: Any, indices: Any, *ignored: Any) -> Any:
    return imp.builder.op("embedding", weight, indices)


@TABLE.overload(
    "aten.clone.default", "aten.contiguous.default", "aten.detach.default", "aten.alias.default",
    "aten.detach_.default", "aten.lift_fresh_copy.default", "prims.copy_strided.default",
)  # fmt: skip
def _identity(imp: Importer, node: Any, x: Any, *strides: Any, **ignored: Any) -> Any:
    return x


@TABLE.row("arange")
def _arange(imp: Importer, node: Any, *bounds: Any, step: Any = 1, **ignored: Any) -> Any:
    begin, end, step = (0, bounds[0], step) if len(bounds) == 1 else (*bounds, step)[:3]
    dtype = result_type(node)
    if dtype.is_int and any(isinstance(v, float) for v in (begin, end, step)):
        return _whole_arange(imp, node, begin, step, dtype)
    if dtype.is_float and any(isinstance(v, ir.Expr) for v in (begin, end, step)):
        return _symbolic_arange(imp, node, begin, step, dtype)
    return imp.builder.op("arange", begin=begin, end=end, step=step, dtype=dtype)


def _symbolic_arange(imp: Importer, node: Any, begin: Any, step: Any, dtype: ir.DType) -> Any:
    """Floats between symbolic sizes, made of integers: begin + k * step, rounded once."""
    (count,) = node_shape(imp, node)
    place = imp.builder.op("arange", begin=0, end=count, step=1, dtype="int64")
    value = cast_to(imp, place, ir.dtype_of("float64"))
    value = apply(imp, "add", apply(imp, "multiply", value, step), begin)
    return cast_to(imp, value, dtype)


def _whole_arange(imp: Importer, node: Any, begin: Any, step: Any, dtype: ir.DType) -> Any:
    """Integers from fractional bounds, which PyTorch truncates before stepping."""
    begin, step = (int(v) if isinstance(v, float) else v for v in (begin, step))
    (count,) = node_shape(imp, node)
    end = ir.add(size_of(imp, begin), ir.mul(count, size_of(imp, step)))
    return imp.builder.op("arange", begin=begin, end=end, step=step, dtype=dtype)


def _filled(value: float) -> Converter:
    def convert(imp: Importer, node: Any, *ignored: Any, **also: Any) -> Any:
        shape = shape_value(node_shape(imp, node))
        return imp.builder.op("full", shape, fill_value=value, dtype=result_type(node))

    return convert


@TABLE.row("full", "full_like")
@TABLE.overload("aten.new_full.default", "aten.fill.Scalar")
def _full(imp: Importer, node: Any, first: Any, *rest: Any, **ignored: Any) -> Any:
    value = rest[-1] if rest else first
    if not isinstance(value, (int, float, bool, ir.Expr)):
        raise ImporterError("full with a value that is not a number", code="BW507")
    shape, dtype = shape_value(node_shape(imp, node)), result_type(node)
    return imp.builder.op("full", shape, fill_value=stored_number(value, dtype), dtype=dtype)


@TABLE.overload("aten.fill.Tensor")
def _fill(imp: Importer, node: Any, x: Any, value: Any) -> Any:
    value = cast_to(imp, value, result_type(node))
    return imp.builder.op("broadcast_to", value, shape_value(node_shape(imp, node)))


@TABLE.overload("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def _scalar_tensor(imp: Importer, node: Any, value: Any, **ignored: Any) -> Any:
    return _full(imp, node, value)


TABLE.row("ones", "ones_like")(_filled(1.0))
TABLE.overload("aten.new_ones.default")(_filled(1.0))
TABLE.row("zeros", "zeros_like")(_filled(0.0))
TABLE.overload(
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)(_filled(0.0))


def _all_converters() -> dict[str, Converter]:
    """Overload → converter: from the overloads of each row, and from the tables of compositions."""
    families = (
        TABLE,
        convert_arithmetic.TABLE,
        convert_control.TABLE,
        convert_gradients.TABLE,
        convert_images.TABLE,
        convert_layers.TABLE,
        convert_random.TABLE,
        convert_recurrent.TABLE,
        convert_run_time_sizes.TABLE,
        convert_selection.TABLE,
        convert_shapes.TABLE,
        convert_sizes.TABLE,
        convert_thresholds.TABLE,
    )
    own = {name: fn for family in families for name, fn in family.rows.items()}
    result = {
        name: own.get(row.name) or row_converter(row)
        for row in OPERATORS.values()
        for name in row.torch
    }
    for row in OPERATORS.values():
        if row.torch_call.types in ("promoted", "float") or row.name == "where":
            for name in row.torch:  # decompositions may end in the primitive of the same name
                result.setdefault(f"prims.{name.split('.')[1]}.default", result[name])
    for family in families:
        result.update(family.overloads)
    return result


CONVERTERS = _all_converters()
