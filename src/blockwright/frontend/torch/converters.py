"""One converter per overload: `(importer, node, *args, **kwargs) -> value`.

Values are graph expressions for tensors, `ir.Expr` or Python numbers for sizes and scalars.
Overloads that are one operator row with the same operands are listed in tables at the end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

CONVERTERS: dict[str, Callable[..., Any]] = {}

# Calls without a result that matter: assertions about metadata the annotations already state.
IGNORED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default",
        "aten._assert_scalar.default",
    }
)


def converter(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a converter for overloads."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            CONVERTERS[name] = fn
        return fn

    return register


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ir.GraphExpr)


def _dims(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


def _axis(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def _result_type(node: Any) -> ir.DType:
    from blockwright.frontend.torch.importer import torch_dtype

    return torch_dtype(node.meta["val"].dtype)


def _to(imp: Importer, value: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """Cast unless the type is right already."""
    return value if value.tensor_info.dtype is dtype else imp.builder.op("astype", value, dtype=dtype)


def _sizes(imp: Importer, sizes: Any) -> list[Any]:
    """Sizes as expressions; -1 stays a Python -1."""
    out: list[Any] = []
    for size in sizes:
        negative = isinstance(size, int) and size < 0
        out.append(size if negative or isinstance(size, ir.Expr) else imp.symbols.dim(size))
    return out


def _node_shape(imp: Importer, node: Any) -> tuple[ir.Expr, ...]:
    """The result's shape as the exporter knows it (-1 and broadcasts resolved)."""
    return tuple(imp.symbols.dim(s) for s in node.meta["val"].shape)


def _reshape(imp: Importer, value: ir.GraphExpr, shape: tuple[ir.Expr, ...]) -> ir.GraphExpr:
    return imp.builder.op("reshape", value, shape_value(shape))


def _promoted(node: Any, *operands: Any) -> ir.DType:
    """Type in which PyTorch computes a binary operation on these operands."""
    import torch

    values = [a.meta["val"] if type(a).__name__ == "Node" else a for a in operands]
    result = values[0]
    dtype = torch.result_type(result, values[1]) if len(values) > 1 else result.dtype
    from blockwright.frontend.torch.importer import torch_dtype

    return torch_dtype(dtype)


def _binary(imp: Importer, node: Any, op: str, a: Any, b: Any, compute: Any = None) -> Any:
    """Apply a binary row in the promoted type; Python scalars stay scalars."""
    if not _is_tensor(a) and not _is_tensor(b):
        raise ImporterError(f"{op} of two scalars", code="BW506")
    dtype = compute or _promoted(node, *node.args[:2])
    if _is_tensor(a) and _is_tensor(b):
        return imp.builder.op(op, _to(imp, a, dtype), _to(imp, b, dtype))
    tensor, scalar, side = (a, b, "right") if _is_tensor(a) else (b, a, "left")
    if isinstance(scalar, ir.Expr):
        raise ImporterError(f"{op} of a tensor and a size is not supported", code="BW507")
    return imp.builder.op(op, _to(imp, tensor, dtype), scalar=scalar, scalar_side=side)


def _arithmetic(op: str) -> Callable[..., Any]:
    def convert(imp: Importer, node: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
        if alpha != 1:
            b = b * alpha if not _is_tensor(b) else imp.builder.op(
                "multiply", b, scalar=alpha, scalar_side="right")  # fmt: skip
        return _binary(imp, node, op, a, b)

    return convert


@converter("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    if alpha != 1:
        raise ImporterError("rsub with alpha is not supported", code="BW507")
    if _is_tensor(b):
        return _binary(imp, node, "subtract", b, a)
    return imp.builder.op("subtract", a, scalar=b, scalar_side="left")


@converter("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _div(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _binary(imp, node, "divide", a, b, _result_type(node))


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(imp: Importer, node: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _div(imp, node, a, b)
    if rounding_mode == "floor":
        return _binary(imp, node, "floor_divide", a, b)
    raise ImporterError(f"division with rounding_mode={rounding_mode!r}", code="BW507")


def _comparison(op: str) -> Callable[..., Any]:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        return _binary(imp, node, op, a, b)

    return convert


@converter("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    if _is_tensor(a) and b == 2:
        return imp.builder.op("multiply", a, a)
    if _is_tensor(a) and b == 0.5:
        return imp.builder.op("sqrt", a)
    return _binary(imp, node, "power", a, b)


@converter("aten.__and__.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default")
def _and(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _logical(imp, "logical_and", "bitwise_and", node, a, b)


@converter("aten.__or__.Tensor", "aten.bitwise_or.Tensor", "aten.logical_or.default")
def _or(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _logical(imp, "logical_or", "bitwise_or", node, a, b)


def _logical(imp: Importer, logical: str, bitwise: str, node: Any, a: Any, b: Any) -> Any:
    if a.tensor_info.dtype.is_bool and b.tensor_info.dtype.is_bool:
        return imp.builder.op(logical, a, b)
    if "logical" in str(node.target):
        raise ImporterError("logical operations on numbers are not supported", code="BW507")
    return _binary(imp, node, bitwise, a, b)


@converter("aten.linear.default")
def _linear(imp: Importer, node: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    operands = (x, weight) if bias is None else (x, weight, bias)
    return imp.builder.op("linear", *operands)


@converter("aten.addmm.default")
def _addmm(imp: Importer, node: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta != 1 or alpha != 1:
        raise ImporterError("addmm with alpha or beta is not supported", code="BW507")
    return imp.builder.op("add", imp.builder.op("matmul", a, b), bias)


@converter("aten.scaled_dot_product_attention.default")
def _attention(
    imp: Importer, node: Any, q: Any, k: Any, v: Any, mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise ImporterError("attention with dropout is training only", code="BW507",
                            help="call model.eval() before export")  # fmt: skip
    head = ir.const_int(_dims(q)[-1])
    if scale is None:
        if head is None:
            raise ImporterError("attention with a symbolic head size needs scale=", code="BW507")
        scale = 1.0 / math.sqrt(head)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return imp.builder.op("attention", *operands, scale=float(scale), is_causal=bool(is_causal))


@converter("aten.layer_norm.default")
def _layer_norm(
    imp: Importer, node: Any, x: Any, shape: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    operands = tuple(t for t in (x, weight, bias) if t is not None)
    if weight is None and bias is not None:
        raise ImporterError("layer_norm with bias but no weight", code="BW507")
    axes = tuple(range(-len(shape), 0))
    return imp.builder.op("layer_norm", *operands, axes=axes, eps=float(eps))


@converter("aten.gelu.default")
def _gelu(imp: Importer, node: Any, x: Any, *, approximate: str = "none") -> Any:
    return imp.builder.op("gelu", x, approximate=approximate)


@converter("aten.softmax.int", "aten._softmax.default")
def _softmax(imp: Importer, node: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    if isinstance(dtype, ir.DType):
        x = _to(imp, x, dtype)
    return imp.builder.op("softmax", x, axis=dim)


@converter("aten.log_softmax.int", "aten._log_softmax.default")
def _log_softmax(imp: Importer, node: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    if isinstance(dtype, ir.DType):
        x = _to(imp, x, dtype)
    return imp.builder.op("log_softmax", x, axis=dim)


@converter("aten.embedding.default")
def _embedding(imp: Importer, node: Any, weight: Any, indices: Any, *ignored: Any) -> Any:
    return imp.builder.op("embedding", weight, indices)


@converter("aten.gather.default")
def _gather(imp: Importer, node: Any, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    return imp.builder.op("gather", x, index, axis=dim)


@converter("aten.index_select.default")
def _index_select(imp: Importer, node: Any, x: Any, dim: int, index: Any) -> Any:
    return imp.builder.op("take", x, index, axis=dim)


@converter("aten.index.Tensor")
def _index(imp: Importer, node: Any, x: Any, indices: list[Any]) -> Any:
    given = [i for i in indices if i is not None]
    if any(i is None for i in indices[: len(given)]):
        raise ImporterError("index with None before a tensor is not supported", code="BW507")
    if any(i.tensor_info.dtype.is_bool for i in given):
        raise ImporterError("boolean mask indexing has a data-dependent shape", code="BW508")
    return imp.builder.op("index", x, *given)


@converter("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(imp: Importer, node: Any, condition: Any, a: Any, b: Any) -> Any:
    dtype = _result_type(node)
    operands = [_to(imp, v, dtype) if _is_tensor(v) else _scalar(imp, v, dtype) for v in (a, b)]
    return imp.builder.op("where", condition, *operands)


def _scalar(imp: Importer, value: Any, dtype: ir.DType) -> Any:
    import numpy as np

    return np.asarray(value, dtype.numpy())


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, node: Any, x: Any, mask: Any, value: Any) -> Any:
    dtype = x.tensor_info.dtype
    fill = _to(imp, value, dtype) if _is_tensor(value) else _scalar(imp, value, dtype)
    return imp.builder.op("where", mask, fill, x)


@converter("aten.dropout.default", "aten.native_dropout.default")
def _dropout(imp: Importer, node: Any, x: Any, p: float, train: bool = False) -> Any:
    if train and p:
        raise ImporterError("dropout in training mode", code="BW507",
                            help="call model.eval() before export")  # fmt: skip
    return x


@converter(
    "aten.clone.default", "aten.contiguous.default", "aten.detach.default", "aten.alias.default",
    "aten.detach_.default", "aten.lift_fresh_copy.default",
)  # fmt: skip
def _identity(imp: Importer, node: Any, x: Any, **ignored: Any) -> Any:
    return x


@converter("aten.to.dtype", "aten.to.device", "aten.to.dtype_layout", "aten._to_copy.default",
           "aten.type_as.default", "aten.to.other")  # fmt: skip
def _cast(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    return _to(imp, x, _result_type(node))


@converter("aten.reshape.default", "aten.view.default", "aten.flatten.using_ints",
           "aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim",
           "aten.squeeze.default", "aten.squeeze.dims", "aten.unflatten.int")  # fmt: skip
def _view(imp: Importer, node: Any, x: Any, *ignored: Any) -> Any:
    return _reshape(imp, x, _node_shape(imp, node))


@converter("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def _expand(imp: Importer, node: Any, x: Any, *ignored: Any, **also: Any) -> Any:
    wanted = _node_shape(imp, node)
    now = _dims(x)
    same = len(wanted) == len(now) and all(
        imp.builder.analyzer.prove_equal(a, b) for a, b in zip(wanted, now, strict=True)
    )
    return x if same else imp.builder.op("broadcast_to", x, shape_value(wanted))


@converter("aten.transpose.int", "aten.t.default", "aten.swapaxes.default")
def _transpose(imp: Importer, node: Any, x: Any, a: int = 0, b: int = 1) -> Any:
    rank = len(_dims(x))
    axes = list(range(rank))
    i, j = _axis(a, rank), _axis(b, rank)
    axes[i], axes[j] = axes[j], axes[i]
    return x if rank < 2 else imp.builder.op("permute_dims", x, axes=tuple(axes))


@converter("aten.permute.default")
def _permute(imp: Importer, node: Any, x: Any, axes: list[int]) -> Any:
    return imp.builder.op("permute_dims", x, axes=tuple(_axis(a, len(axes)) for a in axes))


@converter("aten.slice.Tensor")
def _slice(
    imp: Importer, node: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    if not isinstance(step, int):
        raise ImporterError("slice with a symbolic step", code="BW507")
    size = _dims(x)[_axis(dim, len(_dims(x)))]
    length = _node_shape(imp, node)[_axis(dim, len(_dims(x)))]
    begin = ir.const(0, "int64") if start is None else _size(imp, start)
    if isinstance(begin, ir.IntImm) and begin.value < 0:
        begin = ir.add(size, begin)
    stop = ir.add(begin, ir.mul(length, step))
    if step == 1 and imp.builder.analyzer.prove_equal(length, size):
        return x
    return imp.builder.op("slice", x, axis=_axis(dim, len(_dims(x))), begin=begin, end=stop, step=step)


def _size(imp: Importer, value: Any) -> ir.Expr:
    return value if isinstance(value, ir.Expr) else imp.symbols.dim(value)


@converter("aten.select.int")
def _select(imp: Importer, node: Any, x: Any, dim: int, index: Any) -> Any:
    axis = _axis(dim, len(_dims(x)))
    begin = _size(imp, index)
    if isinstance(begin, ir.IntImm) and begin.value < 0:
        begin = ir.add(_dims(x)[axis], begin)
    part = imp.builder.op("slice", x, axis=axis, begin=begin, end=ir.add(begin, 1), step=1)
    return _reshape(imp, part, _node_shape(imp, node))


@converter("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default",
           "aten.chunk.default", "aten.tensor_split.sections")  # fmt: skip
def _split(imp: Importer, node: Any, x: Any, parts: Any, dim: int = 0) -> list[Any]:
    """The exporter knows the sizes of the parts; they follow one another."""
    axis = _axis(dim, len(_dims(x)))
    begin: ir.Expr = ir.const(0, "int64")
    out: list[Any] = []
    for part in node.meta["val"]:
        end = ir.add(begin, imp.symbols.dim(part.shape[axis]))
        out.append(imp.builder.op("slice", x, axis=axis, begin=begin, end=end, step=1))
        begin = end
    return out


@converter("aten.unbind.int")
def _unbind(imp: Importer, node: Any, x: Any, dim: int = 0) -> list[Any]:
    axis = _axis(dim, len(_dims(x)))
    out: list[Any] = []
    for index, part in enumerate(node.meta["val"]):
        one = imp.builder.op("slice", x, axis=axis, begin=ir.const(index, "int64"),
                             end=ir.const(index + 1, "int64"), step=1)  # fmt: skip
        out.append(_reshape(imp, one, tuple(imp.symbols.dim(s) for s in part.shape)))
    return out


@converter("aten.cat.default", "aten.concat.default")
def _cat(imp: Importer, node: Any, tensors: list[Any], dim: int = 0) -> Any:
    dtype = _result_type(node)
    return imp.builder.op("concat", *(_to(imp, t, dtype) for t in tensors), axis=dim)


@converter("aten.stack.default")
def _stack(imp: Importer, node: Any, tensors: list[Any], dim: int = 0) -> Any:
    rank = len(_dims(tensors[0])) + 1
    axis = _axis(dim, rank)
    parts: list[Any] = []
    for value in tensors:
        shape = list(_dims(value))
        shape.insert(axis, ir.const(1, "int64"))
        parts.append(_reshape(imp, value, tuple(shape)))
    return imp.builder.op("concat", *parts, axis=axis)


@converter("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(imp: Importer, node: Any, *bounds: Any, **ignored: Any) -> Any:
    begin, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if not isinstance(step, int):
        raise ImporterError("arange with a step that is not an int", code="BW507")
    return imp.builder.op("arange", begin=_size(imp, begin), end=_size(imp, end), step=step,
                          dtype=_result_type(node))  # fmt: skip


def _filled(value: float) -> Callable[..., Any]:
    def convert(imp: Importer, node: Any, *ignored: Any, **also: Any) -> Any:
        shape = shape_value(_node_shape(imp, node))
        return imp.builder.op("full", shape, fill_value=value, dtype=_result_type(node))

    return convert


@converter("aten.full.default", "aten.new_full.default", "aten.full_like.default")
def _full(imp: Importer, node: Any, first: Any, *rest: Any, **ignored: Any) -> Any:
    value = rest[-1] if rest else first
    if not isinstance(value, (int, float, bool)):
        raise ImporterError("full with a value that is not a number", code="BW507")
    shape = shape_value(_node_shape(imp, node))
    return imp.builder.op("full", shape, fill_value=value, dtype=_result_type(node))


@converter("aten.scalar_tensor.default")
def _scalar_tensor(imp: Importer, node: Any, value: Any, **ignored: Any) -> Any:
    return _full(imp, node, value)


def _reduction(op: str, cast: bool = True) -> Callable[..., Any]:
    def convert(
        imp: Importer, node: Any, x: Any, dim: Any = None, keepdim: bool = False, *,
        dtype: Any = None,
    ) -> Any:  # fmt: skip
        axes = None if dim is None or dim == [] else tuple(dim if isinstance(dim, list) else [dim])
        if cast:
            x = _to(imp, x, _result_type(node))
        return imp.builder.op(op, x, axes=axes, keepdims=bool(keepdim))

    return convert


@converter("aten.linalg_vector_norm.default")
def _vector_norm(
    imp: Importer, node: Any, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    axes = None if dim is None else tuple(dim if isinstance(dim, list) else [dim])
    return imp.builder.op("vector_norm", x, ord=float(ord), axes=axes, keepdims=bool(keepdim))


@converter("aten.clamp.default", "aten.clip.default")
def _clamp(imp: Importer, node: Any, x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    return imp.builder.op("clip", _to(imp, x, _result_type(node)), min=low, max=high)


@converter("aten.clamp_min.default")
def _clamp_min(imp: Importer, node: Any, x: Any, low: Any) -> Any:
    return _clamp(imp, node, x, low, None)


@converter("aten.clamp_max.default")
def _clamp_max(imp: Importer, node: Any, x: Any, high: Any) -> Any:
    return _clamp(imp, node, x, None, high)


@converter("aten.hardtanh.default")
def _hardtanh(imp: Importer, node: Any, x: Any, low: Any = -1.0, high: Any = 1.0) -> Any:
    return _clamp(imp, node, x, low, high)


@converter("aten.sym_size.int")
def _sym_size(imp: Importer, node: Any, x: Any, dim: int) -> Any:
    return _dims(x)[_axis(dim, len(_dims(x)))]


def _size_arithmetic(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if isinstance(a, ir.Expr) or isinstance(b, ir.Expr):
            return fn(_size(imp, a), _size(imp, b))
        return fn(a, b)

    return convert


def _unary(op: str) -> Callable[..., Any]:
    def convert(imp: Importer, node: Any, x: Any) -> Any:
        return imp.builder.op(op, _to(imp, x, _result_type(node)))

    return convert


def _tables() -> None:
    """Overloads that are one row each."""
    unary = (
        "exp log sqrt rsqrt sigmoid tanh erf abs floor ceil round sin cos relu silu neg log1p "
        "expm1 exp2 log2 tan atan sinh cosh reciprocal sign"
    )
    rename = {"neg": "negative"}
    for name in unary.split():
        CONVERTERS[f"aten.{name}.default"] = _unary(rename.get(name, name))
        CONVERTERS[f"aten.{name}_.default"] = _unary(rename.get(name, name))
    arithmetic = {"add": "add", "sub": "subtract", "mul": "multiply", "maximum": "maximum",
                  "minimum": "minimum", "floor_divide": "floor_divide",
                  "remainder": "remainder"}  # fmt: skip
    for name, op in arithmetic.items():
        for overload in ("Tensor", "Scalar", "default"):
            CONVERTERS[f"aten.{name}.{overload}"] = _arithmetic(op)
            CONVERTERS[f"aten.{name}_.{overload}"] = _arithmetic(op)
    comparisons = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                   "gt": "greater", "ge": "greater_equal"}  # fmt: skip
    for name, op in comparisons.items():
        for overload in ("Tensor", "Scalar"):
            CONVERTERS[f"aten.{name}.{overload}"] = _comparison(op)
    reductions = {"sum.dim_IntList": "sum", "sum.default": "sum", "mean.dim": "mean",
                  "mean.default": "mean", "amax.default": "max", "amin.default": "min"}  # fmt: skip
    for name, op in reductions.items():
        CONVERTERS[f"aten.{name}"] = _reduction(op)
    for name in ("any.dim", "any.default", "all.dim", "all.default"):
        CONVERTERS[f"aten.{name}"] = _reduction(name.split(".")[0], cast=False)
    for name in ("matmul", "mm", "bmm"):
        CONVERTERS[f"aten.{name}.default"] = lambda imp, node, a, b: imp.builder.op("matmul", a, b)
    for name in ("ones", "new_ones", "ones_like"):
        CONVERTERS[f"aten.{name}.default"] = _filled(1.0)
    for name in ("zeros", "new_zeros", "zeros_like", "empty", "empty_like"):
        CONVERTERS[f"aten.{name}.default"] = _filled(0.0)
    CONVERTERS["aten.logical_not.default"] = _unary("logical_not")
    CONVERTERS["aten.bitwise_not.default"] = _unary("logical_not")
    sizes = {"add": operator.add, "sub": operator.sub, "mul": operator.mul,
             "floordiv": operator.floordiv, "mod": operator.mod}  # fmt: skip
    for name, fn in sizes.items():
        CONVERTERS[f"operator.{name}"] = _size_arithmetic(fn)
    CONVERTERS["operator.getitem"] = lambda imp, node, value, index: value[index]


_tables()
