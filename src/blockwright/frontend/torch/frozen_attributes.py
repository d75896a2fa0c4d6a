"""Warn about Python attributes that a model assigns in `forward`, which the export makes constant.

    self.step += 1                  # every call of the compiled model computes with the same step
    return x * self.step

PyTorch restores attributes after the export, so they are compared at the end of `forward`.
"""

from __future__ import annotations

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
