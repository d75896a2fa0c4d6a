"""Evaluate a scalar expression outside a program, by the rules of expressions inside one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blockwright.interp.lanes import Env, RunState
from blockwright.interp.run import call_global
from blockwright.interp.stmt import StmtCompiler
from blockwright.ir import Expr, Var, free_vars

Scalar = Callable[[Mapping[Var, Any]], Any]


def scalar_function(expr: Expr) -> Scalar:
    """Compile an expression to a function of the values of its variables.

    Integer variables are index variables: Python ints, which do not wrap. The result is a Python
    int for an index expression, and a NumPy scalar of the expression's type for any other.

    Raises: InterpretError: BW757 for an expression that the interpreter cannot run. The function
        raises the errors of expressions, such as BW754.
    """
    compiler = StmtCompiler(call_global)
    slots = {v: compiler.define(v, is_value=not v.dtype.is_int) for v in free_vars(expr)}
    is_index = expr.dtype.is_int and compiler.is_index(expr)
    compiled = compiler.index(expr) if is_index else compiler.value(expr)
    state = RunState(None, vectorize=False, races=False, order=None, packed={})

    def evaluate(values: Mapping[Var, Any]) -> Any:
        env: Env = [None] * compiler.count
        env[1] = state
        for var, slot in slots.items():
            env[slot] = values[var]
        return compiled(env)

    return evaluate
