"""Shared by converters: registration, and access to operands, types and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.float8 import saturated
from blockwright.frontend.torch.promotion import stored_number
from blockwright.graph import constant, shape_value
from blockwright.support import ImporterError, IRError

EVALUATION = (
    "models are compiled in evaluation mode: pass training=self.training, and call model.eval() "
    "before exporting"
)

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

Converter = Callable[..., Any]
"""`(importer, node, *args, **kwargs) -> value`, with the arguments of the overload."""


class Registry:
    """Converters of one family of operators.

    Attributes:
        overloads: converters of overloads without an operator row, such as compositions of rows.
        rows: row → converter of its overloads, if `OpRow.torch_call` cannot describe the call.
    """

    def __init__(self) -> None:
        self.overloads: dict[str, Converter] = {}
        self.rows: dict[str, Converter] = {}

    def overload(self, *names: str) -> Callable[[Converter], Converter]:
        """Decorator that registers a converter for overloads."""

        def register(fn: Converter) -> Converter:
            self.overloads.update(dict.fromkeys(names, fn))
            return fn

        return register

    def row(self, *names: str) -> Callable[[Converter], Converter]:
        """Decorator that registers a converter for all overloads of operator rows."""

        def register(fn: Converter) -> Converter:
            self.rows.update(dict.fromkeys(names, fn))
            return fn

        return register


def torch_dtype(dtype: Any) -> ir.DType:
    """Element type of a torch dtype; complex, quantized and sub-byte types have no counterpart."""
    name = str(dtype).removeprefix("torch.")
    try:
        result = ir.dtype_of(name)
    except IRError:
        result = None
    if result is not None and (result.is_bool or result.bits >= 8):
        return result
    raise ImporterError(
        f"element type {name} is not supported",
        code="BW504",
        help="convert to a real type before: instead of complex numbers, use "
        "real and imaginary parts"
        if name.startswith("complex")
        else "convert to another type before",
    )


def as_tensor(value: Any) -> Any:
    """A NumPy array as a constant; other values unchanged."""
    return constant(cast("Any", value)) if isinstance(value, np.ndarray) else value


def is_tensor(value: Any) -> bool:
    return isinstance(value, ir.GraphExpr)


def dims_of(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


def is_half(dtype: ir.DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def has_one_element(value: ir.GraphExpr) -> bool:
    """Whether a tensor is known to have one element: PyTorch's kernels treat it as a number."""
    return all(ir.is_const_int(dim, 1) for dim in dims_of(value))


def axis_of(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def result_type(node: Any) -> ir.DType:
    return torch_dtype(node.meta["val"].dtype)


def cast_to(imp: Importer, value: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """Cast unless the type matches already.

    Of the floats of 8 bits, PyTorch saturates `float8_e4m3fn`, which has no infinity, but not those
    of which an infinity or a NaN shows that a number was too large.
    """
    if value.tensor_info.dtype is dtype:
        return value
    if dtype.name == "float8_e4m3fn":
        value = saturated(imp.builder.op, value, dtype)
    return imp.builder.op("astype", value, dtype=dtype)


def size_of(imp: Importer, value: Any) -> ir.Expr:
    return value if isinstance(value, ir.Expr) else imp.symbols.dim(value)


def node_shape(imp: Importer, node: Any) -> tuple[ir.Expr, ...]:
    """The result's shape as computed by the exporter (-1 and broadcasts resolved)."""
    return tuple(imp.symbols.dim(s) for s in node.meta["val"].shape)


def reshape(imp: Importer, value: ir.GraphExpr, shape: tuple[ir.Expr, ...]) -> ir.GraphExpr:
    return imp.builder.op("reshape", value, shape_value(shape))


def element_of(imp: Importer, value: Any, dtype: ir.DType) -> Any:
    """Convert a tensor, number or size to an operand of type `dtype`."""
    if is_tensor(value):
        return cast_to(imp, value, dtype)
    number = stored_number(value, dtype)
    if isinstance(number, ir.Expr):
        return imp.builder.op("full", shape_value(()), fill_value=number, dtype=dtype)
    return np.asarray(number, dtype.numpy())


def norm(imp: Importer, node: Any, op: str, operands: tuple[Any, ...], **attrs: Any) -> Any:
    """Apply a norm; with float32 parameters and a half input it is computed in float32."""
    result = {value.tensor_info.dtype for value in operands}
    if len(result) == 1:
        return imp.builder.op(op, *operands, **attrs)
    widest = max(result, key=lambda dtype: dtype.bits)
    created = imp.builder.op(op, *(cast_to(imp, value, widest) for value in operands), **attrs)
    return cast_to(imp, created, operands[0].tensor_info.dtype)


def per_axis(value: Any, rank: int) -> tuple[int, ...]:
    """One number per spatial axis; the exporter may write a list of one number for all axes."""
    given = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(v, int) for v in given):
        raise ImporterError("strides, paddings and sizes of windows must be constant", code="BW507")
    return given * rank if len(given) == 1 else given


def batched(imp: Importer, x: ir.GraphExpr, rank: int) -> ir.GraphExpr:
    """Add a batch axis if missing: layers over `rank` spatial axes also accept a single element."""
    shape = dims_of(x)
    return x if len(shape) == rank + 2 else reshape(imp, x, (ir.const(1, "int64"), *shape))


def as_exported(imp: Importer, node: Any, value: ir.GraphExpr) -> ir.GraphExpr:
    """Remove a batch axis that `batched` added."""
    wanted = node_shape(imp, node)
    return value if len(wanted) == len(dims_of(value)) else reshape(imp, value, wanted)


def only_first(node: Any) -> None:
    """Raise if any result but the first is used."""
    if any(user.args[1] != 0 and user.users for user in node.users):
        raise ImporterError(f"only the first result of {node.target} is supported", code="BW507")
