"""Make one placeholder of buffers that share memory, before PyTorch rewrites in-place operators.

    cache = placeholder; row = placeholder          # self.row = self.cache[1]
    row.add_(x)
→   cache = placeholder; row = cache.view(-1)[3:6].view(3)
    row.add_(x)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockwright.frontend.torch.regions import with_outputs
from blockwright.frontend.torch.state import layout, overlap, overlapping, span


def with_shared_buffers(
    program: Any, tensors: Mapping[str, Any], changed: Callable[[Any], bool]
) -> Any:
    """The program in which buffers that share memory are views of one placeholder.

    Arguments: `tensors` are the weights and buffers by placeholder; `changed` tells whether the
    program changes a placeholder's tensor.
    Raises: ImporterError BW512 if it changes memory that is shared in another way.
    """
    groups = [group for group in _groups(tensors) if len(group) > 1]
    if not groups:
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own classes
        return _joined(program, tensors, groups, changed)


def _joined(
    program: Any,
    tensors: Mapping[str, Any],
    groups: Sequence[Sequence[str]],
    changed: Callable[[Any], bool],
) -> Any:
    """The program with one placeholder for each group, where that is possible."""
    import torch

    graph = copy.deepcopy(program.graph)
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    paths = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    replaced: list[str] = []
    last = list(nodes.values())[-1]
    for group in groups:
        base = max(group, key=lambda name: tensors[name].numel())
        for name in group:
            if name == base:
                continue
            view = None
            if _is_part(tensors[name], tensors[base]):
                view = _view(graph, last, nodes[base], tensors[name], tensors[base])
            if view is not None:
                nodes[name].replace_all_uses_with(view)
                replaced.append(name)
            elif any(changed(nodes[each]) for each in group):
                raise overlapping(paths[each] for each in group)
    graph.lint()
    apart = {paths[name]: _unread(tensors[name]) for name in replaced}
    held = (
        {path: apart.get(path, tensor) for path, tensor in group.items()}
        for group in (program.state_dict, program.constants)
    )
    return program._update(
        torch.fx.GraphModule(program.graph_module, graph),
        with_outputs(program.graph_signature, graph),
        **dict(zip(("state_dict", "constants"), held, strict=True)),
    )


def _unread(tensor: Any) -> Any:
    """A tensor in place of one that the program does not read any more."""
    import torch

    other = torch.empty_like(tensor)
    if not isinstance(tensor, torch.nn.Parameter):
        return other
    return torch.nn.Parameter(other, requires_grad=tensor.requires_grad)


def _groups(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Placeholders whose tensors overlap, directly or through others."""
    result: list[list[str]] = []
    for name, tensor in tensors.items():
        meets = [g for g in result if any(overlap(tensor, tensors[other]) for other in g)]
        result = [g for g in result if g not in meets]
        result.append([*(other for group in meets for other in group), name])
    return result


def _is_part(part: Any, whole: Any) -> bool:
    """Whether the elements of a tensor are consecutive elements of another, or the same ones."""
    if layout(part) == layout(whole):
        return True
    (first, end), (start, stop) = span(part), span(whole)
    plain = layout(part)[:2] == layout(whole)[:2] and part.dtype == whole.dtype
    plain = plain and part.is_contiguous() and whole.is_contiguous()
    return plain and start <= first and end <= stop


def _view(graph: Any, last: Any, base: Any, part: Any, whole: Any) -> Any:
    """Emit the view after the placeholders."""
    if layout(part) == layout(whole):
        return base
    import torch

    aten = torch.ops.aten
    at = part.storage_offset() - whole.storage_offset()
    steps: Sequence[tuple[Any, tuple[Any, ...]]] = (
        (aten.view.default, ([-1],)),
        (aten.slice.Tensor, (0, at, at + part.numel())),
        (aten.view.default, (list(part.shape),)),
    )
    node, value = base, base.meta["val"]
    with graph.inserting_before(last.next):
        for operator, args in steps:
            value = operator(value, *args)
            node = graph.call_function(operator, (node, *args))
            node.meta["val"] = value
    return node
