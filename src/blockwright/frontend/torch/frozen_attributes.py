"""Warn about Python attributes that a model assigns in `forward`, which the export makes constant.

    self.step += 1                  # every call of the compiled model computes with the same step
    return x * self.step

PyTorch restores attributes after the export, so they are compared at the end of `forward`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from blockwright.support import BlockwrightWarning

_SHOWN = 3
_OWN = frozenset({"training", "_flat_weights"})
"""Attributes that PyTorch's own modules assign."""


@contextmanager
def assigned_attributes(model: Any) -> Generator[dict[str, Any]]:
    """Meanwhile, collect the attributes that `forward` of a model assigns, with their old values:
    numbers that it changes, and tensors that it replaces."""
    before = _attributes(model)
    result: dict[str, Any] = {}

    def compare(*_: Any) -> None:
        for place, value in _attributes(model).items():
            if place in before and _differs(before[place], value):
                path, _, name = place[0].rpartition(".")
                if _is_tensor(value) or _reads_first(model.get_submodule(path), name):
                    result.setdefault(place[0], before[place])

    handle = model.register_forward_hook(compare)
    try:
        yield result
    finally:
        handle.remove()


def warn_of_assignments(assigned: Mapping[str, Any], program: Any) -> None:
    """Warn (BW515) about assigned attributes: numbers, and tensors whose old value a program reads.

    Tensors that it does not read are results that the model keeps for the caller.
    """
    names = [name for name, old in assigned.items() if not _is_tensor(old) or _reads(program, old)]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        message = (
            f"the model assigns attributes in forward: {', '.join(names[:_SHOWN])}{more}. The "
            "compiled model does not update them: each call starts with their present values"
        )
        help = "make them buffers, with register_buffer: buffers are state of the compiled model"
        warnings.warn(BlockwrightWarning(message, code="BW515", help=help), stacklevel=3)


def _differs(old: Any, new: Any) -> bool:
    if _is_tensor(old) or _is_tensor(new):
        return _is_tensor(old) and new is not old
    return new != old and new == new


def _reads_first(part: Any, name: str) -> bool:
    """Whether a method of a module reads an attribute before it assigns it, as `self.n += 1` does.

    A number that is only stored for other methods, such as a size of the input, is right in each
    call.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part.__class__)))
    except (OSError, TypeError, SyntaxError):
        return True
    methods = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    orders = [_order_of(method, name) for method in methods]
    return any(order[0] == "read" and "write" in order for order in orders if order)


def _order_of(method: ast.FunctionDef, name: str) -> list[str]:
    """Reads and writes of an attribute in a method, in the order of its text; values come before
    their targets."""
    found: list[tuple[int, int, int, str]] = []
    for statement in ast.walk(method):
        if not isinstance(statement, ast.stmt):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and node.attr == name:
                added = isinstance(statement, ast.AugAssign) and node is statement.target
                written = isinstance(node.ctx, ast.Store) and not added
                line = statement.lineno if isinstance(statement, _ASSIGNMENTS) else node.lineno
                found.append((line, int(written), node.col_offset, "write" if written else "read"))
    return [kind for *_, kind in sorted(found)]


_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def _reads(program: Any, tensor: Any) -> bool:
    """Whether a program has a constant in the memory of a tensor."""
    own = tensor.untyped_storage()._cdata
    held = filter(_is_tensor, program.constants.values())
    return any(constant.untyped_storage()._cdata == own for constant in held)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _attributes(model: Any) -> dict[tuple[Any, ...], Any]:
    """The numbers and tensors in attributes of a model and its parts, also in lists and dicts, by
    the name of the attribute and the place in it."""
    from torch import nn

    standard = vars(nn.Module()).keys() | _OWN
    result: dict[tuple[Any, ...], Any] = {}
    for path, part in model.named_modules():
        for name, value in cast("dict[str, Any]", vars(part)).items():
            if name not in standard:
                result.update(_leaves((f"{path}.{name}" if path else name,), value))
    return result


def _leaves(place: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, (bool, int, float)) or _is_tensor(value):
        yield place, value
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(cast("Sequence[Any]", value)):
            yield from _leaves((*place, key), item)
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield from _leaves((*place, key), item)
