"""Support code written in Python: struct layouts, loops, functions that define their callees."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from blockwright.codegen.llvm.binding import compile_assembly
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import ANY, BYTE_ARRAY, DLTENSOR, MANAGED_TENSOR, OBJECT
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Field, Global, StructType
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.codegen.rt.threadpool_state import GATE, JOB, THREADS
from blockwright.target import Target

_C = {
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "ptr": ctypes.c_void_p,
}
_MIXED = StructType(tuple(Field(t, t) for t in ("i8", "i64", "i16", "i32", "ptr")))


@pytest.mark.parametrize(
    "struct", [_MIXED, ANY, BYTE_ARRAY, DLTENSOR, OBJECT, GATE.type, JOB.type, THREADS.type]
)
def test_offsets_are_those_of_c(struct: StructType) -> None:
    fields = [(f.name, _C[str(f.type)]) for f in struct.fields]
    layout: Any = type("Layout", (ctypes.Structure,), {"_fields_": fields})
    for field in struct.fields:
        assert struct.offset(field.name) == getattr(layout, field.name).offset
    size = ctypes.sizeof(layout)
    assert struct.size == -(-size // struct.align) * struct.align


def test_structs_nest() -> None:
    assert MANAGED_TENSOR.offset("context") == DLTENSOR.size == 48
    assert MANAGED_TENSOR.size == 64


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        ANY.offset("nothing")


_COUNTER = Global("counter", StructType((Field("before", "i32"), Field("count", "i32")), align=64))


@routine("triangle", "i64", "i64")
def _triangle(e: FunctionEmitter, n: Value) -> Value:
    """n + (n - 1) + … + 1, and counts its calls."""
    e.update("add", _COUNTER.record(e).place("count"), int_const(1, "i32"), "monotonic")
    with e.loop(n, int_const(0)) as loop:
        i, total = loop.values
        with e.guarded(e.compare("eq", i, 0)):
            loop.leave()
        loop.again(e.binary("sub", i, 1), e.binary("add", total, i))
    return total


@routine("twice", "i64", linkage="")
def _twice(e: FunctionEmitter) -> Value:
    four, five = _triangle.call(e, 4), _triangle.call(e, 5)
    return e.binary("add", four, five)


def test_a_call_defines_its_callee_once() -> None:
    module = ModuleEmitter(Target("x86-64-v2"))
    _twice.define(module)
    _twice.define(module)
    text = module.render()
    assert text.count("define ") == 2
    assert text.count("@counter = internal global [64 x i8]") == 1
    code = compile_assembly(text, "x86_64-unknown-linux-gnu", "x86-64-v2", "", "host", "a test")
    assert "$25, %eax" in code  # 4 + 3 + 2 + 1 + 5 + 4 + 3 + 2 + 1, computed by the optimizer
