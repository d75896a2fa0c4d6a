"""Operator calls as Relax programs write them: other names, attributes by position.

Before → after, for calls in a script::

    R.split(x, 2, axis=1)                      R.split(x, indices_or_sections=2, axis=1)
    R.mean(x, axis=[1], keepdims=True)         R.mean(x, axes=[1], keepdims=True)
    R.nn.leakyrelu(x, 0.1)                     R.leaky_relu(x, alpha=0.1)
    R.full((2, n), R.const(1.0), "float32")    R.full((2, n), fill_value=1.0, dtype="float32")

A call of an operator without an entry is built as written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.ir import GraphCall, GraphExpr, OpRef, dtype_of
from blockwright.script.core import sequence_of
from blockwright.support import ScriptError

Attributes = dict[str, Any]
Convert = Callable[[Any], GraphExpr]


class Form(msgspec.Struct, frozen=True):
    """How the calls of an operator are written.

    Attributes:
        operator: the operator that is called.
        operands: number of operands; further arguments by position are attributes.
        attributes: attributes in the order of their positions.
        renamed: spelling of an attribute → its name.
        ignored: attributes that the operator does not have, with the value that says nothing.
    """

    operator: str
    operands: int
    attributes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}
    ignored: Mapping[str, Any] = {}


def _form(operator: str, operands: int, attributes: str = "", **renamed: str) -> Form:
    return Form(operator, operands, tuple(attributes.split()), renamed)


def _reduction(name: str, more: str = "") -> Form:
    return _form(name, 1, f"axes keepdims {more}", axis="axes")


_CONVOLUTION = "strides padding dilation groups data_layout kernel_layout out_layout out_dtype"
_POOL = "pool_size strides padding dilation ceil_mode count_include_pad layout out_layout"
_AFFINE: Attributes = {"center": True, "scale": True}

FORMS: dict[str, Form] = {
    "argmax": _form("argmax", 1, "axis keepdims"),
    "argmin": _form("argmin", 1, "axis keepdims"),
    "argsort": _form("argsort", 1, "axis descending dtype"),
    "astype": _form("astype", 1, "dtype"),
    "broadcast_to": _form("broadcast_to", 2),
    "builtin.alloc_tensor": Form(
        "zeros",
        1,
        ("dtype", "runtime_device_index", "storage_scope"),
        ignored={"runtime_device_index": 0, "storage_scope": "global"},
    ),
    "clip": _form("clip", 1, "min max"),
    "cumprod": _form("cumprod", 1, "axis"),
    "cumsum": _form("cumsum", 1, "axis"),
    "empty": _form("zeros", 1, "dtype"),
    "expand_dims": _form("expand_dims", 1, "axis"),
    "flip": _form("flip", 1, "axis"),
    "floor_mod": _form("remainder", 2),
    "full": _form("full", 1, "fill_value dtype"),
    "full_like": _form("full_like", 1, "fill_value dtype"),
    "gather_elements": _form("gather", 2, "axis"),
    "mod": _form("fmod", 2),
    "matmul": _form("matmul", 2, "out_dtype"),
    "ones": _form("ones", 1, "dtype"),
    "ones_like": _form("ones_like", 1, "dtype"),
    "permute_dims": _form("permute_dims", 1, "axes"),
    "repeat": _form("repeat", 1, "repeats axis"),
    "scatter_elements": _form("scatter_elements", 3, "axis reduction"),
    "scatter_nd": _form("scatter_nd", 3, "reduction"),
    "sort": _form("sort", 1, "axis descending"),
    "split": _form("split", 1, "indices_or_sections axis", sections="indices_or_sections"),
    "squeeze": _form("squeeze", 1, "axis"),
    "take": Form("take", 2, ("axis",), ignored={"mode": "fast"}),
    "topk": _form("topk", 1, "k axis ret_type largest dtype"),
    "tril": _form("tril", 1, "k"),
    "triu": _form("triu", 1, "k"),
    "zeros": _form("zeros", 1, "dtype"),
    "zeros_like": _form("zeros_like", 1, "dtype"),
    **{name: _reduction(name) for name in ("all", "any", "max", "mean", "min")},
    **{name: _reduction(name, "dtype") for name in ("prod", "sum")},
    "nn.batch_norm": Form(
        "nn.batch_norm",
        5,
        ("axis", "epsilon", "center", "scale"),
        ignored={"momentum": 0.1, "training": False},
    ),
    **{f"nn.conv{rank}d": _form(f"nn.conv{rank}d", 2, _CONVOLUTION) for rank in (1, 2, 3)},
    **{
        f"nn.{kind}_pool{rank}d": _form(f"nn.{kind}_pool{rank}d", 1, _POOL)
        for kind in ("max", "avg")
        for rank in (1, 2, 3)
    },
    "nn.gelu": _form("gelu", 1),
    "nn.group_norm": _form("nn.group_norm", 3, "num_groups channel_axis axes epsilon center scale"),
    "nn.instance_norm": _form("nn.instance_norm", 3, "channel_axis axes epsilon center scale"),
    "nn.layer_norm": Form(
        "layer_norm", 3, ("axes", "epsilon"), {"epsilon": "eps"}, ignored=_AFFINE
    ),
    "nn.leakyrelu": _form("leaky_relu", 1, "alpha"),
    "nn.log_softmax": _form("log_softmax", 1, "axis"),
    "nn.prelu": _form("nn.prelu", 2, "axis"),
    "nn.relu": _form("relu", 1),
    "nn.relu6": _form("relu6", 1),
    "nn.rms_norm": _form("rms_norm", 2, "axes epsilon", epsilon="eps"),
    "nn.selu": _form("selu", 1),
    "nn.silu": _form("silu", 1),
    "nn.softmax": _form("softmax", 1, "axis"),
    "nn.softplus": _form("softplus", 1, "beta threshold"),
}


def composed(
    name: str, args: Sequence[Any], attrs: Mapping[str, Any], convert: Convert
) -> GraphExpr | None:
    """The calls that an operator without a row is composed of; None for other operators.

    Arguments: `convert` makes a graph value of a Python value.

    Raises: ScriptError BW106: arguments that the operator does not take or that have no
        implementation.
    """
    compose = _COMPOSED.get(name)
    if compose is None:
        return None
    try:
        bound = inspect.signature(compose).bind(*args, **attrs)
    except TypeError as error:
        raise ScriptError(f"{name}: {error}", code="BW106") from None
    for key, value in bound.arguments.items():
        if key == _SEVERAL:
            bound.arguments[key] = tuple(
                v if isinstance(v, ir.DType) else convert(v) for v in value
            )
        elif key in _OPERANDS:
            bound.arguments[key] = convert(value)
    return compose(*bound.args, **bound.kwargs)


def spelled(
    name: str, args: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[str, Sequence[Any], Attributes]:
    """The operator, operands and attributes of a call.

    Raises: ScriptError BW106: too many arguments, or an attribute given twice.
    """
    if name in ("arange", "concat"):
        return name, *(_arange if name == "arange" else _concat)(args, attrs)
    form = FORMS.get(name)
    if form is None:
        return name, args, dict(attrs)
    operands, rest = args[: form.operands], args[form.operands :]
    if len(rest) > len(form.attributes):
        raise ScriptError(
            f"{name} takes at most {form.operands + len(form.attributes)} arguments, "
            f"got {len(args)}",
            code="BW106",
            help=f"attributes in order: {', '.join(form.attributes) or 'none'}",
        )
    given = [*zip(form.attributes, rest, strict=False), *attrs.items()]
    return form.operator, operands, _attributes(name, form, given)


def _attributes(name: str, form: Form, given: Sequence[tuple[str, Any]]) -> Attributes:
    result: Attributes = {}
    for spelling, value in given:
        key = form.renamed.get(spelling, spelling)
        plain = _plain(key, value)
        if spelling in form.ignored and _same(plain, form.ignored[spelling]):
            continue
        if key in result:
            raise ScriptError(f"{name} gets {key} twice", code="BW106", help="pass it once")
        result[key] = plain
    return result


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) and value == other


def _plain(key: str, value: Any) -> Any:
    """The value of an attribute; constants of one element become numbers."""
    if isinstance(value, ir.StringValue):
        value = value.value
    if isinstance(value, ir.Constant) and value.data.size == 1:
        return value.data.item()
    if isinstance(value, ir.PrimValue):
        number = ir.const_int(value.value)
        return value.value if number is None else number
    if isinstance(value, ir.ShapeExpr):
        return value.values
    if isinstance(value, str) and key.endswith("dtype"):
        return None if value == "void" else dtype_of(value)
    items = sequence_of(value)
    if items is None:
        return value
    plain = [_plain("", item) for item in items]
    return tuple(plain) if isinstance(value, tuple) else plain


def _arange(args: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Sequence[Any], Attributes]:
    """`R.arange(end)`, `R.arange(begin, end, step, dtype)`."""
    form = _form("arange", 0, "begin end step dtype", start="begin")
    names = ("end",) if len(args) == 1 and "end" not in attrs else form.attributes
    given = [*zip(names, args, strict=False), *attrs.items()]
    return (), _attributes("arange", form, given)


def _concat(args: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Sequence[Any], Attributes]:
    """`R.concat((a, b), axis)`, also `R.concat(a, b, axis=…)`."""
    form = _form("concat", 1, "axis")
    if len(args) == 2 and isinstance(args[1], (int, ir.PrimValue)):
        return args[:1], _attributes("concat", form, [("axis", args[1]), *attrs.items()])
    return args, _attributes("concat", form, list(attrs.items()))


# ------------------------------------------------------------------------------- compositions
_OPERANDS = {"x", "y", "z", "tensors", "query", "key", "value", "bias", "func", "shape"}
_SEVERAL = "operands"


def _op(name: str, *args: GraphExpr, **attrs: Any) -> GraphCall:
    return GraphCall(OpRef(name), args, attrs)


def _own(result: GraphExpr, operand: GraphExpr) -> GraphExpr:
    """The result of a composition; never the operand itself, which may be overwritten in place."""
    return _op("squeeze", operand, axis=()) if result is operand else result


def _strided_slice(
    x: GraphExpr, axes: Any, begin: Any, end: Any, strides: Any = None, assume_inbound: bool = False
) -> GraphExpr:
    axes, begin, end = (_plain("", v) for v in (axes, begin, end))
    steps = [1] * len(axes) if strides is None else _plain("", strides)
    result = x
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        result = _op("slice", result, axis=axis, begin=first, end=last, step=step)
    return _own(result, x)


def _variance(x: GraphExpr, axis: Any = None, keepdims: bool = False) -> GraphExpr:
    rest = _op("subtract", x, _op("mean", x, axes=axis, keepdims=True))
    return _op("mean", _op("square", rest), axes=axis, keepdims=keepdims)


def _std(x: GraphExpr, axis: Any = None, keepdims: bool = False) -> GraphExpr:
    return _op("sqrt", _variance(x, axis, keepdims))


def _gelu_tanh(x: GraphExpr) -> GraphExpr:
    return _op("gelu", x, approximate="tanh")


def _stack(tensors: Any, axis: int = 0) -> GraphExpr:
    parts = [_op("expand_dims", part, axis=axis) for part in _fields(tensors)]
    return _op("concat", ir.TupleExpr(tuple(parts)), axis=axis)


def _tile(x: GraphExpr, repeats: Any) -> GraphExpr:
    counts = [repeats] if isinstance(repeats, int) else _plain("", repeats)
    result = x
    for axis, count in enumerate(counts, -len(counts)):
        if count != 1:
            result = _op("concat", ir.TupleExpr((result,) * count), axis=axis)
    return _own(result, x)


def _attention(
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    bias: GraphExpr | None = None,
    scale: Any = None,
    causal_mask: str | None = None,
    window_size: Any = None,
) -> GraphExpr:
    """Attention of (batch, sequence, heads, size); the operator has heads before the sequence."""
    if causal_mask not in (None, "TopLeft") or window_size is not None:
        raise ScriptError(
            f"nn.attention has no implementation with causal_mask={causal_mask!r}, "
            f"window_size={window_size!r}",
            code="BW106",
            help='write causal_mask="TopLeft", or pass the mask as bias',
        )
    moved = [_op("permute_dims", x, axes=[0, 2, 1, 3]) for x in (query, key, value)]
    masks = [] if bias is None else [bias]
    attrs = {"scale": _plain("", scale), "is_causal": causal_mask is not None}
    return _op("permute_dims", _op("attention", *moved, *masks, **attrs), axes=[0, 2, 1, 3])


def _pad(x: GraphExpr, pad_width: Any, pad_value: Any = 0, pad_mode: str = "constant") -> GraphExpr:
    """`pad_width`: pairs, or the numbers before and behind each axis in one list."""
    widths = _plain("", pad_width)
    if widths and all(sequence_of(w) is None for w in widths):
        widths = [list(pair) for pair in zip(widths[::2], widths[1::2], strict=False)]
    value = _plain("", pad_value)
    return _op("pad", x, pad_width=widths, pad_value=value, pad_mode=pad_mode)


def _index_tensor(x: GraphExpr, tensors: GraphExpr) -> GraphExpr:
    return _op("index", x, *_fields(tensors))


def _multiply_add(x: GraphExpr, y: GraphExpr, z: GraphExpr) -> GraphExpr:
    return _op("add", _op("multiply", x, y), z)


def _alloc_storage(
    shape: GraphExpr,
    virtual_device_index: Any = 0,
    scope: Any = "global",
    dtype: Any = "uint8",
    storage_scope: Any = "global",
) -> GraphExpr:
    """Memory that tensors are placed in; the compiler plans memory by itself."""
    for where in (_plain("", scope), _plain("", storage_scope)):
        if where != "global":
            raise ScriptError(
                f"memory.alloc_storage has no implementation with scope {where!r}",
                code="BW106",
                help='write scope="global"',
            )
    return _op("zeros", shape, dtype=_plain("dtype", dtype))


def _alloc_tensor(
    x: GraphExpr,
    *operands: GraphExpr | ir.DType,
    dtype: Any = "float32",
    runtime_device_index: Any = 0,
) -> GraphExpr:
    """A tensor in storage: `(storage, [offset,] shape, [dtype, [runtime_device_index]])`."""
    is_type = [isinstance(v, (ir.DType, ir.StringValue)) for v in operands]
    count = is_type.index(True) if True in is_type else len(operands)
    places, rest = operands[:count], operands[count:]
    if len(places) not in (1, 2) or len(rest) > 2:
        raise ScriptError(
            "memory.alloc_tensor takes a storage, an offset, a shape and a type, "
            f"got {1 + len(operands)} arguments",
            code="BW106",
            help="write R.memory.alloc_tensor(storage, R.shape([n]), dtype=...)",
        )
    shape = places[-1]
    assert isinstance(shape, GraphExpr)
    return _op("zeros", shape, dtype=_plain("dtype", rest[0] if rest else dtype))


def _captured_call(func: GraphExpr, *operands: GraphExpr) -> GraphExpr:
    """A call that a CUDA device records once and repeats; on CPUs, a call."""
    return GraphCall(func, operands)


def _fields(value: GraphExpr) -> tuple[GraphExpr, ...]:
    if isinstance(value, ir.TupleExpr):
        return value.fields
    raise ScriptError("the tensors must be written out", code="BW106", help="write R.stack((x, y))")


_COMPOSED: dict[str, Callable[..., GraphExpr]] = {
    "builtin.cuda_graph_run_or_capture": _captured_call,
    "memory.alloc_storage": _alloc_storage,
    "memory.alloc_tensor": _alloc_tensor,
    "nn.attention": _attention,
    "ewise_fma": _multiply_add,
    "index_tensor": _index_tensor,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.pad": _pad,
    "stack": _stack,
    "std": _std,
    "strided_slice": _strided_slice,
    "tile": _tile,
    "variance": _variance,
}
