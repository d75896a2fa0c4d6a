"""Which arguments an operator writes, also where its schema does not say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from blockwright.frontend.torch.names import target_name

_STATISTICS = "running_mean", "running_var"

# Operators whose schema does not declare that they write the running statistics → the argument
# without which they leave them alone; None if there is no such argument. The list is that of
# PyTorch's `FunctionalTensor.maybe_aliasing_or_mutating_ops`, with those that it lacks.
_UNDECLARED: Mapping[str, str | None] = {
    "aten.batch_norm.default": "training",
    "aten._batch_norm_impl_index.default": "training",
    "aten.native_batch_norm.default": "training",
    "aten.cudnn_batch_norm.default": "training",
    "aten.miopen_batch_norm.default": "training",
    "aten.instance_norm.default": "use_input_stats",
    "aten.batch_norm_update_stats.default": None,
    "aten.batch_norm_gather_stats.default": None,
    "aten.batch_norm_gather_stats_with_counts.default": None,
}


def arguments(node: Any) -> dict[str, Any]:
    """Name → value of the arguments that a node passes to an operator of PyTorch."""
    schema = node.target._schema
    given = {a.name: value for a, value in zip(schema.arguments, node.args, strict=False)}
    return {**given, **node.kwargs}


def written(node: Any) -> list[Any]:
    """The nodes whose values an operator changes in place."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or does_nothing(node):
        return []
    given = arguments(node)
    declared = [given.get(a.name) for a in schema.arguments if _is_written(a)]
    return [*_nodes(declared), *written_undeclared(node)]


def written_undeclared(node: Any) -> list[Any]:
    """The nodes whose values an operator changes in place although its schema does not say so."""
    name = target_name(node.target) if node.op == "call_function" else ""
    if name not in _UNDECLARED:
        return []
    given, condition = arguments(node), _UNDECLARED[name]
    if condition is not None and not given.get(condition):
        return []
    return list(_nodes([given.get(statistic) for statistic in _STATISTICS]))


def does_nothing(node: Any) -> bool:
    """Whether a node returns its argument unchanged: dropout outside of training."""
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train", True)
    return "dropout" in str(node.target) and not training


def _nodes(values: Iterable[Any]) -> Iterator[Any]:
    """The nodes among values and lists of values."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _nodes(cast("Iterable[Any]", value))
        elif hasattr(value, "meta"):
            yield value


def _is_written(argument: Any) -> bool:
    alias = argument.alias_info
    return alias is not None and alias.is_write
