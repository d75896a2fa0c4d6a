"""Builtin operations that `Call.op` may name: one row each.

`kind` decides what passes may assume: "pure" calls can be moved, duplicated and dropped; "read"
calls depend on memory; "effect" calls stay where they are. `elementwise` rows work lane by lane on
vectors and take the type of their first argument unless `result` says otherwise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from blockwright.ir.dtype import BOOL, DType
from blockwright.support import IRError

Kind = Literal["pure", "read", "effect"]


class OpRow(msgspec.Struct, frozen=True):
    """One builtin operation: name, effect kind, argument count (-1 for any), lane-wise or not."""

    name: str
    kind: Kind
    arity: int
    elementwise: bool = False
    result: str = "first"  # "first": type of argument 0; "bool"; "given": the call states it


def _rows() -> dict[str, OpRow]:
    rows: list[OpRow] = []
    unary = (
        "exp exp_ftz exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan "
        "sinh cosh tanh asinh acosh atanh erf sigmoid floor ceil round trunc nearbyint abs "
        "popcount clz bitwise_not"
    ).split()
    rows += [OpRow(name, "pure", 1, elementwise=True) for name in unary]
    binary = (
        "pow atan2 fmod hypot copysign nextafter bitwise_and bitwise_or bitwise_xor "
        "shift_left shift_right"
    ).split()
    rows += [OpRow(name, "pure", 2, elementwise=True) for name in binary]
    tests = ("isnan", "isinf", "isfinite")
    rows += [OpRow(name, "pure", 1, elementwise=True, result="bool") for name in tests]
    rows += [
        OpRow("fma", "pure", 3, elementwise=True),
        OpRow("if_then_else", "pure", 3),  # lazy: only the taken side is evaluated
        OpRow("likely", "pure", 1, elementwise=True),
        OpRow("as_index", "pure", 1, elementwise=True),  # its argument, as an index (semantics.md)
        OpRow("checked_index", "pure", 2),  # argument 0; the call fails unless 0 <= it < argument 1
        OpRow("checked_divisor", "pure", 1),  # its argument; the call fails where that is 0
        OpRow("reinterpret", "pure", 1, elementwise=True, result="given"),
        OpRow("vector_reduce_add", "pure", 1, result="given"),
        OpRow("vector_reduce_min", "pure", 1, result="given"),
        OpRow("vector_reduce_max", "pure", 1, result="given"),
        OpRow("address_of", "read", 1, result="given"),
        OpRow("prefetch", "effect", -1, result="given"),
        *(
            OpRow(f"atomic_{how}", "effect", 2, result="given")
            for how in ("add", "mul", "min", "max", "and", "or")
        ),
        OpRow("tvm_storage_sync", "effect", 1, result="given"),  # a barrier
        OpRow("call_packed", "effect", -1, result="given"),
        OpRow("call_extern", "effect", -1, result="given"),
        OpRow("call_pure_extern", "pure", -1, result="given"),
        OpRow("call_global", "effect", -1, result="given"),
        OpRow("ret", "effect", -1, result="given"),
        OpRow("break", "effect", 0, result="given"),
        OpRow("continue", "effect", 0, result="given"),
        OpRow("print", "effect", -1, result="given"),
        OpRow("assume", "effect", 1, result="given"),  # undefined unless the condition holds
        OpRow("undef", "pure", 0, result="given"),  # an unspecified value
        OpRow("constant_data", "pure", 1, result="given"),  # pointer to a constant of the module
        OpRow("tensor", "read", 1, result="given"),  # a DLTensor view of a whole buffer
    ]
    return {row.name: row for row in rows}


OPS: dict[str, OpRow] = _rows()


def register_op(row: OpRow) -> None:
    """Add a row; hardware-operation files use this for target-specific operations."""
    known = OPS.get(row.name)
    if known is not None and known != row:
        raise IRError(f"builtin operation {row.name!r} is already defined", code="BW227")
    OPS[row.name] = row


def op_row(name: str) -> OpRow:
    """The row of a builtin operation."""
    try:
        return OPS[name]
    except KeyError:
        raise IRError(f"unknown builtin operation {name!r}", code="BW206") from None


def op_has_effect(name: str) -> bool:
    """Whether calls stay where they are: nothing is known of operations without a row."""
    row = OPS.get(name)
    return row is None or row.kind == "effect"


def result_type(row: OpRow, first: DType) -> DType:
    """Result type of a row whose type is not stated by the call."""
    return BOOL.with_lanes(first.lanes) if row.result == "bool" else first
