"""The `R` dialect: graph functions in Relax script syntax.

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y

Every name that is not defined below is a graph operator: `R.nn.gelu(x)` calls "nn.gelu".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from blockwright import ir
from blockwright.ir import DType, dtype_of
from blockwright.script.core import (
    Reporter,
    Script,
    caller_environment,
    decorated_function,
    in_module_class,
)
from blockwright.script.relax.infos import Callable_ as Callable
from blockwright.script.relax.infos import Object, Prim, Shape, Tensor, Tuple
from blockwright.script.relax.parser import RelaxParser
from blockwright.script.relax.values import (
    ExternFunc,
    OpName,
    call_dps_library,
    call_packed,
    call_pure_packed,
    call_tir,
    call_tir_inplace,
    const,
    constant,
    dataflow,
    device,
    get_shape_value,
    hint_on_device,
    match_cast,
    op,
    output,
    prim_value,
    shape,
    to_vdevice,
)
from blockwright.script.relax.values import str_ as str
from blockwright.script.relax.values import tuple_ as tuple
from blockwright.script.tir import DeferredFunction
from blockwright.script.tir.evaluator import ModuleRef
from blockwright.script.tir.macro import macro
from blockwright.script.tir.values import function_attributes
from blockwright.support.stack import deep

call_dps_packed = call_dps_library
outputs = output

__all__ = [
    "Callable", "ExternFunc", "Object", "Prim", "Shape", "Tensor", "Tuple", "call_dps_library",
    "call_dps_packed", "call_packed", "call_pure_packed", "call_tir", "call_tir_inplace", "const",
    "constant", "dataflow", "device", "dtype", "func_attr", "function",
    "get_shape_value", "hint_on_device", "macro", "match_cast", "op", "output", "outputs",
    "prim_value", "shape", "str", "to_vdevice", "tuple",
]  # fmt: skip


class FunctionOptions:
    """The decorator `@R.function`, with or without options."""

    def __init__(self, private: bool = False, pure: bool = True) -> None:
        self.private, self.pure = private, pure

    def __call__(
        self,
        func: Any = None,
        *,
        private: bool = False,
        pure: bool = True,
        check_well_formed: bool = True,
        name: Any = None,
    ) -> Any:
        """Parse a function into a `GraphFunction`.

        `private` functions get no global symbol; `pure=False` declares side effects; `name` is the
        name of the function where it is no name in Python, or has another meaning in a program.
        """
        if func is None:
            return FunctionOptions(private, pure)
        return self._parse(func)

    def _parse(self, func: FunctionType) -> ir.GraphFunction | DeferredFunction:
        frame, env = caller_environment(2)
        if in_module_class(func, frame):
            return DeferredFunction(func)
        script = decorated_function(func, env)
        script.env = {"cls": ModuleRef(), **script.env}
        return self._parsed(script)

    @deep
    def _parsed(self, script: Script) -> ir.GraphFunction:
        reporter = Reporter(script)
        parser = RelaxParser(script, reporter)
        result = parser.function(script.function, self.private, self.pure)
        if result is None:
            reporter.fail()
        return result


function = FunctionOptions()


def func_attr(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Attributes of the function."""
    return function_attributes(attrs, "R.func_attr")


def dtype(name: Any) -> DType:
    return dtype_of(name)


def __getattr__(name: Any) -> OpName:
    if name.startswith("__"):
        raise AttributeError(name)
    return OpName(name)
