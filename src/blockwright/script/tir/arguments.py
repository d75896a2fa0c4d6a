"""Arguments of calls of other programs of the module.

A Python number gets the type of the callee's parameter. The callee may follow the caller, so the
number is kept here until the module is complete (`script.ir.program_calls`).
"""

from __future__ import annotations

from typing import Any
from weakref import finalize

import numpy as np

from blockwright import ir
from blockwright.script.tir.values import call_type, to_expr

_numbers: dict[int, Any] = {}
"""Python numbers by the identity of the constant that stands for each, while it exists."""


def call_global(name: Any, *args: Any, dtype: str | ir.DType = "int32") -> ir.Expr:
    """A call of another program of the module: addresses of buffers, then scalars, then sizes."""
    values = (to_expr(name), *map(_argument, args))
    return ir.Call("call_global", values, call_type(dtype))


def number_behind(argument: ir.Expr) -> Any:
    """The Python number that an argument was written as; None for any other argument."""
    return _numbers.get(id(argument))


def _argument(value: Any) -> ir.Expr:
    result = to_expr(value)
    if isinstance(value, (bool, int, float, np.number)):
        _numbers[id(result)] = value
        finalize(result, _numbers.pop, id(result), None).atexit = False
    return result
