"""Write through windows of `unfold` before PyTorch rewrites in-place operators.

PyTorch's functional form takes elements outside of all windows for zeros. Windows that do not
overlap are therefore made by views whose changes it carries back exactly:

    x.unfold(0, 2, 3)
→   x[: count * 3].unflatten(0, (count, 3))[:, :2], with the elements of a window as the last axis
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from blockwright.frontend.torch.names import origin
from blockwright.frontend.torch.regions import all_nodes
from blockwright.frontend.torch.writes import arguments, written
from blockwright.support import ImporterError

_UNFOLD = "aten.unfold.default"


def with_written_windows(program: Any, seen_through: Callable[[Any], list[Any]]) -> Any:
    """The program in which no change is made through `unfold`.

    Arguments: `seen_through` gives a value and all values that it is a view of.
    Raises: ImporterError BW512 if the windows of a changed value overlap, or its length is unknown.
    """
    changed: dict[Any, Any] = {}  # windows → the operator that changes them
    for node in all_nodes(program.graph_module):
        for value in written(node):
            for source in seen_through(value):
                if source.op == "call_function" and str(source.target) == _UNFOLD:
                    changed.setdefault(source, node)
    if not changed:
        return program
    import torch

    replaced: dict[str, list[Any]] = {}
    for windows, node in changed.items():
        steps = _views(windows) if windows.graph is program.graph else []
        if not steps:
            raise _refused(node)
        replaced[windows.name] = steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own classes
        graph = copy.deepcopy(program.graph)
        for node in list(graph.nodes):
            if node.name in replaced:
                _replace(graph, node, replaced[node.name])
        graph.lint()
        module = torch.fx.GraphModule(program.graph_module, graph)
        return program._update(module, program.graph_signature)


def _views(windows: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Operators, with their further arguments, that give the windows; none if that is impossible.

    A last window that ends less than a step before the end of the axis has no place of its own in
    a regular division of the axis, unless it is the only one.
    """
    import torch

    aten = torch.ops.aten
    given = arguments(windows)
    shape = given["self"].meta["val"].shape
    if not shape:
        return []
    axis = given["dimension"] % len(shape)
    length, size, step = shape[axis], given["size"], given["step"]
    if not all(isinstance(number, int) for number in (length, size, step)):
        return []
    count = (length - size) // step + 1
    step = size if count == 1 else step
    if size > step or count * step > length:
        return []
    return [
        (aten.slice.Tensor, (axis, 0, count * step)),
        (aten.unflatten.int, (axis, [count, step])),
        (aten.slice.Tensor, (axis + 1, 0, size)),
        (aten.movedim.int, (axis + 1, -1)),
    ]


def _replace(graph: Any, node: Any, steps: Sequence[tuple[Any, tuple[Any, ...]]]) -> None:
    value = node.args[0]
    with graph.inserting_before(node):
        for operator, args in steps:
            held = operator(value.meta["val"], *args)
            value = graph.call_function(operator, (value, *args))
            value.meta = {**node.meta, "val": held}
    node.replace_all_uses_with(value)
    graph.erase_node(node)


def _refused(node: Any) -> ImporterError:
    name = str(node.target).split(".")[1]
    return ImporterError(
        f"{name} changes a tensor in place through windows of `unfold` that overlap, do not divide "
        "the axis evenly, or are along an axis of symbolic size",
        code="BW512",
        help="change slices of the tensor itself",
        notes=(origin(node),),
    )
