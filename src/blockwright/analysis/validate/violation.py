"""What a check of the validator finds, before it is put into words for the user."""

from __future__ import annotations

from typing import NamedTuple

from blockwright import ir


class Violation(NamedTuple):
    """One violation: its code, what is wrong, the guilty nodes, and what to do instead."""

    code: str
    message: str
    guilty: tuple[ir.Node, ...]
    help: str | None = None
