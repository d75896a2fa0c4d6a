"""Nested arguments of a model: containers of tensors, and constants among them.

Everything except tensors is fixed when a model is imported: `None`, numbers, strings, and the
nesting of containers. Compiled code takes a flat sequence of tensors. A call may pass these tensors
alone, or the nested arguments of the model; their constants must equal those of the import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blockwright.runtime.results import Words, collect
from blockwright.support import ArgumentError

_ONE_VALUE = "compile the model again with this value; it is part of the compiled code"
_WORDS = Words(
    "the model takes",
    _ONE_VALUE,
    "pass arguments of the example's structure",
    "pass arguments of the example's structure",
)


class InputTree(msgspec.Struct, frozen=True):
    """The nesting of a model's arguments.

    Attributes:
        names: argument names, in order.
        positional: number of leading arguments that may be positional; the rest are by name.
        trees: the structure of each argument, as in `results`, with {"constant": text} for values
            that are not tensors.
    """

    names: tuple[str, ...]
    positional: int
    trees: tuple[Any, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the arguments are a flat sequence of tensors."""
        return list(self.trees) == list(range(len(self.trees))) and self.positional == len(
            self.names
        )

    def nests(
        self, inputs: tuple[Any, ...], named: Mapping[str, Any], parameters: list[str]
    ) -> bool:
        """Whether a call passes nested arguments instead of the tensors alone."""
        if len(inputs) + len(named) != len(parameters) or set(named) - set(parameters):
            return True
        return any(v is None or isinstance(v, (list, tuple, Mapping, str)) for v in inputs)

    def tensors(
        self, function: str, inputs: tuple[Any, ...], named: Mapping[str, Any], count: int
    ) -> tuple[Any, ...]:
        """The tensors of a call, in parameter order of the compiled code.

        Raises: ArgumentError: BW701 for missing or extra arguments, BW702 for another structure or
            another constant.
        """
        listed = ", ".join(self.names)
        if len(inputs) > self.positional:
            expected = f"{self.positional} argument{'s' * (self.positional != 1)}"
            raise ArgumentError(
                f"{function}: expected {expected} ({listed}), got {len(inputs)}",
                code="BW701",
                help="pass what the model takes, or its tensors alone, by position or by name",
            )
        given = dict(zip(self.names, inputs, strict=False))
        for name, value in named.items():
            if name not in self.names:
                raise ArgumentError(
                    f"there is no argument `{name}`", code="BW701", help=f"arguments: {listed}"
                )
            if name in given:
                raise ArgumentError(f"argument `{name}` is given twice", code="BW701")
            given[name] = value
        missing = [n for n in self.names if n not in given]
        if missing:
            raise ArgumentError(
                f"{function}: arguments missing: {', '.join(missing)}",
                code="BW701",
                help="pass all arguments of the example, including those that are not "
                "tensors, or the tensors alone",
            )
        result: list[Any] = [None] * count
        for name, tree in zip(self.names, self.trees, strict=True):
            collect(tree, given[name], f"argument {name} of {function}", result, _WORDS)
        return tuple(result)
