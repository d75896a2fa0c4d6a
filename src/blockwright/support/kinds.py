"""Checks that an argument of a public function is of the kind that it takes."""

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
    """Raise `error` unless `value` is an instance of `kinds`; True and False are no numbers."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if int in listed:
        listed = (*listed, numbers.Integral)  # those of NumPy too
    if not isinstance(value, listed) or (isinstance(value, bool) and bool not in listed):
        raise error(f"{what}, not {type(value).__name__}", code=code, help=help)
