"""Reject arrays whose elements are not fully represented by strided memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from blockwright.support import ArgumentError

_OUTSIDE = "call the compiled function with real tensors, outside of torch's modes and transforms"


def refuse_numpy(value: np.ndarray, label: str) -> None:
    """Raise ArgumentError (BW702) for a masked array, whose mask compiled code would ignore."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"{label} is a masked array; compiled code does not support masks",
            code="BW702",
            help="pass .filled(value), or the mask as an argument",
        )


def refuse_torch(value: Any, label: str) -> None:
    """Raise ArgumentError (BW702) for a tensor that is not plain strided memory."""
    result = _problem(value)
    if result is not None:
        raise ArgumentError(f"{label} is {result[0]}", code="BW702", help=result[1])


def _problem(value: Any) -> tuple[str, str] | None:
    """The problem of a torch tensor, and the remedy; None for a supported tensor."""
    torch: Any = sys.modules["torch"]
    if value.is_nested:
        return "a nested tensor", "pass torch.nested.to_padded_tensor(x, 0.0), or its parts"
    if value.layout != torch.strided:
        sort = "sparse tensor" if "sparse" in str(value.layout) else "tensor of another layout"
        return f"a {sort} ({value.layout})", "pass .to_dense()"
    if value.is_quantized:
        return f"a quantized tensor ({value.dtype})", "pass .dequantize(), or .int_repr()"
    if value.device.type != "cpu":
        return None
    try:
        storage = value.untyped_storage()
        held = storage.nbytes()
        present = storage.device.type == "cpu" and not _is_functional(torch, value)
        present = present and (not held or storage.data_ptr() != 0)
    except (RuntimeError, TypeError, ValueError):  # transforms, subclasses, lazy parameters
        present, held = False, 0
    if not present:
        return f"a tensor without memory of its own ({type(value).__name__})", _OUTSIDE
    if value.numel() == 0:
        return None
    return _shortage(value, held)


def require_data(value: Any, label: str) -> None:
    """As `refuse_torch`, for tensors that are read at compile time, such as weights.

    Raises: ArgumentError (BW702), also for a tensor of device 'meta'.
    """
    refuse_torch(value, label)
    if value.device.type == "meta":
        raise ArgumentError(
            f"{label} is on device 'meta', and has no elements",
            code="BW702",
            help="load the model's weights first",
        )


def require_storage(value: Any, label: str) -> None:
    """Check that the storage of a plain tensor is as large as its elements require.

    Raises: ArgumentError (BW702). PyTorch itself would read out of bounds.
    """
    plain = type(value).__module__ in ("torch", "torch.nn.parameter") and value.is_cpu
    if plain and value.layout == sys.modules["torch"].strided and value.numel():
        result = None if value.is_nested else _shortage(value, value.untyped_storage().nbytes())
        if result is not None:
            raise ArgumentError(f"{label} is {result[0]}", code="BW702", help=result[1])


def _shortage(value: Any, held: int) -> tuple[str, str] | None:
    """The problem and remedy if a storage of `held` bytes is too small for a nonempty tensor."""
    steps = zip(value.shape, value.stride(), strict=True)
    last = value.storage_offset() + sum((size - 1) * step for size, step in steps)
    needed = (last + 1) * value.element_size()
    if held >= needed:
        return None
    return (
        f"a tensor whose storage holds {held} bytes of the {needed} that it needs",
        "resize the storage and fill it again before the call",
    )


def _is_functional(torch: Any, value: Any) -> bool:
    known = getattr(torch, "_is_functional_tensor", None)
    return known is not None and bool(known(value))
