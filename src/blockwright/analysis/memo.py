"""Answers about blocks, remembered from one step of a schedule to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from blockwright import ir

T = TypeVar("T")


class FlowMemo:
    """Answers about blocks that hold as long as the block and the loops around it are the same.

    Keys are made of node identities; the nodes are kept, so that an identity is never reused.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[int | str, ...], Any] = {}
        self._kept: list[ir.Node] = []

    def answer(self, what: str, nodes: Sequence[ir.Node], find: Callable[[], T]) -> T:
        """The known answer, or that of `find`."""
        key = (what, *(id(n) for n in nodes))
        if key not in self._answers:
            self._kept.extend(nodes)
            self._answers[key] = find()
        return self._answers[key]
