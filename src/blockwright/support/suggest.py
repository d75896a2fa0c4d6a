"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def choices(given: object, known: Iterable[str]) -> str:
    """Text that lists the known names, after the one that is spelled most like the given one."""
    names = list(known)
    close = get_close_matches(str(given), names, 1)
    remedy = f"did you mean {close[0]!r}? " if close else ""
    return f"{remedy}choose from: {', '.join(names)}"
