"""Older versions of operators, in terms of the newest one.

The opset of a model selects a version of each of its operators. Converters and folding implement
the newest; a node of an older version with another meaning or form is rewritten before:

    Softmax-11(x, axis=1)   →   Reshape(Softmax-13(Reshape(x, (n, rest)), axis=1), shape of x)
    TopK-1(x, k=3)          →   TopK-11(x, [3], largest=1)

An operator that is not listed in `OLDER` has one meaning in all versions: newer ones allow more
types, add attributes whose defaults change nothing, or take as inputs what were attributes, which
converters take in both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Value, axis_of, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.model import onnx_package
from blockwright.frontend.onnx.sizes import I64
from blockwright.graph import shape_value
from blockwright.support import ImporterError

Convert = Callable[[Call], Sequence[Value]]
"""The results of a node of the newest version."""
Rewrite = Callable[[Call, Convert], Sequence[Value]]


class OlderVersion(ImporterError):
    """The version of an operator is older than those that are supported."""


def in_newest_version(call: Call, convert: Convert) -> Sequence[Value]:
    """The results of a node of the default domain, of any version.

    Raises: OlderVersion BW522 if its version has another meaning and is not supported.
    """
    newest, rewrite = OLDER.get(call.op, (1, _refused))
    call = call.without("consumed_inputs")  # before version 6, a hint that means nothing
    return convert(call) if call.version >= newest else rewrite(call, convert)


def _refusal(call: Call, what: str = "") -> OlderVersion:
    opset = call.imp.scope.opsets.get("", 1)
    return OlderVersion(
        f"version {call.version} of {call.op}, which opset {opset} selects, is not supported"
        + (f" with {what}" if what else ""),
        code="BW522",
        help="convert the model: onnx.version_converter.convert_version(model, 13)",
    )


def _refused(call: Call, convert: Convert) -> Sequence[Value]:
    raise _refusal(call)


def _with_attributes(**attrs: Any) -> Rewrite:
    """Attributes that the older version lacks and the newest has other defaults for."""

    def rewrite(call: Call, convert: Convert) -> Sequence[Value]:
        given = {name: value for name, value in attrs.items() if name not in call.attrs}
        return convert(call.like(*call.operands, **given))

    return rewrite


def _renamed(**names: str) -> Rewrite:
    """Attributes with other names: old name → new name."""

    def rewrite(call: Call, convert: Convert) -> Sequence[Value]:
        return convert(call.like(*call.operands, **{n: call.attr(o) for o, n in names.items()}))

    return rewrite


def _as_input(name: str, **attrs: Any) -> Rewrite:
    """An attribute of integers that the newest version takes as input 1, and others it adds."""

    def rewrite(call: Call, convert: Convert) -> Sequence[Value]:
        operands = call.operands
        if not call.has(1):
            operands = [call.value(0), np.asarray(call.attr(name), np.int64).reshape(-1)]
        return convert(call.like(*operands, **attrs))

    return rewrite


# -------------------------------------------------------------------------------------- operands


def _broadcast_at(call: Call, convert: Convert) -> Sequence[Value]:
    """The second operand has the shape of a part of the first, from `axis` on."""
    plain = call.without("broadcast", "axis")
    if "axis" not in call.attrs or not call.attr("broadcast", 0):
        return convert(plain)
    a, b, axis = call.tensor(0), call.tensor(1), call.attr("axis")
    after = rank_of(a) - axis_of(axis, rank_of(a)) - rank_of(b)
    if after < 0:
        raise call.error(
            f"axis {axis} leaves fewer axes than the second operand has",
            "choose an axis so that the second operand fits",
        )
    return convert(plain.like(a, call.reshape(b, [*dims_of(b), *([1] * after)])))


def _slope_per_channel(call: Call, convert: Convert) -> Sequence[Value]:
    """A vector of slopes of `PRelu` has one for each channel, axis 1."""
    x, slope = call.tensor(0), call.tensor(1)
    if rank_of(slope) == 1 and not ir.is_const_int(dims_of(slope)[0], 1) and rank_of(x) > 1:
        slope = call.reshape(slope, [*dims_of(slope), *([1] * (rank_of(x) - 2))])
    return convert(call.like(x, slope))


def _none_of_negative(call: Call, convert: Convert) -> Sequence[Value]:
    """A negative index of `OneHot` hits nothing; in the newest version it counts from the end."""
    indices = call.cast(call.tensor(0), I64)
    below = call.apply("less", indices, scalar=0, scalar_side="right")
    far = call.scalar(np.iinfo(np.int64).max, I64)
    indices = call.apply("where", below, far, indices)
    return convert(call.like(indices, *call.operands[1:]))


def _axis_of_dft(call: Call, convert: Convert) -> Sequence[Value]:
    """The axis of `DFT` is an attribute."""
    length = call.operands[1] if call.has(1) else None
    axis = np.asarray(call.attr("axis"), np.int64)
    return convert(call.like(call.value(0), length, axis))


def _weights_of_groups(call: Call, convert: Convert) -> Sequence[Value]:
    """Scale and bias of `GroupNormalization` have one number for each group, not each channel."""
    x, *weights = call.tensors()
    groups, channels = ir.const(call.attr("num_groups"), I64), dims_of(x)[1]
    shape = shape_value([groups, ir.floordiv(channels, groups)])
    spread = [
        call.reshape(
            call.apply("broadcast_to", call.reshape(weight, [groups, 1]), shape), [channels]
        )
        for weight in weights
    ]
    return convert(call.like(x, *spread))


# ------------------------------------------------------------------------------ other meanings


def _of_flat_rows(call: Call, convert: Convert) -> Sequence[Value]:
    """Axes before `axis` are the rows of a matrix, the others its columns, which are normalized."""
    x = call.tensor(0)
    dims, rank = dims_of(x), rank_of(x)
    place = axis_of(call.attr("axis"), rank)
    if place == rank - 1:
        return convert(call.like(x, axis=-1))
    rows = call.reshape(x, [product(dims[:place]), product(dims[place:])])
    (result,) = convert(call.like(rows, axis=1))
    return [call.reshape(result, dims)]


def _dropout(call: Call, convert: Convert) -> Sequence[Value]:
    """Before version 7 `is_test` says that nothing is dropped; before 10 the mask has numbers."""
    if call.version < 7 and not call.attr("is_test"):
        raise _refusal(call, "is_test=0, which drops elements")
    kept, mask = convert(call)
    if mask is None or call.version >= 10:
        return [kept, mask]
    return [kept, call.cast(mask, dtype_of(kept))]


def _batch_norm(call: Call, convert: Convert) -> Sequence[Value]:
    """Of the older forms the one of inference, with one mean and variance for each channel."""
    if call.version < 7 and not call.attr("is_test"):
        raise _refusal(call, "is_test=0, which normalizes by the batch")
    if not call.attr("spatial", 1):
        raise _refusal(call, "spatial=0")
    if any(call.wants(position) for position in range(1, 5)):
        raise _refusal(call, "more than one output, which normalizes by the batch")
    return convert(call)


def _type_by_name(call: Call, convert: Convert) -> Sequence[Value]:
    """The type of `Cast` is a text, as "FLOAT"."""
    name, numbers = call.attr("to"), onnx_package().TensorProto.DataType
    if name not in set(numbers.keys()):
        raise call.error(f"to={name!r} is no element type", 'name one, as "FLOAT"')
    return convert(call.like(*call.operands, to=numbers.Value(name)))


def _scales_of_images(call: Call, convert: Convert) -> Sequence[Value]:
    """The scales of `Upsample` are two attributes."""
    scales = (1.0, 1.0, call.attr("height_scale"), call.attr("width_scale"))
    return convert(call.like(*call.operands, scales=scales))


OLDER: dict[str, tuple[int, Rewrite]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"),
        (7, _broadcast_at),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (13, _of_flat_rows)),
    "BatchNormalization": (14, _batch_norm),
    "Cast": (6, _type_by_name),
    "Concat": (4, _with_attributes(axis=1)),
    "DFT": (20, _axis_of_dft),
    "DepthToSpace": (11, _with_attributes(mode="DCR")),
    "Dropout": (12, _dropout),
    "GatherND": (12, _with_attributes(batch_dims=0)),
    "GroupNormalization": (21, _weights_of_groups),
    "OneHot": (11, _none_of_negative),
    "PRelu": (7, _slope_per_channel),
    "Pad": (2, _renamed(paddings="pads")),
    "Reshape": (5, _as_input("shape")),
    "Resize": (11, _refused),
    "RoiAlign": (16, _with_attributes(coordinate_transformation_mode="output_half_pixel")),
    "Scan": (9, _refused),
    "Tile": (6, _refused),
    "TopK": (11, _as_input("k", largest=1)),
    "Upsample": (7, _scales_of_images),
}
"""Operator → the oldest version with the meaning and form of the newest, and older ones."""
