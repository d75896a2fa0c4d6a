"""Log of conditions that could not be proved, for tests and prover development."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from blockwright.arith.text import expr_text
from blockwright.ir import Expr


class Query(msgspec.Struct, frozen=True):
    """A condition that `prove` answered with False, and the knowledge at that time.

    `refuted`: a point was found where everything known holds and the condition does not, so the
    answer is definite; otherwise the condition may be true and the prover missed it.
    """

    text: str
    known: tuple[str, ...]
    refuted: bool


_active: ContextVar[tuple[list[Query], ...]] = ContextVar("blockwright_arith_queries", default=())


@contextmanager
def query_log() -> Generator[list[Query]]:
    """Collect the unproved conditions of all queries inside the `with` block.

    Most are definite: a pass asks whether a check can be removed, and it cannot. Entries that are
    not `refuted` may be prover weaknesses.
    """
    log: list[Query] = []
    token = _active.set((*_active.get(), log))
    try:
        yield log
    finally:
        _active.reset(token)


def record(condition: Expr, known: list[str], refuted: bool) -> None:
    """Add a condition to all active logs."""
    query = Query(expr_text(condition), tuple(known), refuted)
    for log in _active.get():
        log.append(query)


def recording() -> bool:
    """Whether a log is active."""
    return bool(_active.get())
