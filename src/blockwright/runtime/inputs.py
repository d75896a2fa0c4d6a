"""Arguments as the model takes them: constants among tensors, lists and dicts of tensors.

What a model takes besides single tensors is fixed when it is imported: `None`, numbers, strings,
and how containers nest. Compiled code takes the tensors one after the other. A call may give these
alone, or arguments as the model takes them; constants must then be the ones of the import.
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
    """How the arguments of a model nest.

    Attributes:
        names: of the arguments, in order.
        positional: how many of them may be given by position; the others come first by name.
        trees: per argument its structure, as in `results`, with {"constant": text} for a value
            that is no tensor.
    """

    names: tuple[str, ...]
    positional: int
    trees: tuple[Any, ...]

    @property
    def is_flat(self) -> bool:
        """Whether the arguments are tensors, one after the other."""
        return list(self.trees) == list(range(len(self.trees))) and self.positional == len(
            self.names
        )

    def nests(
        self, inputs: tuple[Any, ...], named: Mapping[str, Any], parameters: list[str]
    ) -> bool:
        """Whether a call gives arguments as the model takes them, not the tensors alone."""
        if len(inputs) + len(named) != len(parameters) or set(named) - set(parameters):
            return True
        return any(v is None or isinstance(v, (list, tuple, Mapping, str)) for v in inputs)

    def tensors(
        self, function: str, inputs: tuple[Any, ...], named: Mapping[str, Any], count: int
    ) -> tuple[Any, ...]:
        """The tensors of a call, in the order in which compiled code takes them.

        Raises: ArgumentError: BW701 arguments missing or too many, BW702 of another structure or
            with another constant.
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
                help="pass all arguments of the example, also those that are no "
                "tensors, or the tensors alone",
            )
        result: list[Any] = [None] * count
        for name, tree in zip(self.names, self.trees, strict=True):
            collect(tree, given[name], f"argument {name} of {function}", result, _WORDS)
        return tuple(result)
