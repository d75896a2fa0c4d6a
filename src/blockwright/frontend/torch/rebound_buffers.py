"""Keep the old tensors of buffers that a model rebinds, before PyTorch rewrites the program.

The exporter writes `self.h = new` as an assignment of elements at the end of the program. That
would change the old tensor, which Python leaves as it was:

    h = placeholder; new = h * 2; copy_(h, new); return h         # old = self.h; …; return old
→   h = placeholder; old = h.clone(); new = old * 2; copy_(h, new); return old
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from blockwright.frontend.torch.regions import with_outputs


def with_rebound_buffers(program: Any, seen_through: Callable[[Any], list[Any]]) -> Any:
    """The program in which results and state that are old tensors of rebound buffers are copies.

    Args:
        seen_through: a value → itself and all values that it is a view of.
    """
    if not _viewed(program.graph, seen_through):
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own classes
        graph = copy.deepcopy(program.graph)
        for buffer in _viewed(graph, seen_through):
            _keep(graph, buffer)
        graph.lint()
        import torch

        module = torch.fx.GraphModule(program.graph_module, graph)
        return program._update(module, with_outputs(program.graph_signature, graph))


def _viewed(graph: Any, seen_through: Callable[[Any], list[Any]]) -> list[Any]:
    """Rebound buffers whose old tensor a result or another buffer's new value aliases."""
    rebound = {node.args[0]: node.args[1] for node in graph.nodes if _rebinds(node)}
    if not rebound:
        return []
    (output,) = graph.find_nodes(op="output")
    kept = {buffer: [*output.all_input_nodes] for buffer in rebound}
    for other, value in rebound.items():
        for buffer in rebound:
            if buffer is not other and hasattr(value, "meta"):
                kept[buffer].append(value)
    return [
        buffer
        for buffer, values in kept.items()
        if any(buffer in seen_through(value) for value in values)
    ]


def _rebinds(node: Any) -> bool:
    """Whether the exporter added a node for an assignment to an attribute.

    Unlike nodes of operators that a model calls, it is not named after the operator alone.
    """
    return (
        str(node.target) == "aten.copy_.default"
        and node.name.startswith("copy__default")
        and node.args[0].op == "placeholder"
    )


def _keep(graph: Any, buffer: Any) -> None:
    import torch

    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        old = graph.call_function(torch.ops.aten.clone.default, (buffer,))
    old.meta = {**buffer.meta, "val": buffer.meta["val"].clone()}

    def reads(user: Any) -> bool:
        return user is not old and not (_rebinds(user) and user.args[0] is buffer)

    buffer.replace_all_uses_with(old, reads)
