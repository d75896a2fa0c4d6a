"""A record of the conditions that could not be proved, for tests and for work on the prover."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from blockwright.arith.text import expr_text
from blockwright.ir import Expr


class Query(msgspec.Struct, frozen=True):
    """One condition that `prove` answered with False, and what was known.

    `refuted`: a point at which everything known holds and the condition does not was found, so the
    answer is settled; otherwise the condition may be true and the prover did not see it.
    """

    text: str
    known: tuple[str, ...]
    refuted: bool


_active: ContextVar[tuple[list[Query], ...]] = ContextVar("blockwright_arith_queries", default=())


@contextmanager
def query_log() -> Generator[list[Query]]:
    """Collect unproved conditions raised inside the `with` block.

    Most are settled: a pass asks whether a check can go, and it cannot. What is worth a look are
    the entries that are not `refuted`.
    """
    log: list[Query] = []
    token = _active.set((*_active.get(), log))
    try:
        yield log
    finally:
        _active.reset(token)


def record(condition: Expr, known: list[str], refuted: bool) -> None:
    """Add a condition to every open log."""
    query = Query(expr_text(condition), tuple(known), refuted)
    for log in _active.get():
        log.append(query)


def recording() -> bool:
    """Whether a log is open."""
    return bool(_active.get())
