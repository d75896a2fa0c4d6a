"""Choose how a register tile multiplies: the types of its operands and its tensor intrinsic.

A micro-kernel handles one *group* of reduction steps at a time: one step for an outer product, as
many as a dot-product instruction sums into a lane otherwise. Panels of B hold the elements of a
group next to each other, so a group fills one lane of a vector register:

    float32 FMA       1 step     panels [n / NR][k][NR]
    vdpbf16ps         2 steps    panels [n / NR][k / 2][NR][2]
    vpdpbusd          4 steps    panels [n / NR][k / 4][NR][4]

All of these have 32 bits per lane and step, so blocking is the same for all: `GemmShape.depth`
counts groups.
"""

from __future__ import annotations

import functools

import msgspec

from blockwright.intrin import dot_tile_name, outer_product_name
from blockwright.intrin.hardware import DOT_PRODUCTS, MATRIX_PRODUCTS, DotProduct, Form
from blockwright.ir import DType, dtype_of
from blockwright.support import ScheduleError
from blockwright.target import Target


class MicroKernel(msgspec.Struct, frozen=True):
    """The types of a register tile's operands, and the instruction that multiplies them.

    Attributes:
        dot: name of a dot product, or of a product of tile registers, in `intrin.hardware`; "" for
            outer products.
        group: reduction steps per instruction.
        a, b: element types of the operands in registers and panels. They hold every value of the
            types in the program: narrow types are widened where no instruction takes them.
        accumulator: element type of the sums.
    """

    dot: str
    group: int
    a: DType
    b: DType
    accumulator: DType

    def intrin(self, rows: int, columns: int) -> str:
        """Name of the tensor intrinsic for a tile."""
        if self.dot:
            return dot_tile_name(self.dot, rows, columns)
        narrow = "" if self.b is self.accumulator else self.b.name
        return outer_product_name(rows, columns, self.accumulator.name, narrow)

    @property
    def unit(self) -> str:
        """The compute unit whose tile registers hold the operands; "" for vector registers."""
        row = MATRIX_PRODUCTS.get(self.dot)
        return "" if row is None else row.forms[row.tile][0].intrinsic.rpartition(".")[2]

    @property
    def shifts(self) -> int:
        """Instructions of an arithmetic unit that widen a vector of B, besides the load.

        A vector of bfloat16 is extended when it is loaded, then shifted. The conversion of float16
        includes the load; other units execute it.
        """
        return int(not self.dot and self.b.name == "bfloat16")

    @property
    def exact(self) -> bool:
        """Whether sums are the same in any order."""
        return self.accumulator.is_int


def slots_per_group(target: Target, kernel: MicroKernel) -> float:
    """Issue slots of an arithmetic unit per vector of sums; an FMA takes one.

    Arm multiplies odd and even elements of bfloat16 by one instruction each. Cores with AMX execute
    dot products of bfloat16 in vectors at a quarter of the rate of FMA.
    """
    found = _form(DOT_PRODUCTS[kernel.dot], target) if kernel.dot else None
    if found is None:
        return 1
    name = found[1].intrinsic
    rates = (u.per_cycle for u in target.compute_units if f".{u.name.removeprefix('v')}." in name)
    return target.core.arithmetic / next(rates, target.core.arithmetic) * (1 + bool(found[1].then))


def named_kernel(target: Target, a: DType, b: DType, accumulator: DType, dot: str) -> MicroKernel:
    """The micro-kernel of a plan: the one for these types that issues `dot`.

    Raises: ScheduleError BW340: no micro-kernel of the target does.
    """
    kernel = micro_kernel(target, a, b, accumulator)
    if dot in MATRIX_PRODUCTS:
        kernel = matrix_kernel(target, a, b, accumulator)
    if kernel is None or kernel.dot != dot:
        raise ScheduleError(
            f"the plan's dot={dot!r} does not multiply {a.name} by {b.name} into "
            f"{accumulator.name} on {target.name}",
            code="BW340",
            help="" if kernel is None else f"use dot={kernel.dot!r}",
        )
    return kernel


@functools.cache
def micro_kernel(target: Target, a: DType, b: DType, accumulator: DType) -> MicroKernel | None:
    """The fastest micro-kernel of vectors that computes `accumulator += a * b` exactly as written.

    Operands that no instruction takes are widened: integers to 16 bits, half-precision floats to
    float32. Panels keep half-precision elements, since a vector of them is widened by one or two
    instructions. Returns None if there is no micro-kernel.
    """
    if accumulator.is_float:
        return _of_floats(target, a, b, accumulator)
    for dot in DOT_PRODUCTS.values():
        if _takes(dot, a, b, accumulator) and _is_native(dot, target):
            return _of_dot(dot)
    pairs = DOT_PRODUCTS["dot2_s16s16"]
    if accumulator is dtype_of("int32") and all(_fits_int16(x) for x in (a, b)):
        return _of_dot(pairs)
    return None


def fastest_kernel(target: Target, a: DType, b: DType, accumulator: DType) -> MicroKernel | None:
    """The micro-kernel for a whole product: of tile registers if there are any, or of vectors."""
    types = a, b, accumulator
    return matrix_kernel(target, *types) or micro_kernel(target, *types)


@functools.cache
def matrix_kernel(target: Target, a: DType, b: DType, accumulator: DType) -> MicroKernel | None:
    """The micro-kernel of the target's tile registers for these types; None if it has none."""
    for row in MATRIX_PRODUCTS.values():
        form = row.form(row.tile, target.feature_set)
        if row.in_tiles and _takes(row, a, b, accumulator) and form is not None:
            return _of_dot(row)
    return None


def _of_floats(target: Target, a: DType, b: DType, accumulator: DType) -> MicroKernel | None:
    dot = DOT_PRODUCTS["dot2_bf16"]
    if _takes(dot, a, b, accumulator) and _is_native(dot, target):
        kernel = _of_dot(dot)
        if slots_per_group(target, kernel) <= kernel.group:
            return kernel
    if all(x is accumulator or x.name in ("bfloat16", "float16") for x in (a, b)):
        return MicroKernel("", 1, accumulator, b, accumulator)
    return None


def _of_dot(dot: DotProduct) -> MicroKernel:
    a, b, accumulator = (dtype_of(name) for name in (dot.a, dot.b, dot.accumulator))
    return MicroKernel(dot.name, dot.group, a, b, accumulator)


def _takes(dot: DotProduct, a: DType, b: DType, accumulator: DType) -> bool:
    return (dot.a, dot.b, dot.accumulator) == (a.name, b.name, accumulator.name)


def _is_native(dot: DotProduct, target: Target) -> bool:
    return _form(dot, target) is not None


def _form(dot: DotProduct, target: Target) -> tuple[int, Form] | None:
    lanes = max(1, target.vector_bits // dtype_of(dot.accumulator).bits)
    return dot.form(lanes, target.feature_set)


def _fits_int16(dtype: DType) -> bool:
    return dtype.name in ("int8", "uint8", "int16")


def offset_of(target: Target, a: DType, b: DType, accumulator: DType) -> int | None:
    """The number to add to a signed left operand so that a faster instruction takes it.

    x86 multiplies unsigned by signed bytes four at a time, but signed ones only as 16-bit pairs.
    """
    if (a.name, b.name, accumulator.name) != ("int8", "int8", "int32"):
        return None
    signed, mixed = DOT_PRODUCTS["dot4_s8s8"], DOT_PRODUCTS["dot4_u8s8"]
    return 128 if _is_native(mixed, target) and not _is_native(signed, target) else None
