"""PythonFunctions: register the Python functions that a graph calls, for debugging.

For `def show(x, y): …`, `R.call_dps_library(show, (x,), …)` becomes
`R.call_dps_library("blockwright.python.0.show", (x,), …)`. Calls by name stay as they are.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_dps_library("show", (x,), out_sinfo=R.Tensor((4,), "float32"))
        return y

The functions live in this process only, so such a model cannot be saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import map_calls
from blockwright.runtime.arrays import to_numpy
from blockwright.runtime.ffi import tvm_ffi

PYTHON_FUNCTIONS = "python_functions"
"""Module attribute: names of the Python functions that the module calls."""
_numbers = itertools.count()


@graph_pass
def python_functions(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Register each Python function as a packed function, and call it by that name."""
    called: list[str] = []

    def registered(operator: str, name: str, call: ir.GraphCall) -> ir.GraphCall:
        callee = call.args[0]
        if not isinstance(callee, ir.ExternFunc) or callee.function is None:
            return call
        called.append(callee.name)
        unique = f"blockwright.python.{next(_numbers)}.{callee.name}"
        register: Any = tvm_ffi().register_global_func
        register(unique, _on_arrays(callee.function))
        return call.replace(args=(ir.ExternFunc(unique), *call.args[1:]))

    module = map_calls(module, ("call_dps_library",), registered)
    if not called:
        return module
    return module.replace(attrs={**module.attrs, PYTHON_FUNCTIONS: called})


def _on_arrays(function: Callable[..., Any]) -> Callable[..., None]:
    """A function that calls another one with NumPy arrays in place of tensors."""

    def call(*args: Any) -> None:
        function(*(to_numpy(a) if hasattr(a, "__dlpack__") else a for a in args))

    return call
