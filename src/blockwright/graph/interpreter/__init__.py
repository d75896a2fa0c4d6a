"""Reference interpreter of graph functions: runs them on NumPy arrays with every check enabled.

It follows docs/semantics.md; every stage of the pipeline and compiled code are tested against it.
`run` executes bindings, control flow and calls; `operators`, `programs` and `foreign` the calls of
operators, tensor programs and foreign functions. `values` lists the kinds of values, and `symbols`
binds symbols to sizes and checks every value against its annotation, stated and deduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blockwright import ir
from blockwright.graph.interpreter.run import Interpreter, Options
from blockwright.graph.interpreter.values import Function, Shape
from blockwright.interp import Limit
from blockwright.support import InterpretError

__all__ = ["Function", "Shape", "interpret_graph"]


def interpret_graph(
    program: ir.IRModule | ir.GraphFunction,
    *arguments: Any,
    entry: str = "main",
    exact: bool = False,
    packed: Mapping[str, Callable[..., Any]] | None = None,
    depth: int = 1000,
    limit: Limit | None = None,
) -> Any:
    """Run a graph function and return its value.

    Args:
        program: a function, or a module whose function `entry` is run.
        arguments: one per parameter: NumPy arrays for tensors, tuples or lists of ints for shapes,
            numbers for scalars, tuples for tuples, functions for functions. The function may write
            into an array only through `call_tir_inplace` and foreign functions.
        exact: compute operators by their tensor programs instead of their NumPy oracles.
        packed: Python functions by name for calls of foreign functions. A name that is neither here
            nor registered with `interp.register_packed` is looked up in `tvm_ffi`, if it is loaded.
        depth: largest number of graph functions that may be active at once.
        limit: limit on the loop iterations of tensor programs; BW757 beyond it.

    Returns: an array, a `Shape`, a NumPy scalar, a tuple of these, a function, or whatever a
    foreign function returned. A function can be called with arguments like these.

    Raises:
        ValidationError: a function that the run reaches is not valid.
        InterpretError: BW701 to BW709 for arguments, as in a compiled call, and for a match_cast
            that fails; BW711 unknown foreign function, BW768 calls nested deeper than `depth`,
            BW769 a value that does not have its annotation; errors of tensor programs.
    """
    if isinstance(program, ir.GraphFunction):
        entry = program.name
        program = ir.IRModule({entry: program})
    found = program.functions.get(entry)
    if not isinstance(found, ir.GraphFunction):
        names = [n for n, f in program.functions.items() if isinstance(f, ir.GraphFunction)]
        raise InterpretError(
            f"the module has no graph function {entry!r}",
            code="BW701",
            help=f"graph functions: {', '.join(names) or 'none'}",
        )
    run = Interpreter(program, Options(exact, packed or {}, depth, limit))
    return run.function(entry)(*arguments)
