"""Type checks for arguments of public functions."""

from __future__ import annotations

import numbers
from typing import Any

from blockwright.support.errors import BlockwrightError


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
