"""The neighbor of a floating-point number: `nextafter`, on the bits of the type itself.

Magnitudes are ordered as the integers of their bits. Computing in a wider type would find a
neighbor there, which rounds back to the number that it started from.
"""

from __future__ import annotations

import msgspec

from blockwright.codegen.llvm import types
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import Value, int_const, vector
from blockwright.ir import DType


class _Layout(msgspec.Struct, frozen=True):
    """The bits of a type.

    Attributes:
        sign: the mask of the sign; 0 if there are no negative numbers.
        largest: the largest magnitude that is not NaN.
        nan: the bits of a NaN.
        signed_zero: whether there is a negative zero; else its bits are those of the only NaN.
    """

    sign: int
    largest: int
    nan: int
    signed_zero: bool = True


_LAYOUTS = {
    "float16": _Layout(1 << 15, 0x7C00, 0x7E00),
    "bfloat16": _Layout(1 << 15, 0x7F80, 0x7FC0),
    "float32": _Layout(1 << 31, 0xFF << 23, 0x1FF << 22),
    "float64": _Layout(1 << 63, 0x7FF << 52, 0xFFF << 51),
    "float8_e4m3fn": _Layout(0x80, 0x7E, 0x7F),
    "float8_e4m3fnuz": _Layout(0x80, 0x7F, 0x80, signed_zero=False),
    "float8_e5m2": _Layout(0x80, 0x7C, 0x7E),
    "float8_e5m2fnuz": _Layout(0x80, 0x7F, 0x80, signed_zero=False),
    "float8_e8m0fnu": _Layout(0, 0xFE, 0xFF),
    "float4_e2m1fn": _Layout(8, 7, 0),
}


def nextafter(e: FunctionEmitter, x: Value, y: Value, dtype: DType) -> Value:
    """The neighbor of x towards y; y if both are equal, NaN if one is NaN."""
    layout = _LAYOUTS[dtype.element.name]
    own = vector(f"i{dtype.bits}", dtype.lanes)
    wide = vector("i64" if dtype.bits == 64 else "i32", dtype.lanes)
    magnitude = ((1 << dtype.bits) - 1) & ~layout.sign

    def const(value: int) -> Value:
        width = 64 if dtype.bits == 64 else 32
        return int_const(value - (1 << width) if value >> width - 1 else value, wide)

    def bits_of(value: Value) -> Value:
        bits = e.bitcast(value, own)
        return e.convert("zext", bits, wide) if own != wide else bits

    def negative(bits: Value) -> Value:
        return e.compare("ne", e.binary("and", bits, const(layout.sign)), const(0))

    def ordered(bits: Value) -> Value:
        """An integer in the order of the numbers; that of both zeros is 0."""
        size = e.binary("and", bits, const(magnitude))
        return e.select(negative(bits), e.binary("sub", const(0), size), size)

    def is_nan(bits: Value) -> Value:
        if not layout.signed_zero:
            return e.compare("eq", bits, const(layout.nan))
        size = e.binary("and", bits, const(magnitude))
        return e.compare("ugt", size, const(layout.largest))

    a, b = bits_of(x), bits_of(y)
    low, high = ordered(a), ordered(b)
    step = e.select(e.compare("slt", low, high), const(1), const(-1))
    moved = e.binary("add", low, step)
    below = e.compare("slt", moved, const(0))
    size = e.select(below, e.binary("sub", const(0), moved), moved)
    if layout.signed_zero:  # a step to zero keeps the sign
        zero = e.compare("eq", moved, const(0))
        below = e.select(zero, negative(a), below)
    sign = e.select(below, const(layout.sign), const(0))
    result = e.select(e.compare("eq", low, high), b, e.binary("or", size, sign))
    result = e.select(is_nan(b), const(layout.nan), result)
    result = e.select(is_nan(a), const(layout.nan), result)
    if own != wide:
        result = e.convert("trunc", result, own)
    return e.bitcast(result, types.value_type(dtype))
