"""Memory of the caller that a run overwrites: `call_tir_inplace` is a function of values otherwise.

Values are never changed. In a module that updates memory, the parameters of the function that is
run are copies; the copy stands for the caller's array until a `call_tir_inplace` overwrites it,
then its result does. A value that a branch, a recursive function, a loop, a closure or a foreign
function hands on is `detached`: it stands for no array of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from blockwright import ir
from blockwright.graph.call_graph import recursive_functions
from blockwright.graph.interpreter.values import Array, Bound, Function, is_array, is_tuple
from blockwright.graph.updates import overwritten_arguments
from blockwright.runtime.results import require_unshared


class Memory:
    """The arrays of the caller and the values that stand for them."""

    def __init__(self, module: ir.IRModule) -> None:
        self.module = module
        self._given: dict[int, tuple[str, Array]] = {}  # by number of the parameter
        self._owners: dict[int, tuple[Array, Array]] = {}  # id of a value → itself, the array

    @cached_property
    def _updates(self) -> bool:
        """Whether a function of the module updates memory."""
        functions = (f for f in self.module.functions.values() if isinstance(f, ir.GraphFunction))
        calls = (call for f in functions for call in ir.collect(f, ir.GraphCall))
        return any(overwritten_arguments(call) for call in calls)

    @cached_property
    def _recursive(self) -> frozenset[ir.Node]:
        return frozenset(self.module[name] for name in recursive_functions(self.module))

    def begun(self, params: Sequence[ir.GraphVar], arguments: Sequence[Any]) -> Sequence[Any]:
        """The values of the parameters of a run; only tensors stand for their arrays."""
        self._given, self._owners = {}, {}
        if not self._updates:
            return arguments
        for number, (param, value) in enumerate(zip(params, arguments, strict=True)):
            if is_array(value) and isinstance(param.info, ir.TensorInfo):
                self._given[number] = (param.name, value)
        return [
            self.value_of(value) if number in self._given else _copied(value)
            for number, value in enumerate(arguments)
        ]

    def value_of(self, array: Any) -> Any:
        """A value with the content of an array that a program has written, or of an argument."""
        if not any(array is given for _, given in self._given.values()):
            return array
        value = array.copy()
        self._owners[id(value)] = value, array
        return value

    def taken(self, value: Array) -> Array:
        """Memory with the content of a value, for a program that overwrites it.

        Raises: ArgumentError BW706 for an array of the caller that meets another one.
        """
        _, array = self._owners.pop(id(value), (value, None))
        if array is None:
            return value.copy()
        arrays = [(number, given) for number, (_, given) in self._given.items()]
        own = next(pair for pair in arrays if pair[1] is array)
        require_unshared([own], arrays, lambda number: f"argument {self._given[number][0]}")
        return array

    def handed_on(self, callee: Any, result: Any, run: Callable[..., Any]) -> Any:
        """The result of a call; detached unless the caller's memory is known in compiled code.

        It is if the call is inlined: that of a function of this module, which `run` runs, that is
        not recursive and was not handed on itself.
        """
        while isinstance(callee, Bound) and not callee.detached:
            callee = callee.function
        known = isinstance(callee, Function) and callee.run == run and not callee.detached
        return result if known and callee.function not in self._recursive else detached(result)

    def returned(self, value: Any) -> Any:
        """A result: the caller's array instead of the value that stands for it."""
        if is_tuple(value):
            return tuple(map(self.returned, value))
        return self._owners[id(value)][1] if id(value) in self._owners else value


def detached(value: Any) -> Any:
    """A value without the memory of the caller; so are those that a function in it returns."""
    if is_tuple(value):
        return tuple(map(detached, value))
    if isinstance(value, (Function, Bound)):
        return msgspec.structs.replace(value, detached=True)
    return value.view() if is_array(value) else value


def _copied(value: Any) -> Any:
    """A tuple with copies of its arrays; other values unchanged."""
    if not is_tuple(value):
        return value
    return tuple(v.copy() if is_array(v) else _copied(v) for v in value)
