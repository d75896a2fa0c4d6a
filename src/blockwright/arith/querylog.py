"""A record of the conditions that could not be proved, for tests and for work on the prover."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from blockwright.arith.text import expr_text
from blockwright.ir import Expr


class Query(msgspec.Struct, frozen=True):
    """One condition that `prove` answered with False, and what was known."""

    text: str
    known: tuple[str, ...]


_active: ContextVar[tuple[list[Query], ...]] = ContextVar("blockwright_arith_queries", default=())


@contextmanager
def query_log() -> Generator[list[Query]]:
    """Collect unproved conditions raised inside the `with` block.

    A condition that is false on purpose (a schedule asking which of two cases it has) is collected
    too: the log lists questions without a yes, not defects.
    """
    log: list[Query] = []
    token = _active.set((*_active.get(), log))
    try:
        yield log
    finally:
        _active.reset(token)


def record(condition: Expr, known: list[str]) -> None:
    """Add a condition to every open log."""
    for log in _active.get():
        log.append(Query(expr_text(condition), tuple(known)))


def recording() -> bool:
    """Whether a log is open."""
    return bool(_active.get())
