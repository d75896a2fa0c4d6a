"""LLVM values and types as text; values carry their types, and constants are exact."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec


class Value(msgspec.Struct, frozen=True):
    """An LLVM value: its type and its text."""

    type: str
    text: str

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


VOID = Value("void", "")
"""The result of a call without one."""

NULL = Value("ptr", "null")
FALSE, TRUE = Value("i1", "false"), Value("i1", "true")


def vector(element: str, lanes: int) -> str:
    """The type of a vector of `lanes` elements; for one lane, the element type itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_of(type_: str) -> str:
    return type_[1:-1].split(" x ", 1)[1] if type_.startswith("<") else type_


def lanes_of(type_: str) -> int:
    return int(type_[1:].split(" x ", 1)[0]) if type_.startswith("<") else 1


def nbytes_of(type_: str) -> int:
    """Size in bytes of a number or vector; 0 for elements smaller than a byte."""
    element = element_of(type_)
    sizes = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}
    size = sizes.get(element) or int(element.removeprefix("i")) // 8
    return size * lanes_of(type_)


def suffix(type_: str) -> str:
    """The overload suffix of intrinsic names: v8f32 for <8 x float>."""
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
    element = element_of(type_)
    name = short.get(element, element)
    return name if lanes_of(type_) == 1 else f"v{lanes_of(type_)}{name}"


def int_const(value: int, type_: str = "i64") -> Value:
    element = element_of(type_)
    text = ("true" if value else "false") if element == "i1" else str(value)
    return Value(type_, _splat(type_, text))


def float_const(value: float, type_: str) -> Value:
    """An exact floating-point constant: LLVM reads the bit pattern (of a double for `float`)."""
    element = element_of(type_)
    if element == "half":
        text = f"0xH{struct.unpack('<H', _half_bytes(value))[0]:04X}"
    else:
        number = _round_to_single(value) if element == "float" else value
        text = f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    return Value(type_, _splat(type_, text))


def is_nan_const(value: Value) -> bool:
    """Whether the value is a floating-point constant, scalar or splat, that is NaN."""
    if value.text.startswith("%") or "0x" not in value.text:
        return False
    digits = value.text.rstrip(")").rpartition("0x")[2]
    if digits.startswith("H"):
        return int(digits[1:], 16) & 0x7FFF > 0x7C00
    return int(digits, 16) & (1 << 63) - 1 > 0x7FF << 52


def _half_bytes(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", float("inf") if value > 0 else float("-inf"))


def _round_to_single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _splat(type_: str, text: str) -> str:
    return text if lanes_of(type_) == 1 else f"splat ({element_of(type_)} {text})"


def lane_consts(values: Sequence[int], element: str) -> Value:
    """A constant vector of the given integers; a scalar for a single one."""
    if len(values) == 1:
        return Value(element, str(values[0]))
    items = ", ".join(f"{element} {v}" for v in values)
    return Value(f"<{len(values)} x {element}>", f"<{items}>")
