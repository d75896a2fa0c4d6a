"""Graph values of the `R` dialect: operator calls by name, constants, special calls.

Any name is an operator: `R.nn.gelu(x, approximate="none")` calls "nn.gelu" with that attribute.
Whether the operator exists is checked later, by the `graph` package, against the operator table.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ir import DType, Expr, GraphCall, GraphExpr, Info, OpRef, dtype_of
from blockwright.script.core import items_of, sequence_of
from blockwright.script.relax.infos import as_info, dimensions, scalar
from blockwright.script.relax.spellings import composed, spelled
from blockwright.script.tir.evaluator import FunctionRef
from blockwright.script.tir.values import message_values
from blockwright.support import ScriptError
from blockwright.support.kinds import require_kind

_local = threading.local()


@contextmanager
def constant_table(table: Mapping[str, Any] | None) -> Generator[None]:
    """Set the arrays that `R.constant` and `I.constant` refer to by name."""
    before: Mapping[str, Any] | None = getattr(_local, "constants", None)
    _local.constants = table
    try:
        yield
    finally:
        _local.constants = before


def named_array(name: str) -> Any:
    """The array `name` in the table that was passed to the parser."""
    table: Mapping[str, Any] | None = getattr(_local, "constants", None)
    if table is None or name not in table:
        raise ScriptError(
            f"constant {name!r} was not passed with the text",
            code="BW114",
            help="pass from_source(text, constants={name: array})",
        )
    return table[name]


class MatchCastValue:
    """`R.match_cast(value, pattern)` before it is bound to a name."""

    def __init__(
        self, value: GraphExpr, pattern: Info, message: str, values: tuple[Expr, ...]
    ) -> None:
        self.value, self.pattern = value, pattern
        self.message, self.values = message, values


class SizeValue:
    """`R.get_shape_value(tensor, axis)` before it is bound to a name."""

    def __init__(self, tensor: GraphExpr, axis: int) -> None:
        self.tensor, self.axis = tensor, axis


class DataflowMarker:
    """`R.dataflow()`."""


class OutputMarker:
    """`R.output(…)`: the outputs of a dataflow block; the parser reads the names from syntax."""


def as_graph(value: Any) -> GraphExpr:
    """Convert a script value to a graph expression."""
    if isinstance(value, GraphExpr):
        return value
    if isinstance(value, OpName):
        return OpRef(value.op_name)
    if isinstance(value, FunctionRef):
        return ir.GlobalVar(value.name)
    if isinstance(value, (ir.PrimFunc, ir.GraphFunction)):
        return ir.GlobalVar(value.name)
    if isinstance(value, MatchCastValue):
        raise ScriptError(
            "R.match_cast must be bound to a name",
            code="BW108",
            help="write y = R.match_cast(x, …) first",
        )
    if isinstance(value, SizeValue):
        raise ScriptError(
            "R.get_shape_value must be bound to a name",
            code="BW108",
            help="write n = R.get_shape_value(x, axis=0) first",
        )
    if isinstance(value, Expr):
        return prim_value(value)
    if isinstance(value, bool):
        return ir.PrimValue(ir.const(value, "bool"), info=ir.PrimInfo(dtype_of("bool")))
    if isinstance(value, int):
        return prim_value(value)
    if isinstance(value, float):
        return prim_value(ir.const(value, "float64"))
    if isinstance(value, str):
        return ir.StringValue(value)
    if isinstance(value, np.ndarray):
        return const(value)
    items = sequence_of(value)
    if items is not None:
        return shape(items) if items and all(map(_is_dim, items)) else tuple_(*items)
    raise ScriptError(
        f"{type(value).__name__} is not a graph value",
        code="BW107",
        help='scalars: R.const(2.0, "float32"); attributes: by keyword',
    )


def _is_dim(value: Any) -> bool:
    return isinstance(value, (int, Expr))


class OpName:
    """An operator, or a prefix of its dotted name."""

    def __init__(self, name: str) -> None:
        self.op_name = name

    def __getattr__(self, part: str) -> OpName:
        if part.startswith("__"):
            raise AttributeError(part)
        return OpName(f"{self.op_name}.{part}")

    def __call__(
        self, *args: Any, out_sinfo: Any = None, sinfo_args: Any = None, **attrs: Any
    ) -> GraphExpr:
        whole = composed(self.op_name, args, attrs, as_graph)
        if whole is not None:
            return whole
        name, operands, named = spelled(self.op_name, args, attrs)
        return graph_call(OpRef(name), operands, named, out_sinfo, sinfo_args)


def graph_call(
    op: GraphExpr,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
    out_sinfo: Any = None,
    sinfo_args: Any = None,
) -> GraphCall:
    """Build a call with converted arguments; keywords become attributes."""
    for key, value in attrs.items():
        if isinstance(value, (GraphExpr, OpName, MatchCastValue)):
            raise ScriptError(
                f"{key!r} is a graph value, attributes are plain data",
                code="BW106",
                help="pass graph values by position",
            )
    infos = _infos(sinfo_args if out_sinfo is None else out_sinfo)
    return GraphCall(op, tuple(as_graph(a) for a in args), dict(attrs), infos)


def _infos(value: Any) -> tuple[Info, ...]:
    if value is None:
        return ()
    return tuple(as_info(v) for v in items_of(value))


def _argument_tuple(args: Any) -> GraphExpr:
    """The arguments of a destination-passing call, as one tuple."""
    items = sequence_of(args)
    value = as_graph(args if items is None else tuple_(*items))
    whole = isinstance(value, ir.TupleExpr) or isinstance(value.info, ir.TupleInfo)
    return value if whole else tuple_(value)


def _tir_call(
    name: str,
    func: Any,
    args: Any,
    out_sinfo: Any,
    tir_vars: Any,
    dtype: Any,
    attrs: dict[str, Any],
) -> GraphCall:
    if isinstance(out_sinfo, GraphExpr) and not isinstance(out_sinfo, ir.ShapeExpr):
        raise ScriptError(
            "the shape of a result must be written out in the call",
            code="BW107",
            help='write R.Tensor((n, m), "float32")',
        )
    if dtype is not None:  # old syntax: a shape and a type instead of an annotation
        dims = out_sinfo.values if isinstance(out_sinfo, ir.ShapeExpr) else dimensions(out_sinfo)
        out_sinfo = ir.TensorInfo(dims, dtype_of(dtype))
    operands = [as_graph(func), _argument_tuple(args)]
    if tir_vars is not None:
        operands.append(tir_vars if isinstance(tir_vars, GraphExpr) else shape(tir_vars))
    infos = _infos(out_sinfo)
    if not infos:
        raise ScriptError(f"R.{name} needs out_sinfo, the annotation of the result", code="BW106")
    return GraphCall(OpRef(name), tuple(operands), attrs, infos)


def call_tir(
    func: Any, args: Any, out_sinfo: Any = None, tir_vars: Any = None, dtype: Any = None
) -> GraphCall:
    """Call a tensor program that writes newly allocated outputs with the given annotations."""
    return _tir_call("call_tir", func, args, out_sinfo, tir_vars, dtype, {})


def call_tir_inplace(
    func: Any, args: Any, inplace_indices: Any = None, out_sinfo: Any = None, tir_vars: Any = None
) -> GraphCall:
    """Call a tensor program that overwrites the arguments at `inplace_indices`."""
    if inplace_indices is None:
        raise ScriptError("R.call_tir_inplace needs inplace_indices", code="BW106")
    attrs = {"inplace_indices": inplace_indices}
    return _tir_call("call_tir_inplace", func, args, out_sinfo, tir_vars, None, attrs)


def call_dps_library(func: Any, args: Any, out_sinfo: Any = None, **attrs: Any) -> GraphCall:
    """Call an external function that writes to preallocated outputs.

    Arguments: `func` is the name "library.function" for a registered library, the name of a packed
        function, or, for debugging, a Python function: it gets NumPy arrays, the results last, then
        the values of `attrs`.
    """
    infos = _infos(out_sinfo)
    if not infos:
        raise ScriptError("R.call_dps_library needs out_sinfo", code="BW106")
    return GraphCall(
        OpRef("call_dps_library"), (_extern(func), _argument_tuple(args)), attrs, infos
    )


def _extern(func: Any) -> GraphExpr:
    if isinstance(func, FunctionType):
        if not func.__name__.isidentifier():
            raise ScriptError(
                "a Python function that a graph calls needs a name",
                code="BW107",
                help="define it with def",
            )
        return ir.ExternFunc(func.__name__, func)
    return ir.ExternFunc(func) if isinstance(func, str) else as_graph(func)


def call_packed(func: Any, *args: Any, sinfo_args: Any = None, **attrs: Any) -> GraphCall:
    """Call a registered function that may have side effects."""
    return graph_call(OpRef("call_packed"), (_extern(func), *args), attrs, sinfo_args)


def call_pure_packed(func: Any, *args: Any, sinfo_args: Any = None, **attrs: Any) -> GraphCall:
    """Call a registered function without side effects."""
    return graph_call(OpRef("call_pure_packed"), (_extern(func), *args), attrs, sinfo_args)


def to_vdevice(value: Any, dst_vdevice: str) -> GraphCall:
    """The value on another device, such as "cpu:1"."""
    return graph_call(OpRef("to_vdevice"), (value,), {"dst_vdevice": dst_vdevice})


def hint_on_device(value: Any, device: str, memory_scope: str = "global") -> GraphCall:
    """The value, which should be computed on a device."""
    place = device if memory_scope == "global" else f"{device}:{memory_scope}"
    return graph_call(OpRef("hint_on_device"), (value,), {"device": place})


_KINDS = {1: "cpu", 2: "cuda"}  # by number of DLPack


def device(device_type: int, device_id: int = 0) -> str:
    """The name of a device of a DLPack type: 1 for CPUs, 2 for CUDA."""
    if device_type not in _KINDS:
        known = ", ".join(f"{number} ({name})" for number, name in _KINDS.items())
        raise ScriptError(
            f"there is no type {device_type!r} of devices", code="BW107", help=f"types: {known}"
        )
    return f"{_KINDS[device_type]}:{device_id}"


def match_cast(value: Any, pattern: Any, message: str = "", *values: Any) -> MatchCastValue:
    """Check at run time that a value has the annotation, and bind new symbols.

    `message` is the error message, with one `%d` for each of the integer `values`.
    """
    result = message_values(message, values)
    return MatchCastValue(as_graph(value), as_info(pattern), message, result)


def get_shape_value(x: Any, axis: int) -> SizeValue:
    """The size of an axis of a tensor, as a symbol that shapes and annotations may use.

    Before → after, if the size of the axis is unknown::

        n = R.get_shape_value(x, axis=0)       n, x_1 = T.int64(), T.int64()
                                               x_0 = R.match_cast(x, R.Tensor((n, x_1), "float32"))
    """
    require_kind(axis, int, "an axis is a number", ScriptError, "BW107", "count from 0")
    return SizeValue(as_graph(x), axis)


def _constant(data: np.ndarray[Any, Any], name: str) -> ir.Constant:
    result = ir.Constant(data, name)
    dims = tuple(ir.const(int(d), "int64") for d in result.data.shape)
    return result.replace(info=ir.TensorInfo(dims, dtype_of(result.data.dtype)))


def _require_numbers(value: Any, data: np.ndarray[Any, Any], dtype: DType) -> None:
    """Require that the numbers are representable in the type; floating-point types round."""
    if dtype.is_int and dtype.bits < 8:
        raise ScriptError(
            f"there are no constants of {dtype}", code="BW107", help="use int8 or uint8, and cast"
        )
    given = np.asarray(value)
    if dtype.is_int and given.dtype.kind in "fiub" and not np.array_equal(given, data):
        raise ScriptError(
            f"{value!r} does not fit {dtype}"[:200],
            code="BW107",
            help="use another type, or numbers of this one",
        )


def const(
    value: Any, dtype: str | DType | None = None, shape: Any = None, name: str = ""
) -> ir.Constant:
    """A literal constant.

    Raises:
        ScriptError: BW107 for numbers that do not fit the type, and for masked arrays.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ScriptError("a constant has no mask", code="BW107", help="pass .filled(value)")
    if dtype is None and not isinstance(value, np.ndarray):
        first = np.asarray(value).dtype.kind
        dtype = {"f": "float32", "b": "bool"}.get(first, "int32")
    if dtype is not None and dtype_of(dtype).lanes != 1:
        raise ScriptError(
            f"the elements of a constant are scalars, not {dtype_of(dtype)}",
            code="BW107",
            help="use the type of one lane",
        )
    kind = None if dtype is None else dtype_of(dtype).numpy()
    data = np.asarray(value, dtype=kind)
    if dtype is not None:
        _require_numbers(value, data, dtype_of(dtype))
    return _constant(data if shape is None else data.reshape(shape), name)


def constant(key: str, name: str | None = None) -> ir.Constant:
    """A named constant that is passed separately from the script text."""
    return _constant(named_array(key), key if name is None else name)


def prim_value(value: Any) -> ir.PrimValue:
    """Convert a scalar to a graph value."""
    expr = scalar(value)
    return ir.PrimValue(expr, info=ir.PrimInfo(expr.dtype, expr))


def shape(values: Sequence[Any]) -> ir.ShapeExpr:
    """Convert a shape to a graph value."""
    dims = dimensions(values)
    return ir.ShapeExpr(dims, info=ir.ShapeInfo(dims, len(dims)))


def str_(value: str) -> ir.StringValue:
    return ir.StringValue(value)


def tuple_(*fields: Any) -> ir.TupleExpr:
    return ir.TupleExpr(tuple(as_graph(f) for f in fields))


def op(name: str) -> OpName:
    """An operator by name, also if the name is not a valid Python identifier."""
    require_kind(
        name,
        str,
        "R.op needs the name of an operator",
        ScriptError,
        "BW107",
        'write R.op("add")(x, y)',
    )
    return OpName(name)


def ExternFunc(name: str) -> ir.ExternFunc:
    return ir.ExternFunc(name)


def dataflow() -> DataflowMarker:
    return DataflowMarker()


def output(*values: Any) -> OutputMarker:
    return OutputMarker()
