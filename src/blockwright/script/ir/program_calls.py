"""Complete the calls between the tensor programs of a parsed module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention
from blockwright.graph.program_calls import callee_name, program_calls
from blockwright.script.core import Reporter
from blockwright.script.core.report import wrap
from blockwright.script.tir.arguments import number_behind
from blockwright.script.tir.classic import origin
from blockwright.script.tir.values import to_expr
from blockwright.support import BlockwrightError, Diagnostic

FunctionT = TypeVar("FunctionT", bound=ir.Node)


def with_complete_calls(
    functions: Mapping[str, FunctionT], reporter: Reporter
) -> dict[str, FunctionT]:
    """The functions, with the arguments of calls in the form in which a call passes them.

    A Python number gets the type of its parameter, and the handle of a buffer parameter stands for
    the address of its memory.
    """
    return {name: _complete(f, functions, reporter) for name, f in functions.items()}


def _complete(
    function: FunctionT, functions: Mapping[str, ir.Node], reporter: Reporter
) -> FunctionT:
    if not isinstance(function, ir.PrimFunc) or not program_calls(function):
        return function
    return function.replace(body=_Arguments(function, functions, reporter)(function.body))


class _Arguments(ir.Mutator):
    def __init__(
        self, func: ir.PrimFunc, functions: Mapping[str, ir.Node], reporter: Reporter
    ) -> None:
        super().__init__()
        self.func, self.functions, self.reporter = func, functions, reporter
        self.mapped = dict(func.buffer_map)

    def rewrite_Call(self, node: ir.Call) -> ir.Call:
        name = callee_name(node) if node.op == "call_global" else None
        if name is None:
            return self.descend(node)
        args = [self._address(arg) for arg in node.args]
        callee = self.functions.get(name)
        if isinstance(callee, ir.PrimFunc):
            convention = calling_convention(callee)
            numbers = (*convention.scalars, *convention.symbols)
            if len(args) == 1 + len(convention.buffers) + len(numbers):
                for place, var in enumerate(numbers, len(args) - len(numbers)):
                    args[place] = self._typed(args[place], var, node)
        return node.replace(args=tuple(args))

    def _address(self, argument: ir.Expr) -> ir.Expr:
        buffer = self.mapped.get(argument) if isinstance(argument, ir.Var) else None
        return self(argument) if buffer is None else origin(buffer)

    def _typed(self, argument: ir.Expr, parameter: ir.Var, call: ir.Call) -> ir.Expr:
        number = number_behind(argument)
        if number is None or parameter.type.is_handle:
            return argument
        try:
            return to_expr(number, parameter.type)
        except BlockwrightError as error:
            problem = wrap(error)
            text = f"argument {parameter.name}: {problem.message}"
            found = Diagnostic(problem.code, text, call.span or self.func.span, problem.help)
            self.reporter.found.append(found)
            return argument
