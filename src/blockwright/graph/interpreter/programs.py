"""Calls that write into memory: tensor programs and library functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.graph.interpreter.foreign import Foreign, foreign_in, to_foreign
from blockwright.graph.interpreter.memory import Memory
from blockwright.graph.interpreter.symbols import Symbols
from blockwright.graph.interpreter.values import Array, Shape, is_array
from blockwright.graph.updates import overwritten_arguments
from blockwright.interp import Limit, interpret
from blockwright.support import InterpretError


def allocated(info: ir.Info, symbols: Symbols) -> Array:
    """Memory of a stated result; its elements are unlikely values until they are written.

    Raises: InterpretError BW757 if the annotation does not determine shape and type.
    """
    if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
        raise InterpretError(
            "a result in memory of its own needs a shape and a type",
            code="BW757",
            help='write out_sinfo=R.Tensor((n, 4), "float32")',
        )
    dtype = info.dtype.numpy()
    unlikely: Any = info.dtype.max_value - 1 if info.dtype.is_int else float("nan")
    return np.full(symbols.extents(info.shape), unlikely, dtype)


def run_program(
    module: ir.IRModule,
    program: Any,
    args: tuple[Any, ...],
    scalars: Shape,
    call: ir.GraphCall,
    symbols: Symbols,
    memory: Memory,
    packed: Mapping[str, Callable[..., Any]],
    limit: Limit | None,
) -> Any:
    """Run the tensor program of a call_tir or call_tir_inplace and return its results.

    The stated results are new arrays, except those that overwrite an argument: the caller's array
    if the argument stands for one, else a copy. Of a value that is passed a second time, the second
    is a copy.
    """
    assert isinstance(program, ir.PrimFunc)
    assert isinstance(call.args[0], ir.GlobalVar)
    over = overwritten_arguments(call)
    indices = [over.get(k, -1) for k in range(len(call.out_info))]
    fresh = [allocated(i, symbols) for i, at in zip(call.out_info, indices, strict=True) if at < 0]
    mapped, operands = dict(program.buffer_map), list(args)
    for at in sorted(over.values()):
        operands[at] = memory.taken(args[at])
    arrays, numbers = iter([*operands, *fresh]), iter(scalars)
    order = [next(arrays) if p in mapped else next(numbers) for p in program.params]
    interpret(
        module,
        *order,
        entry=call.args[0].name,
        outputs=len(fresh),
        packed=foreign_in(program, packed),
        limit=limit,
    )
    rest = iter(fresh)
    results = tuple(next(rest) if at < 0 else memory.value_of(operands[at]) for at in indices)
    return results[0] if len(results) == 1 else results


def run_library(
    function: Foreign,
    args: tuple[Any, ...],
    attrs: Mapping[str, Any],
    call: ir.GraphCall,
    symbols: Symbols,
) -> Any:
    """Call a library function with the arguments, the memory of its results, and the attributes.

    Arrays that a Python function receives as arguments are read-only.
    """
    results = tuple(allocated(info, symbols) for info in call.out_info)
    if function.takes_dlpack:
        function.run(*map(to_foreign, (*args, *results)), *attrs.values())
    else:
        function.call(*map(_read_only, args), *results, *attrs.values())
    return results[0] if len(results) == 1 else results


def _read_only(value: Any) -> Any:
    if not is_array(value):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
