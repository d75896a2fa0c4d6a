"""Graphs inside an exported program: bodies of control flow, and regions of a gradient or a type.

Regions of `torch.no_grad` and `torch.enable_grad` become part of the graph that contains them:

    y = wrap_with_set_grad_enabled(False, submodule, x)     # submodule: relu(x)
→   y = relu(x)

Regions of `torch.autocast` do when PyTorch rewrites the program, which writes out their casts.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blockwright.frontend.torch.names import target_name

_GRADIENT, _TYPES = "aten.wrap_with_set_grad_enabled", "aten.wrap_with_autocast"


def all_nodes(module: Any) -> Iterator[Any]:
    """The nodes of a graph module and of the graphs inside it."""
    for node in module.graph.nodes:
        yield node
        for body in bodies(module, node):
            yield from all_nodes(body)


def bodies(module: Any, node: Any) -> list[Any]:
    """The graph modules that a node of `module` calls."""
    if node.op != "call_function":
        return []
    given = [arg for arg in node.args if getattr(arg, "op", "") == "get_attr"]
    return [body for arg in given if is_graph(body := attribute(module, arg))]


def attribute(module: Any, node: Any) -> Any:
    """What a `get_attr` node of a graph module denotes."""
    value = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def is_graph(value: Any) -> bool:
    """Whether a value is a graph module."""
    return hasattr(value, "graph") and hasattr(value, "named_children")


def has_typed_region(module: Any) -> bool:
    """Whether a graph module, or a graph inside it, has a region of `torch.autocast`."""
    return any(map(is_typed_region, all_nodes(module)))


def is_typed_region(node: Any) -> bool:
    """Whether a node calls a region of `torch.autocast`."""
    return target_name(node.target) == _TYPES


def without_gradient_regions(program: Any) -> Any:
    """The program with the regions of `torch.no_grad` and `torch.enable_grad` in its graphs."""
    if all(target_name(node.target) != _GRADIENT for node in all_nodes(program.graph_module)):
        return program
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own classes
        source = program.graph_module
        module = torch.fx.GraphModule(source, copy.deepcopy(source.graph))
        _inline(module)
        return program._update(module, with_outputs(program.graph_signature, module.graph))


def with_outputs(signature: Any, graph: Any) -> Any:
    """The signature, with the names that the outputs of the graph have now."""
    (outputs,) = graph.output_node().args
    specs = [
        replace(spec, arg=replace(spec.arg, name=node.name)) if hasattr(node, "name") else spec
        for spec, node in zip(signature.output_specs, outputs, strict=True)
    ]
    return replace(signature, output_specs=specs)


def _inline(module: Any) -> None:
    """Replace the regions of a graph module, in place, by the nodes inside them."""
    for node in list(module.graph.nodes):
        for arg in node.args:
            if getattr(arg, "op", "") == "get_attr" and is_graph(body := attribute(module, arg)):
                body = copy.deepcopy(body)
                _inline(body)
                _set(module, str(arg.target), body)
        if node.op == "call_function" and target_name(node.target) == _GRADIENT:
            _inline_node(module, node)
    module.graph.lint()
    module.recompile()


def _set(module: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        module = getattr(module, part)
    setattr(module, last, value)


def _inline_node(module: Any, node: Any) -> None:
    """Replace a node that calls a region by the nodes inside the region."""
    _, region, *operands = node.args
    body = attribute(module, region)
    values: dict[Any, Any] = {}
    inputs = iter(operands)
    with module.graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(inputs)
            elif inner.op == "output":
                results = [values.get(value, value) for value in inner.args[0]]
                _replace(module, node, results)
            else:
                copied = module.graph.node_copy(inner, values.__getitem__)
                if inner.op == "get_attr":
                    copied.target = _own(module, attribute(body, inner))
                values[inner] = copied


def _replace(module: Any, node: Any, results: list[Any]) -> None:
    """Replace the items of a node with several results."""
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def _own(module: Any, value: Any) -> str:
    """A new attribute of a graph module with a value; returns its name."""
    number = 0
    while hasattr(module, f"inlined_{number}"):
        number += 1
    setattr(module, f"inlined_{number}", value)
    return f"inlined_{number}"
