"""ONNX graphs as lists of nodes, with the inputs of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
IR_VERSION = 10


class Node(msgspec.Struct, frozen=True):
    """A node of a graph.

    Attributes:
        inputs, outputs: names; "" for one that is left out.
        attrs: attributes; a graph is the attribute of a node that has branches.
        captures: values that its graphs read.
        exact: whether results of exact operands are exact; see `drawer`.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    captures: tuple[str, ...] = ()
    exact: bool = False

    @property
    def uses(self) -> set[str]:
        return {*self.inputs, *self.captures} - {""}

    def proto(self) -> Any:
        return helper.make_node(self.op, self.inputs, self.outputs, **self.attrs)


class Input(msgspec.Struct, frozen=True):
    """An input; its dimensions are numbers and names."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


class OnnxProgram(msgspec.Struct, frozen=True):
    """A graph and the arguments of its calls; the first call is the one it was drawn for."""

    opset: int
    inputs: tuple[Input, ...]
    constants: dict[str, Array]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    calls: tuple[dict[str, Array], ...]

    def model(self) -> Any:
        """The ModelProto."""
        inputs = [
            helper.make_tensor_value_info(i.name, kind_of(i.dtype), i.dims) for i in self.inputs
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        constants = [numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        nodes = [node.proto() for node in self.nodes]
        graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    def trimmed(self, outputs: Sequence[str]) -> Self:
        """The program with only these outputs and what they depend on."""
        needed, kept = set(outputs), list[Node]()
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= node.uses
                kept.append(node)
        inputs = tuple(i for i in self.inputs if i.name in needed)
        names = {i.name for i in inputs}
        return msgspec.structs.replace(
            self,
            inputs=inputs,
            constants={name: a for name, a in self.constants.items() if name in needed},
            nodes=tuple(reversed(kept)),
            outputs=tuple(outputs),
            calls=tuple({k: a for k, a in c.items() if k in names} for c in self.calls),
        )

    def given(self, call: Mapping[str, Array]) -> dict[str, Array]:
        """What is known before the first node: arguments and constants."""
        return {**self.constants, **call}


def kind_of(dtype: str) -> int:
    """The element type of ONNX."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
