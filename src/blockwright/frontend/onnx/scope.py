"""Values by name in a graph, a control-flow body or a function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright.support import ImporterError


class Scope:
    """Names and their values.

    A body of control flow sees the names of the graph around it (`outer`); the body of a function
    does not.

    Attributes:
        values: name → value.
        opsets: domain → opset version of the nodes.
        attributes: attributes of the function call, to which nodes of its body refer.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        outer: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.opsets = opsets
        self.outer = outer
        self.attributes = attributes or {}
        self.values: dict[str, Any] = {}
        self._depends: dict[str, frozenset[str]] = {}

    def bind(self, name: str, value: Any, depends: frozenset[str]) -> None:
        """Give a name a value that depends on certain inputs of the model."""
        self.values[name] = value
        self._depends[name] = depends

    def value(self, name: str) -> Any:
        """The value of a name, here or in the graph around.

        Raises: ImporterError BW521 if no node before computes it.
        """
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise ImporterError(
                f"no node before computes the value {name!r}",
                code="BW521",
                help="onnx.checker.check_model says what is wrong with a model",
            )
        return self.outer.value(name)

    def depends(self, name: str) -> frozenset[str]:
        """The model inputs on which a value depends."""
        if name in self._depends or self.outer is None:
            return self._depends.get(name, frozenset())
        return self.outer.depends(name)
