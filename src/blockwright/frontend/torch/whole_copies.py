"""Convert what `copy_` assigns before PyTorch rewrites it.

PyTorch's functional form takes the source of an assignment to a whole buffer for the new value of
the buffer, in the type and shape of the source:

    self.buffer.copy_(x)
→   self.buffer.copy_(x.to(self.buffer.dtype).expand(self.buffer.shape))
"""

from __future__ import annotations

import copy
import warnings
from typing import Any


def with_whole_copies(program: Any) -> Any:
    """The program in which sources of assignments have the type and shape of their targets."""
    if not any(_differs(node) for node in program.graph.nodes):
        return program
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own classes
        graph = copy.deepcopy(program.graph)
        for node in list(graph.nodes):
            if _differs(node):
                _convert(graph, node)
        graph.lint()
        module = torch.fx.GraphModule(program.graph_module, graph)
        return program._update(module, program.graph_signature)


def _differs(node: Any) -> bool:
    """Whether a node assigns a tensor of another type or shape to one of known shape."""
    if str(node.target) != "aten.copy_.default" or not hasattr(node.args[1], "meta"):
        return False
    target, source = (arg.meta["val"] for arg in node.args[:2])
    if not all(isinstance(size, int) for size in target.shape):
        return False
    return target.dtype != source.dtype or tuple(target.shape) != tuple(source.shape)


def _convert(graph: Any, node: Any) -> None:
    import torch

    target, source = node.args[:2]
    wanted = target.meta["val"]
    steps: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = (
        (torch.ops.aten._to_copy.default, (), {"dtype": wanted.dtype}),
        (torch.ops.aten.expand.default, (list(wanted.shape),), {}),
    )
    value = source.meta["val"]
    with graph.inserting_before(node):
        for operator, args, named in steps:
            value = operator(value, *args, **named)
            source = graph.call_function(operator, (source, *args), named)
            source.meta = {**node.meta, "val": value}
    node.update_arg(1, source)
