"""Internal result of a validator check, before conversion to a diagnostic."""

from __future__ import annotations

from typing import NamedTuple

from blockwright import ir


class Violation(NamedTuple):
    """One violation: error code, message, guilty nodes, and remedy."""

    code: str
    message: str
    guilty: tuple[ir.Node, ...]
    help: str | None = None
