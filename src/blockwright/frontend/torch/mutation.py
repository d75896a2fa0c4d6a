"""Operators that change a tensor in place, read as operators that give a new one.

`relu_(x)` means `relu(x)` as long as nobody looks at the old x, nor at a view of it, afterwards.
Where that shows from the graph, as in most networks, nothing needs to be done; otherwise PyTorch
rewrites the program in functional form.
"""

from __future__ import annotations

from typing import Any

from blockwright.frontend.torch.decompose import rewritten
from blockwright.support import ImporterError

# Operators that may give back their argument itself without saying so in their schema.
_MAY_ALIAS = frozenset({"aten.dropout.default", "aten.feature_dropout.default",
                        "aten.alpha_dropout.default"})  # fmt: skip


def functional(program: Any) -> Any:
    """The program, without operators whose effect in place matters."""
    if all(_harmless(node) for node in program.graph.nodes):
        return program
    return rewritten(program, {})


def refuse_changes(program: Any) -> None:
    """Raise ImporterError BW507 when a model changes an input or a buffer."""
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise ImporterError(f"the model changes {', '.join(changed)} in place", code="BW507",
                            help="return the new value as a result of the model")  # fmt: skip


def _alias(value: Any) -> Any:
    """The alias annotation of a schema's argument or result."""
    return getattr(value, "alias_info", None)


def _harmless(node: Any) -> bool:
    """Whether nothing after a node can tell that it changed its argument."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or not schema.is_mutable:
        return True
    if _does_nothing(node):
        return True
    written = [i for i, a in enumerate(schema.arguments) if _alias(a) and _alias(a).is_write]
    if written != [0] or not node.args:
        return False
    changed = node.args[0]
    alone = all(user is node or not _gives_view(user) for user in changed.users)
    last = all(user is node or user < node for user in changed.users)
    return alone and last and _is_fresh(changed)


def _does_nothing(node: Any) -> bool:
    """Whether a node leaves its argument as it is: dropout outside of training."""
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train", True)
    return "dropout_." in str(node.target) and not training


def _is_fresh(node: Any) -> bool:
    """Whether a node's value is memory of its own, which no other value shares.

    What an operator in place gives back was its argument, looked at by `_harmless`.
    """
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None or str(node.target) in _MAY_ALIAS:
        return False
    return all(_alias(r) is None or _alias(r).is_write for r in schema.returns)


def _gives_view(node: Any) -> bool:
    """Whether a user of a value may give back memory of it."""
    if node.op != "call_function":
        return True  # an output, which would then show the change
    schema = getattr(node.target, "_schema", None)
    if schema is None or str(node.target) in _MAY_ALIAS:
        return True
    return any(_alias(r) is not None for r in schema.returns)
