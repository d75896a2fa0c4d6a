"""Type checks for arguments of public functions."""

from __future__ import annotations

import numbers
import sys
from typing import Any

from blockwright.support.errors import BlockwrightError

_LARGEST = int(sys.float_info.max)


def is_huge(value: Any) -> bool:
    """Whether an integer exceeds the range of float64.

    No type of a program holds it, and Python converts it neither to a float nor, beyond 4300
    digits, to text.
    """
    return isinstance(value, int) and not -_LARGEST <= value <= _LARGEST


def number_text(value: Any) -> str:
    """Format a number for a message; an integer beyond float64 by its size."""
    return f"an integer of {value.bit_length()} bits" if is_huge(value) else repr(value)


def require_kind(
    value: Any,
    kinds: type | tuple[type, ...],
    what: str,
    error: type[BlockwrightError],
    code: str,
    help: str,
) -> None:
    """Raise `error` unless `value` is an instance of `kinds`. A bool does not count as an int."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if int in listed:
        listed = (*listed, numbers.Integral)  # includes NumPy integers
    if not isinstance(value, listed) or (isinstance(value, bool) and bool not in listed):
        raise error(f"{what}, not {type(value).__name__}", code=code, help=help)
