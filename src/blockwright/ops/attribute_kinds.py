"""Kinds of values that operator attributes accept, checked before any deduction rule.

An attribute has the same meaning in every row, so kinds are assigned by name; a row states the
exceptions (`OpRow.kinds`). A name without a kind accepts values of the type of its default. None is
accepted where it is the default. Whether a value of the right kind is valid (an axis within the
rank, a layout with the right letters) is checked by the row's deduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

import numpy as np

from blockwright import ir
from blockwright.ops.row import OpRow
from blockwright.support import BlockwrightError, GraphError

Check = Callable[[Any], bool]


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_int(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and -(1 << 63) <= value < 1 << 63


def _is_real(value: Any) -> bool:
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_int(value) or (
        isinstance(value, ir.Expr) and value.dtype.is_scalar and value.dtype.is_int
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, ir.Expr):
        return value.dtype.is_scalar and not value.dtype.is_handle
    return _is_real(value) or _is_flag(value)


def _is_element_type(value: Any) -> bool:
    if not isinstance(value, (str, ir.DType, np.dtype)):
        return False
    try:
        dtype = ir.dtype_of(cast("str | ir.DType | np.dtype[Any]", value))
    except (BlockwrightError, TypeError, ValueError):
        return False
    return dtype.is_scalar and not dtype.is_handle


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_not_zero(value: Any) -> bool:
    return _is_real(value) and value != 0


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _several(check: Check) -> Check:
    """A check for sequences whose elements all pass a check."""

    def checked(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(map(check, cast("Sequence[Any]", value)))

    return checked


def _one_or_more(check: Check) -> Check:
    listed = _several(check)
    return lambda value: check(value) or listed(value)


class _Kind(NamedTuple):
    """A kind of attribute value: description, check, and the complete list of words, if any."""

    wanted: str
    fits: Check
    words: tuple[str, ...] = ()


def _choice(*words: str) -> _Kind:
    def is_word(value: Any) -> bool:
        return isinstance(value, str) and value in words

    return _Kind(" or ".join(map(repr, words)), is_word, words)


_FLAG = _Kind("True or False", _is_flag)
_INT = _Kind("an integer", _is_int)
_INT_OR_NONE = _Kind("an integer or None", _or_none(_is_int))
_INTS = _Kind("an integer, or several", _one_or_more(_is_int))
_TUPLE = _Kind("a tuple of integers", _several(_is_int))
_REAL = _Kind("a number", _is_real)
_SCALAR = _Kind("a number or a scalar expression", _is_scalar)
_SIZE = _Kind("an integer or a size", _is_size)
_TEXT = _Kind("text", _is_text)
_TYPE = _Kind("an element type", _is_element_type)

_NOT_ZERO = _Kind("a number other than 0", _is_not_zero)

_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("alpha", "beta", "eps", "epsilon", "ord", "threshold"), _REAL),
    **dict.fromkeys(("begin", "end", "k", "repeats"), _SIZE),
    **dict.fromkeys(("ceil_mode", "center", "count_include_pad", "from_end", "is_causal",
                     "keepdims", "scale"), _FLAG),
    **dict.fromkeys(("channel_axis", "groups", "num_groups", "start", "step"), _INT),
    **dict.fromkeys(("axes", "axis", "dilation", "output_padding", "padding", "pool_size",
                     "strides"), _INTS),
    **dict.fromkeys(("data_layout", "device", "dst_vdevice", "kernel_layout", "layout",
                     "out_layout"), _TEXT),
    **dict.fromkeys(("dtype", "out_dtype"), _TYPE),
    **dict.fromkeys(("fill_value", "max", "min", "pad_value", "scalar"), _SCALAR),
    "approximate": _choice("none", "tanh"),
    "divisor": _NOT_ZERO,
    "indices_or_sections": _Kind("an integer or a size, or several", _one_or_more(_is_size)),
    "output_size": _Kind("an integer, or an integer or None for each axis",
                         _one_or_more(_or_none(_is_int))),
    "pad_mode": _choice("constant", "reflect", "replicate", "circular"),
    "pad_width": _Kind("a pair of integers for each axis", _several(_several(_is_size))),
    "scalar_side": _choice("left", "right"),
    "shape": _Kind("a tuple of integers and sizes", _several(_is_size)),
}  # fmt: skip
_NAMED: dict[str, _Kind] = {
    "flag": _FLAG,
    "int": _INT,
    "int or None": _INT_OR_NONE,
    "ints": _INTS,
    "tuple": _TUPLE,
    "real": _REAL,
    "not zero": _NOT_ZERO,
    "scalar": _SCALAR,
    "size": _SIZE,
    "text": _TEXT,
    "type": _TYPE,
}
_OF_DEFAULT: dict[type, _Kind] = {
    bool: _FLAG,
    int: _INT,
    float: _REAL,
    str: _TEXT,
    tuple: _TUPLE,
}


def kind_of(row: OpRow, name: str) -> _Kind:
    """The kind of an attribute: as its row states, by its name, or by the type of its default."""
    stated = row.kinds.get(name)
    if stated is not None:
        return _choice(*stated) if isinstance(stated, tuple) else _NAMED[stated]
    default: object = row.attrs[name]
    kind = _KINDS.get(name) or _OF_DEFAULT.get(type(default))
    if kind is None:
        raise LookupError(f"{row.name}: state the kind of the attribute {name} in OpRow.kinds")
    return kind


def check_attribute(row: OpRow, name: str, value: Any) -> None:
    """Raise GraphError BW401 unless an attribute value is of the attribute's kind."""
    default = row.attrs[name]
    if value is None and default is None:
        return
    kind = kind_of(row, name)
    if kind.fits(value):
        return
    close = get_close_matches(value, kind.words, 1) if isinstance(value, str) else []
    remedy = f"did you mean {close[0]!r}?" if close else f"write {name}= with {kind.wanted}"
    raise GraphError(
        f"{row.name}: {name} is {value!r}, which is not {kind.wanted}", code="BW401", help=remedy
    )
