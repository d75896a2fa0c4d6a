"""LLVM types of IR types, and conversions between them.

A bool is i1 as a value and one byte in memory; elements of 4 and 2 bits are i4 and i2 as values and
take a byte each, too. bfloat16 and the floats of at most 8 bits are represented by integers with
their bits, and computed in single precision. Their conversions are a few integer
instructions that round to nearest even on every processor, preserve denormals and need no library.
float16 is LLVM's half; it is computed in single precision too and rounded after each operation. x86
processors without F16C convert it by integer instructions as well: LLVM would call a compiler
runtime that the library is not linked with.
"""

from __future__ import annotations

import struct

import msgspec

from blockwright import ir
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.real import Real
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import (
    Value,
    element_of,
    float_const,
    int_const,
    lanes_of,
    suffix,
    vector,
)
from blockwright.ir import DType
from blockwright.support import BuildError

_FLOATS = {16: "half", 32: "float", 64: "double"}


def value_type(dtype: DType) -> str:
    """The type of a value in registers."""
    return vector(_element(dtype), dtype.lanes)


def _element(dtype: DType) -> str:
    if dtype.kind == "float" and dtype.bits in _FLOATS:
        return _FLOATS[dtype.bits]
    if dtype.is_bool:
        return "i1"
    if dtype.is_handle:
        return "ptr"
    if dtype.is_int and dtype.bits not in (2, 4, 8, 16, 32, 64):
        raise BuildError(
            f"{dtype} is not supported on this target",
            code="BW610",
            help="use an integer type of 2, 4, 8, 16, 32 or 64 bits",
        )
    return f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The type of an element, or of a vector of elements, in memory."""
    return vector("i8" if dtype.bits < 8 else _element(dtype), dtype.lanes)


def from_memory(e: FunctionEmitter, value: Value, dtype: DType) -> Value:
    """A value as it is in registers; one that is there already stays as it is."""
    if value.type == value_type(dtype):
        return value
    if dtype.is_bool:
        return e.compare("ne", value, int_const(0, value.type))
    return e.convert("trunc", value, value_type(dtype)) if dtype.bits < 8 else value


def to_memory(e: FunctionEmitter, value: Value, dtype: DType) -> Value:
    """A value as it is in memory."""
    if dtype.bits >= 8:
        return value
    return e.convert("sext" if dtype.kind == "int" else "zext", value, memory_type(dtype))


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic on the type happens in single precision."""
    return dtype.is_float and dtype.bits < 32


def constant(value: float | int, dtype: DType) -> Value:
    """A constant of any numeric type."""
    type_ = value_type(dtype)
    if dtype.kind == "float":
        return float_const(float(value), type_)
    if dtype.is_float:
        bits = int.from_bytes(dtype.numpy().type(value).tobytes(), "little")
        return int_const(bits, type_)
    return int_const(int(value), type_)


# -------------------------------------------------------------------- narrow floats
class _Format(msgspec.Struct, frozen=True):
    """Bit layout of a floating-point format of at most 16 bits.

    Attributes:
        bits, mantissa, bias: width, bits of the fraction, exponent bias.
        special: bits of the smallest magnitude that is not finite; beyond all bits if there is
            none.
        overflow: single-precision bits of the smallest magnitude that becomes `beyond`.
        beyond, nan: bits of too large magnitudes, and of NaN.
        unsigned: whether there is no negative zero, whose bits are those of the only NaN.
    """

    bits: int
    mantissa: int
    bias: int
    special: int
    overflow: int
    beyond: int
    nan: int
    unsigned: bool = False

    @property
    def shift(self) -> int:
        """Number of mantissa bits that single precision has in addition."""
        return 23 - self.mantissa

    @property
    def magnitude(self) -> int:
        """A mask of all bits but the sign."""
        return (1 << self.bits - 1) - 1


_HALF = _Format(16, 10, 15, 0x7C00, 0x477FF000, 0x7C00, 0x7E00)
_MINIFLOATS = {
    "float8_e4m3fn": _Format(8, 3, 7, 0x7F, 0x43F00000, 0x7F, 0x7F),
    "float8_e4m3fnuz": _Format(8, 3, 8, 0x80, 0x43780000, 0x80, 0x80, unsigned=True),
    "float8_e5m2": _Format(8, 2, 15, 0x7C, 143 << 23, 0x7C, 0x7E),
    "float8_e5m2fnuz": _Format(8, 2, 16, 0x80, 0x47700000, 0x80, 0x80, unsigned=True),
    "float4_e2m1fn": _Format(4, 1, 1, 8, 0x40C00000, 7, 8),
}
_POWERS = "float8_e8m0fnu"


def _emulated(e: FunctionEmitter, dtype: DType) -> _Format | None:
    """The format of a narrow float that the target has no conversions for; None for bfloat16."""
    if dtype.kind == "bfloat":
        return None
    if dtype.kind != "float":
        return _MINIFLOATS[dtype.kind]
    target = e.module.target
    return _HALF if target.arch == "x86_64" and not target.has("f16c") else None


def widen(e: FunctionEmitter, value: Value, dtype: DType) -> Value:
    """Convert a narrow float to single precision, exactly."""
    lanes = dtype.lanes
    single = vector("float", lanes)
    if dtype.kind == _POWERS:
        return e.bitcast(_widen_power(e, e.convert("zext", value, vector("i32", lanes))), single)
    form = _emulated(e, dtype)
    if form is None and dtype.kind == "float":
        return e.convert("fpext", value, single)
    bits = e.bitcast(value, vector(f"i{dtype.bits}", lanes))
    wide = e.convert("zext", bits, vector("i32", lanes))
    if form is None:
        return e.bitcast(_shift(e, "shl", wide, 16), single)
    return e.bitcast(_widen_bits(e, wide, form), single)


def _widen_bits(e: FunctionEmitter, wide: Value, form: _Format) -> Value:
    """Single-precision bits of a narrow float given by its zero-extended bits.

    A denormal is completed to a normal number, from which its leading one is subtracted. No
    operand or result is denormal in single precision, so the result does not depend on the
    processor's modes (denormals as zeros).
    """
    magnitude = _with(e, "and", wide, form.magnitude)
    bits = _shift(e, "shl", magnitude, form.shift)
    rebias = 127 - form.bias
    anchor = rebias + 1 << 23
    single = vector("float", lanes_of(wide.type))
    completed = Real(e, e.bitcast(_with(e, "add", bits, anchor), single))
    denormal = (completed - _float_of(anchor)).bits().v
    tiny = e.compare("ult", magnitude, int_const(1 << form.mantissa, wide.type))
    number = e.select(tiny, denormal, _with(e, "add", bits, rebias << 23))
    edge = e.compare("uge", magnitude, int_const(form.special, wide.type))
    plain = e.select(edge, _with(e, "or", bits, 0x7F800000), number)
    sign = _with(e, "and", wide, form.magnitude + 1)
    result = e.binary("or", plain, _shift(e, "shl", sign, 32 - form.bits))
    if not form.unsigned:
        return result
    nan = e.compare("eq", wide, int_const(form.nan, wide.type))
    return e.select(nan, int_const(_QUIET_NAN, wide.type), result)


_QUIET_NAN = 0x7FC00000
_TWO_TO_M127 = 1 << 22
"""Single-precision bits of 2⁻¹²⁷, the smallest power of two that `float8_e8m0fnu` has."""


def _widen_power(e: FunctionEmitter, wide: Value) -> Value:
    """Single-precision bits of a power of two, given by its exponent plus 127; 255 is NaN."""
    bits = _shift(e, "shl", wide, 23)
    least = e.compare("eq", wide, int_const(0, wide.type))
    bits = e.select(least, int_const(_TWO_TO_M127, wide.type), bits)
    nan = e.compare("eq", wide, int_const(255, wide.type))
    return e.select(nan, int_const(_QUIET_NAN, wide.type), bits)


def _narrow_power(e: FunctionEmitter, bits: Value) -> Value:
    """Round to the nearest power of two; 0 and negative numbers become NaN.

    Halfway cases are rounded up, and so is all that lies between the two smallest powers.
    """
    exponent = _shift(e, "lshr", _with(e, "add", bits, 1 << 22), 23)
    small = e.compare("ult", bits, int_const(1 << 23, bits.type))
    up = e.compare("ugt", bits, int_const(_TWO_TO_M127, bits.type))
    tiny = e.select(up, int_const(1, bits.type), int_const(0, bits.type))
    result = e.select(small, tiny, exponent)
    # Of unsigned numbers, 0 - 1 is the largest, and negative floats follow NaN.
    valid = e.compare("ult", _with(e, "sub", bits, 1), int_const((255 << 23) - 1, bits.type))
    return e.select(valid, result, int_const(255, bits.type))


_DENORMAL = 0x20  # of VFPCLASSPS: denormal numbers of either sign


def narrow(e: FunctionEmitter, value: Value, dtype: DType) -> Value:
    """Round single precision to a narrow float, to nearest even."""
    lanes = lanes_of(value.type)
    if dtype.kind == _POWERS:
        power = _narrow_power(e, e.bitcast(value, vector("i32", lanes)))
        return e.convert("trunc", power, value_type(dtype))
    form = _emulated(e, dtype)
    if form is None and dtype.kind == "float":
        return e.convert("fptrunc", value, value_type(dtype))
    if form is not None:
        result = _narrow_bits(e, e.bitcast(value, vector("i32", lanes)), form)
    elif lanes in (16, 32) and e.module.target.has("avx512bf16", "avx512dq"):
        return _narrow_by_instruction(e, value)
    else:
        result = _bfloat_bits(e, value)
    stored = e.convert("trunc", result, vector(f"i{dtype.bits}", lanes))
    return e.bitcast(stored, value_type(dtype))


def _bfloat_bits(e: FunctionEmitter, value: Value) -> Value:
    """Round single precision to bfloat16, in integers of 32 bits."""
    bits = e.bitcast(value, vector("i32", lanes_of(value.type)))
    odd = _with(e, "and", _shift(e, "lshr", bits, 16), 1)
    rounded = e.binary("add", bits, _with(e, "add", odd, 0x7FFF))
    quiet = _with(e, "or", bits, 0x400000)
    nan = e.compare("uno", value, value)
    return _shift(e, "lshr", e.select(nan, quiet, rounded), 16)


def _narrow_by_instruction(e: FunctionEmitter, value: Value) -> Value:
    """Round one or two registers to bfloat16 by an instruction, unless an element is denormal.

    AVX512-BF16 takes denormals for zeros, which other processors do not.
    """
    lanes, nothing = lanes_of(value.type), Value(value.type, "poison")
    parts = [value]
    if lanes > 16:
        parts = [e.shuffle(value, nothing, range(at, at + 16)) for at in (0, 16)]
    kind, mask = int_const(_DENORMAL, "i32"), vector("i1", 16)
    tests = [e.intrinsic("x86.avx512.fpclass.ps.512", mask, part, kind) for part in parts]
    found = tests[0] if lanes == 16 else e.binary("or", tests[0], tests[1])
    denormal = e.compare("ne", e.bitcast(found, "i16"), int_const(0, "i16"))
    name = "cvtneps2bf16" if lanes == 16 else "cvtne2ps2bf16"

    def at_once() -> Value:
        rounded = e.intrinsic(f"x86.avx512bf16.{name}.512", vector("bfloat", lanes), *parts[::-1])
        return e.bitcast(rounded, vector("i16", lanes))

    def in_integers() -> Value:
        return e.convert("trunc", _bfloat_bits(e, value), vector("i16", lanes))

    return e.choose(denormal, in_integers, at_once, likely=False)


def _narrow_bits(e: FunctionEmitter, bits: Value, form: _Format) -> Value:
    """Round single-precision bits to a narrow float; too large values become `form.beyond`."""
    shift, rebias = form.shift, 127 - form.bias
    sign = _with(e, "and", bits, 0x80000000)
    bits = e.binary("xor", bits, sign)
    odd = _with(e, "and", _shift(e, "lshr", bits, shift), 1)
    rebased = _with(e, "add", bits, (1 << (shift - 1)) - 1 - (rebias << 23))
    normal = _shift(e, "lshr", e.binary("add", rebased, odd), shift)
    # Adding a power of two whose last place is the smallest denormal rounds denormals in hardware.
    anchor = rebias + shift + 1 << 23
    single = vector("float", lanes_of(bits.type))
    moved = Real(e, e.bitcast(bits, single)) + _float_of(anchor)
    denormal = _with(e, "sub", moved.bits().v, anchor)
    small = e.compare("ult", bits, int_const(rebias + 1 << 23, bits.type))
    result = e.select(small, denormal, normal)
    large = e.compare("uge", bits, int_const(form.overflow, bits.type))
    result = e.select(large, int_const(form.beyond, bits.type), result)
    nan = e.compare("ugt", bits, int_const(255 << 23, bits.type))
    result = e.select(nan, int_const(form.nan, bits.type), result)
    if form.unsigned:
        zero = e.compare("eq", result, int_const(0, bits.type))
        sign = e.select(zero, int_const(0, bits.type), sign)
    return e.binary("or", result, _shift(e, "lshr", sign, 32 - form.bits))


def _float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _shift(e: FunctionEmitter, op: str, value: Value, by: int) -> Value:
    return e.binary(op, value, int_const(by, value.type))


def _with(e: FunctionEmitter, op: str, value: Value, mask: int) -> Value:
    signed = mask - (1 << 32) if mask >= 1 << 31 else mask
    return e.binary(op, value, int_const(signed, value.type))


def _to_odd(e: FunctionEmitter, value: Value) -> Value:
    """Round double to single precision, to odd; rounding again to a narrow type is then exact."""
    single = vector("float", lanes_of(value.type))
    near = e.convert("fptrunc", value, single)
    back = Real(e, e.convert("fpext", near, value.type))
    inexact = back.test("one", Real(e, value))
    beyond = abs(back).test("ogt", abs(Real(e, value)))
    bits = Real(e, near).bits()
    truncated = e.select(beyond, (bits - 1).v, bits.v)
    odd = _with(e, "or", truncated, 1)
    return e.bitcast(e.select(inexact, odd, bits.v), single)


@routine("__truncdfhf2", "half", "double")
def _round_to_half(e: FunctionEmitter, value: Value) -> Value:
    """Round double to float16, to nearest even."""
    return narrow(e, _to_odd(e, value), ir.dtype_of("float16"))


def define_rounding_to_half(module: ModuleEmitter) -> None:
    """Define the function that LLVM calls to round double to float16, if it may do so.

    The emitter never calls it. LLVM folds fptrunc(copysign(x, y)) to copysign(fptrunc(x), y) and
    then converts y to the type of the result: a double to half by a call of this function.
    """
    if module.target.arch == "x86_64" and module.mentions("double", "half"):
        _round_to_half.define(module)
        used = f"[1 x ptr] [{_round_to_half.address(module).typed}]"
        module.add_global_once(
            "llvm.compiler.used",
            f'@llvm.compiler.used = appending global {used}, section "llvm.metadata"',
        )


# -------------------------------------------------------------------- casts
def cast(e: FunctionEmitter, value: Value, old: DType, new: DType) -> Value:
    """A conversion: floats to integers truncate and saturate (NaN becomes 0), integers wrap."""
    if old is new:
        return value
    if old.is_handle or new.is_handle:
        return _cast_handle(e, value, old, new)
    if old.is_float and new.is_float:
        return _cast_float(e, value, old, new)
    if old.is_float:
        return _float_to_int(e, value, old, new)
    if new.is_float:
        wide = "float" if is_narrow(new) else element_of(value_type(new))
        if is_narrow(new) and old.bits > 16:
            wide = "double"  # 32-bit integers are exact there, so only the last step rounds
        op = "sitofp" if old.kind == "int" else "uitofp"
        real = e.convert(op, value, vector(wide, new.lanes))
        if not is_narrow(new):
            return real
        return narrow(e, _to_odd(e, real) if wide == "double" else real, new)
    type_ = value_type(new)
    if new.is_bool:
        return e.compare("ne", value, int_const(0, value.type))
    if new.bits == old.bits:
        return value
    if new.bits < old.bits:
        return e.convert("trunc", value, type_)
    return e.convert("sext" if old.kind == "int" else "zext", value, type_)


def _cast_float(e: FunctionEmitter, value: Value, old: DType, new: DType) -> Value:
    if is_narrow(old):
        single = widen(e, value, old)
        if is_narrow(new):
            return narrow(e, single, new)
        return e.convert("fpext", single, value_type(new))
    if is_narrow(new):
        return narrow(e, _to_odd(e, value) if old.bits == 64 else value, new)
    op = "fpext" if new.bits > old.bits else "fptrunc"
    return e.convert(op, value, value_type(new))


def _float_to_int(e: FunctionEmitter, value: Value, old: DType, new: DType) -> Value:
    if is_narrow(old):
        value = widen(e, value, old)
    if new.is_bool:
        return Real(e, value).test("une", 0.0)
    name = "fptosi" if new.kind == "int" else "fptoui"
    type_ = value_type(new)
    return e.intrinsic(f"{name}.sat.{suffix(type_)}.{suffix(value.type)}", type_, value)


def _cast_handle(e: FunctionEmitter, value: Value, old: DType, new: DType) -> Value:
    if old.is_handle and new.bits == 64 and new.is_int:
        return e.convert("ptrtoint", value, "i64")
    if new.is_handle and old.bits == 64 and old.is_int:
        return e.convert("inttoptr", value, "ptr")
    raise BuildError(
        f"cannot convert {old} to {new}",
        code="BW611",
        help="handles convert to and from 64-bit integers only",
    )
