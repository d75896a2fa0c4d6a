"""Inputs with sizes other than those at export."""

from __future__ import annotations

from typing import Any

import torch


def every_size_dynamic(tensors: Any) -> Any:
    """`dynamic_shapes` that let the exporter decide which sizes are fixed."""
    auto = torch.export.Dim.AUTO
    if isinstance(tensors, torch.Tensor):
        return {axis: auto for axis, n in enumerate(tensors.shape) if n > 1}
    return [every_size_dynamic(t) for t in tensors]


def symbolic_shapes(program: Any) -> list[tuple[Any, ...]]:
    """The shape of every user input, with the exporter's expressions for symbolic sizes."""
    wanted = set(program.graph_signature.user_inputs)
    result: list[tuple[Any, ...]] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in wanted:
            sizes = getattr(node.meta.get("val"), "shape", ())
            result.append(tuple(n if isinstance(n, int) else n.node.expr for n in sizes))
    return result


def other_sizes(program: Any, tensors: list[torch.Tensor], step: int) -> list[torch.Tensor] | None:
    """Inputs in which every symbolic size is `step` larger; None if there is none.

    Elements of the given tensors are repeated, so that positions stay in range.
    """
    shapes = symbolic_shapes(program)
    if len(shapes) != len(tensors):
        return None
    now: dict[Any, int] = {}
    for shape, tensor in zip(shapes, tensors, strict=True):
        for size, value in zip(shape, tensor.shape, strict=True):
            if getattr(size, "is_Symbol", False):
                now[size] = value
    if not now:
        return None
    bounds = program.range_constraints
    new = {symbol: _moved(value, step, bounds.get(symbol)) for symbol, value in now.items()}
    return [
        _resized(tensor, [n if isinstance(n, int) else int(n.subs(new)) for n in shape])
        for shape, tensor in zip(shapes, tensors, strict=True)
    ]


def _moved(value: int, step: int, bounds: Any) -> int:
    if bounds is None:
        return value + step
    low, high = float(bounds.lower), float(bounds.upper)
    return value + step if low <= value + step <= high else value


def _resized(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor of another shape, filled by repeating the given elements."""
    count = 1
    for n in shape:
        count *= n
    flat = tensor.reshape(-1)
    if not flat.numel():
        return torch.zeros(shape, dtype=tensor.dtype)
    return flat[torch.arange(count) % flat.numel()].reshape(shape)
