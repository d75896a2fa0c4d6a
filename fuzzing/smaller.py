"""Search for the smallest program that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

P = TypeVar("P")


def smallest(
    program: P, smaller: Callable[[P], Iterator[P]], fails: Callable[[P], bool], most: int
) -> P:
    """The smallest program found that still `fails`.

    Arguments:
        smaller: yields programs that are a step smaller, the most promising first.
        most: the number of programs to try.
    """
    tried, again = 0, True
    while again and tried < most:
        again = False
        for candidate in smaller(program):
            tried += 1
            if fails(candidate):
                program, again = candidate, True
                break
            if tried >= most:
                break
    return program
