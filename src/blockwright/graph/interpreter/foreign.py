"""Calls of foreign functions: Python functions of the caller, or global functions of tvm_ffi."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.graph.interpreter.values import Shape, is_array, is_scalar, is_tuple
from blockwright.interp.objects import FFI_FUNCTIONS
from blockwright.interp.run import registered_packed
from blockwright.runtime.arrays import as_numpy
from blockwright.runtime.errors import FFI_ERRORS, translate
from blockwright.runtime.ffi import loaded_function, tvm_ffi
from blockwright.runtime.frameworks import bind, of_function
from blockwright.support import InterpretError


class Foreign(msgspec.Struct, frozen=True):
    """A foreign function; one of `tvm_ffi` takes DLPack tensors, a Python one NumPy arrays."""

    call: Callable[..., Any]
    takes_dlpack: bool

    def run(self, *args: Any) -> Any:
        """Call the function; errors with a coded message become this package's."""
        try:
            return self.call(*args)
        except FFI_ERRORS as error:
            translated = translate(error)
            if translated is error:
                raise
            raise translated from error


def find_foreign(name: str, packed: Mapping[str, Callable[..., Any]]) -> Foreign:
    """The function of that name.

    Raises: InterpretError BW711 if there is none; ArtefactError BW808 for an operator of a
        framework that is not installed, or has no such operator.
    """
    given = packed.get(name) or registered_packed(name) or FFI_FUNCTIONS.get(name)
    if given is not None:
        return Foreign(given, False)
    operator = of_function(name)
    if operator is not None:
        framework, symbol = operator
        bind(framework, [symbol])
    loaded = loaded_function(name)
    if loaded is not None:
        return Foreign(loaded, True)
    raise InterpretError(
        f"there is no function {name!r}",
        code="BW711",
        help=f"pass packed={{{name!r}: function}}, or register a global function with tvm_ffi",
    )


def called_foreign(
    name: str, function: Foreign, args: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Call a function with values; attributes are passed by name to Python, else by position.

    Raises: InterpretError BW770 if it writes to an argument, which is a value that others use.
    """
    before = [a.copy() if is_array(a) else None for a in args]
    if function.takes_dlpack:
        result = from_foreign(function.run(*map(to_foreign, args), *attrs.values()))
    else:
        plain = (a.item() if is_scalar(a) else a for a in args)
        result = function.call(*plain, **attrs)
    for position, (array, old) in enumerate(zip(args, before, strict=True)):
        if old is not None and array.tobytes() != old.tobytes():
            raise InterpretError(
                f"{name} wrote to argument {position}, which call_packed does not declare",
                code="BW770",
                help="call it in a tensor program, T.call_packed(name, T.tensor(x[0])), and that "
                "program with R.call_tir_inplace",
            )
    return result


def foreign_in(
    program: ir.PrimFunc, packed: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """The functions that a tensor program calls by name, as functions of NumPy arrays.

    Raises: InterpretError BW711 if one is missing.
    """
    result = dict(packed)
    for call in ir.collect(program.body, ir.Call):
        if call.op != "call_packed" or not isinstance(call.args[0], ir.StringImm):
            continue
        name = call.args[0].value
        function = find_foreign(name, packed)
        result[name] = _on_arrays(function) if function.takes_dlpack else function.call
    return result


def _on_arrays(function: Foreign) -> Callable[..., Any]:
    return lambda *args: from_foreign(function.run(*map(to_foreign, args)))


def to_foreign(value: Any) -> Any:
    """A value as `tvm_ffi` passes it; tensors share their memory."""
    if is_array(value):
        return tvm_ffi().from_dlpack(value if value.flags.writeable else value.copy())
    if isinstance(value, Shape):
        return tvm_ffi().Shape(value)
    if is_scalar(value):
        return value.item()
    if is_tuple(value):
        return tuple(map(to_foreign, value))
    return value


def from_foreign(value: Any) -> Any:
    if isinstance(value, (list, tuple, tvm_ffi().Array)):
        return tuple(map(from_foreign, cast("Sequence[Any]", value)))
    return as_numpy(value)
