"""Emit atomic updates: an `atomicrmw` where its semantics match, else a compare-and-swap loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockwright.codegen.llvm import types
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Call, DType, Var, atomic_value
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

_INTEGER = {"atomic_add": "add", "atomic_and": "and", "atomic_or": "or"}
_SIGNED = {"atomic_min": "min", "atomic_max": "max"}


def update(c: ExprEmitter, expr: Call, pointer: Value) -> Value:
    """Update the element at `pointer` and return the old value, with monotonic ordering."""
    operand = expr.args[1]
    dtype = operand.dtype
    if dtype.lanes > 1 or dtype.is_handle or dtype.nbytes * 8 != _memory_bits(dtype):
        raise BuildError(
            f"{expr.op} of {dtype}", code="BW611", help="update single elements of whole bytes"
        )
    value = c.value(operand)
    op = _instruction(expr.op, dtype)
    if op is None:
        old = _compare_and_swap(c, expr, pointer, value)
    else:
        old = c.e.update(op, pointer, value, "monotonic")
    return old if expr.dtype is dtype else int_const(0, types.value_type(expr.dtype))


def _memory_bits(dtype: DType) -> int:
    return 8 if dtype.is_bool else dtype.bits


def _instruction(name: str, dtype: DType) -> str | None:
    """The equivalent `atomicrmw` operation for elements that are stored unchanged in memory.

    Its float minima and maxima do not match, because they drop or may drop NaN.
    """
    if dtype.is_bool:
        return None
    if dtype.is_float:
        return "fadd" if name == "atomic_add" and dtype.bits >= 32 else None
    if name in _SIGNED:
        return ("" if dtype.kind == "int" else "u") + _SIGNED[name]
    return _INTEGER.get(name)


def _compare_and_swap(c: ExprEmitter, expr: Call, pointer: Value, value: Value) -> Value:
    """Recompute the new element until the old one was not changed concurrently."""
    e, dtype = c.e, expr.args[1].dtype
    memory, bits, align = types.memory_type(dtype), f"i{dtype.nbytes * 8}", dtype.nbytes
    with e.loop(e.load(bits, pointer, align, order="monotonic")) as loop:
        (seen,) = loop.values
        in_memory = e.bitcast(seen, memory)
        old = e.compare("ne", in_memory, 0) if dtype.is_bool else in_memory
        element, operand = Var("old", dtype), Var("value", dtype)
        c.context.variables[element], c.context.variables[operand] = old, value
        with c.scope():
            new = c.value(atomic_value(expr.replace(args=(expr.args[0], operand)), element))
        stored = e.convert("zext", new, memory) if dtype.is_bool else new
        wanted = e.bitcast(stored, bits)
        found, swapped = e.compare_exchange(pointer, seen, wanted, "monotonic monotonic", weak=True)
        with e.guarded(swapped):
            loop.leave()
        loop.again(found)
    return old
