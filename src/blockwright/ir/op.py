"""Table of builtin operations: one row for each name that `Call.op` may have.

`kind` states what passes may assume: "pure" calls can be moved, duplicated and dropped; "read"
calls depend on memory; "effect" calls must stay in place. `elementwise` operations apply to each
vector lane and have the type of their first argument unless `result` says otherwise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from blockwright.ir.dtype import BOOL, DType
from blockwright.support import IRError

Kind = Literal["pure", "read", "effect"]


class Builtin(msgspec.Struct, frozen=True):
    """One builtin operation.

    Attributes:
        name: as `Call.op` has it.
        kind: what passes may assume.
        arity: number of arguments; -1 for any.
        elementwise: whether it applies to each vector lane.
        result: type: "first" that of argument 0, "bool", or "given" by the call.
        operands: per argument, its element type and its lanes per lane of argument 0; empty where
            the types are free.
        together: lanes of argument 0 that belong together; it has a multiple of them.
    """

    name: str
    kind: Kind
    arity: int
    elementwise: bool = False
    result: str = "first"
    operands: tuple[tuple[str, int], ...] = ()
    together: int = 1


def _rows() -> dict[str, Builtin]:
    rows: list[Builtin] = []
    unary = (
        "exp exp_ftz exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan "
        "sinh cosh tanh asinh acosh atanh erf erfc erfcx erfinv lgamma digamma i0 i0e i1 i1e "
        "sigmoid floor ceil round trunc nearbyint abs "
        "popcount clz bitwise_not"
    ).split()
    rows += [Builtin(name, "pure", 1, elementwise=True) for name in unary]
    binary = (
        "pow atan2 fmod hypot copysign nextafter bitwise_and bitwise_or bitwise_xor "
        "shift_left shift_right"
    ).split()
    rows += [Builtin(name, "pure", 2, elementwise=True) for name in binary]
    tests = ("isnan", "isinf", "isfinite")
    rows += [Builtin(name, "pure", 1, elementwise=True, result="bool") for name in tests]
    rows += [
        Builtin("fma", "pure", 3, elementwise=True),
        Builtin("if_then_else", "pure", 3),  # lazy: only the taken side is evaluated
        Builtin("likely", "pure", 1, elementwise=True),
        # its argument, as an index (semantics.md)
        Builtin("as_index", "pure", 1, elementwise=True),
        Builtin("checked_index", "pure", 2),  # argument 0; fails unless 0 <= it < argument 1
        Builtin("checked_divisor", "pure", 1),  # its argument; fails if it is 0
        Builtin("reinterpret", "pure", 1, elementwise=True, result="given"),
        Builtin("vector_reduce_add", "pure", 1, result="given"),
        Builtin("vector_reduce_min", "pure", 1, result="given"),
        Builtin("vector_reduce_max", "pure", 1, result="given"),
        Builtin("address_of", "read", 1, result="given"),
        Builtin("prefetch", "effect", -1, result="given"),
        *(
            Builtin(f"atomic_{how}", "effect", 2, result="given")
            for how in ("add", "mul", "min", "max", "and", "or")
        ),
        Builtin("tvm_storage_sync", "effect", 1, result="given"),  # a barrier
        Builtin("call_packed", "effect", -1, result="given"),
        Builtin("call_extern", "effect", -1, result="given"),
        Builtin("call_pure_extern", "pure", -1, result="given"),
        Builtin("call_global", "effect", -1, result="given"),
        Builtin("ret", "effect", -1, result="given"),
        Builtin("break", "effect", 0, result="given"),
        Builtin("continue", "effect", 0, result="given"),
        Builtin("print", "effect", -1, result="given"),
        Builtin("assume", "effect", 1, result="given"),  # undefined unless the condition holds
        Builtin("undef", "pure", 0, result="given"),  # an unspecified value
        Builtin("constant_data", "pure", 1, result="given"),  # pointer to a constant of the module
        Builtin("tensor", "read", 1, result="given"),  # a DLTensor view of a whole buffer
        # FFI values of host programs (codegen.llvm.objects); the first argument of the others is
        # the slot of the result
        Builtin("object_slot", "effect", 0, result="given"),
        Builtin("object_value", "read", 1, result="given"),  # the value in a slot, as an argument
        Builtin("copy_object", "effect", 2, result="given"),
        Builtin("call_object", "effect", -1, result="given"),
        Builtin("make_closure", "effect", -1, result="given"),
        Builtin("load_object", "effect", 3, result="given"),
        Builtin("check_object", "effect", 5, result="given"),
        Builtin("clear_object", "effect", 1, result="given"),
        # of a late result: its memory, from its handle, type and sizes; and the size of an axis of
        # memory that the caller lends for it, from its handle, the axis, and the size without any
        Builtin("result_memory", "effect", -1, result="given"),
        Builtin("result_size", "read", 3, result="given"),
    ]
    return {row.name: row for row in rows}


OPS: dict[str, Builtin] = _rows()


def register_op(row: Builtin) -> None:
    """Add a row; hardware-operation files register target-specific operations this way."""
    known = OPS.get(row.name)
    if known is not None and known != row:
        raise IRError(f"builtin operation {row.name!r} is already defined", code="BW227")
    OPS[row.name] = row


def op_row(name: str) -> Builtin:
    """The row of a builtin operation; raises BW206 for an unknown name."""
    try:
        return OPS[name]
    except KeyError:
        raise IRError(f"unknown builtin operation {name!r}", code="BW206") from None


def op_has_effect(name: str) -> bool:
    """Whether calls of the operation must stay in place; true for unknown operations."""
    row = OPS.get(name)
    return row is None or row.kind == "effect"


def result_type(row: Builtin, first: DType) -> DType:
    """Result type of a call whose type follows from its row."""
    return BOOL.with_lanes(first.lanes) if row.result == "bool" else first
