"""Data types: element kind, bit width and vector lanes; interned, so `is` compares them."""

from __future__ import annotations

import re
from typing import ClassVar

import ml_dtypes
import numpy as np

from blockwright.support import IRError

# Floats of at most 8 bits → width; each is a kind of its own, with the name that ml_dtypes has.
_MINIFLOATS = {
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn": 4,
}
_KINDS = ("int", "uint", "float", "bfloat", *_MINIFLOATS, "bool", "handle")
_FLOATS = frozenset({"float", "bfloat", *_MINIFLOATS})
_PATTERN = re.compile(
    rf"(?:(bool|handle|{'|'.join(_MINIFLOATS)}|e4m3_float8|e5m2_float8)"
    r"|(uint|int|bfloat|float)(\d+))(?:x(\d+))?\Z"
)
_OLDER = {"e4m3_float8": "float8_e4m3fn", "e5m2_float8": "float8_e5m2"}  # names of older programs
_FLOAT_BITS = (16, 32, 64)
_SHORT = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4",
}  # fmt: skip


class DType:
    """An interned data type such as ``float32``, ``int8x16`` or ``handle``.

    Attributes:
        kind: int, uint, float, bfloat, bool, handle, or the name of a float of at most 8 bits.
        bits: width of one element (bool counts 1, handle 64).
        lanes: vector length, 1 for scalars.
    """

    __slots__ = ("bits", "kind", "lanes", "name")
    _interned: ClassVar[dict[tuple[str, int, int], DType]] = {}

    kind: str
    bits: int
    lanes: int
    name: str

    def __new__(cls, kind: str, bits: int, lanes: int = 1) -> DType:
        key = (kind, bits, lanes)
        result = cls._interned.get(key)
        if result is None:
            if kind not in _KINDS or bits < 1 or lanes < 1:
                raise IRError(f"no such data type: {key}", code="BW201")
            result = object.__new__(cls)
            result.kind, result.bits, result.lanes = kind, bits, lanes
            base = f"{kind}{bits}" if kind in ("int", "uint", "float", "bfloat") else kind
            result.name = base if lanes == 1 else f"{base}x{lanes}"
            cls._interned[key] = result
        return result

    def __reduce__(self) -> tuple[object, ...]:
        return (DType, (self.kind, self.bits, self.lanes))

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    @property
    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_index(self) -> bool:
        """Whether index expressions have this type: signed, of at least 32 bits."""
        return self.kind == "int" and self.bits >= 32

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOATS

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_handle(self) -> bool:
        return self.kind == "handle"

    @property
    def is_scalar(self) -> bool:
        return self.lanes == 1

    @property
    def element(self) -> DType:
        """The type of one lane."""
        return self if self.lanes == 1 else DType(self.kind, self.bits)

    def with_lanes(self, lanes: int) -> DType:
        return self if lanes == self.lanes else DType(self.kind, self.bits, lanes)

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory: bool takes one byte, sub-byte types round up."""
        return max(1, (self.bits + 7) // 8)

    @property
    def min_value(self) -> int:
        """Smallest integer of an integer or bool type."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max_value(self) -> int:
        """Largest integer of an integer or bool type."""
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type of one element (sub-byte integers widen to int8/uint8)."""
        name = self.element.name
        if self.is_bool:
            return np.dtype(np.bool_)
        if name == "bfloat16" or self.kind in _MINIFLOATS:
            return np.dtype(getattr(ml_dtypes, name))
        if self.is_int and self.bits < 8:
            return np.dtype("int8" if self.kind == "int" else "uint8")
        if self.is_handle:
            raise IRError("a handle has no NumPy type", code="BW201")
        try:
            return np.dtype(name)
        except TypeError:
            raise IRError(f"{name} has no NumPy type", code="BW201") from None


def dtype_of(spec: str | DType | np.dtype[np.generic]) -> DType:
    """`DType` for a name such as ``"float32"``, ``"f32"``, ``"int32x4"`` or a NumPy type."""
    if isinstance(spec, DType):
        return spec
    try:
        text = spec if isinstance(spec, str) else np.dtype(spec).name
    except (TypeError, ValueError):
        raise IRError(
            f"{spec!r} is not a data type", code="BW201", help='write for example "float32"'
        ) from None
    text = _SHORT.get(text, text)
    match = _PATTERN.match(text)
    if match is None:
        help = 'write for example "float32", "int8", "bool" or "float32x8"'
        raise IRError(f"{text!r} is not a data type", code="BW201", help=help)
    fixed, kind, bits, lanes = match.groups()
    count = int(lanes) if lanes else 1
    if (kind == "float" and int(bits) not in _FLOAT_BITS) or (kind == "bfloat" and bits != "16"):
        raise IRError(
            f"there is no type {text!r}",
            code="BW201",
            help="floating-point types: float16, bfloat16, float32, float64, "
            + ", ".join(_MINIFLOATS),
        )
    if fixed is not None:
        kind = _OLDER.get(fixed, fixed)
        width = {"bool": 1, "handle": 64, **_MINIFLOATS}[kind]
        return DType(kind, width, count)
    return DType(kind, int(bits), count)


BOOL = DType("bool", 1)
INT8 = DType("int", 8)
INT32 = DType("int", 32)
INT64 = DType("int", 64)
UINT8 = DType("uint", 8)
FLOAT16 = DType("float", 16)
FLOAT32 = DType("float", 32)
FLOAT64 = DType("float", 64)
HANDLE = DType("handle", 64)
