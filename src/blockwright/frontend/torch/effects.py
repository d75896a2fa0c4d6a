"""Operators that are called for their effect, which PyTorch's rewriting would drop or reorder.

An operator without results does something else, such as writing a log. PyTorch keeps such calls,
in order, if it knows of the effect: it then threads a token through them, which is removed here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from blockwright.frontend.torch.names import is_overload


@contextmanager
def kept_in_order(program: Any) -> Generator[None]:
    """Meanwhile, PyTorch knows of the effects of a program's operators without results."""
    from torch._library import effects, simple_registry

    operators: set[Any] = {node.target for node in program.graph.nodes if _has_no_result(node)}
    with ExitStack() as stack:
        for operator in operators:
            entry: Any = simple_registry.singleton.find(operator.name())
            if entry.effect.effect is None:
                handle = entry.effect.register(effects.EffectType.ORDERED)
                stack.callback(handle.destroy)
        yield


def _has_no_result(node: Any) -> bool:
    """Whether a node calls a registered operator that neither returns nor changes a tensor."""
    if not is_overload(node.target):
        return False
    schema: Any = node.target._schema
    own = node.target.namespace in ("aten", "prims")
    return not own and not schema.returns and not schema.is_mutable


def without_tokens(program: Any) -> Any:
    """The program with plain calls in place of those that pass a token."""
    from torch.export import _remove_effect_tokens_pass
    from torch.export.graph_signature import InputKind

    if all(spec.kind is not InputKind.TOKEN for spec in program.graph_signature.input_specs):
        return program
    remove: Any = vars(_remove_effect_tokens_pass)["_remove_effect_tokens"]
    return remove(program)
