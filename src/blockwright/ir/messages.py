"""Check of the messages of assertions and `match_cast`s and their printf-style values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from blockwright.ir.expr import Expr

_CONVERSION = re.compile("%(.?)", re.DOTALL)
_REMEDY = "write %d for each of them, and %% for a percent sign"


def message_problem(message: Any, values: Sequence[Expr]) -> tuple[str, str, str] | None:
    """Code, text and help for a malformed message; None for a well-formed one.

    With values, the message is a format string: one `%d` per value, `%%` for a percent sign, and no
    other `%` sequence. Without values it is plain text.
    """
    if not isinstance(message, str):
        return "BW107", f"a message is text, not {message!r}", "write it in quotes"
    for value in values:
        kind = value.dtype
        if not kind.is_scalar or not (kind.is_int or kind.is_bool):
            return (
                "BW107",
                f"a value of the message is {kind}; messages show integers",
                "leave it out of the message, or cast it to an integer",
            )
    if not values:
        return None
    result = [match[1] for match in _CONVERSION.finditer(message)]
    other = next((c for c in result if c not in ("d", "%")), None)
    if other is not None:
        return "BW106", f"%{other} in the message is neither %d nor %%", _REMEDY
    count = result.count("d")
    if count != len(values):
        return "BW106", f"the message has %d {count} times for {len(values)} values", _REMEDY
    return None
