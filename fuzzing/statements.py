"""Trees of statements in the `T` dialect, and their reduction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import msgspec

from fuzzing.campaign import SECONDS
from fuzzing.schedules.isolate import Death, isolated


class Statement(msgspec.Struct):
    """A line, and the statements below it; `otherwise` is the `else` of an `if`."""

    line: str
    body: list[Statement] = []
    otherwise: list[Statement] = []
    nests: bool = False

    def text(self, depth: int = 1) -> Iterator[str]:
        """The lines of the statement."""
        pad = "    " * depth
        yield pad + self.line
        if self.nests:
            yield from lines(self.body, depth + 1)
        if self.otherwise:
            yield pad + "else:"
            yield from lines(self.otherwise, depth + 1)


def lines(body: Sequence[Statement], depth: int = 1) -> Iterator[str]:
    """The lines of statements, or of one that does nothing."""
    for part in body or [Statement("T.evaluate(0)")]:
        yield from part.text(depth)


def reduced(
    program: list[Statement],
    script: Callable[[list[Statement]], str],
    fails: Callable[[list[Statement]], bool],
) -> list[Statement]:
    """The program without statements that it does not need to fail.

    Arguments:
        script: the text of a program.
    """
    smaller = True
    while smaller:
        smaller, place = False, 0
        while place < 2 * _count(program):
            less = copy.deepcopy(program)
            _remove(less, place // 2, lifts=bool(place % 2))
            if script(less) != script(program) and fails(less):
                program, smaller = less, True
            else:
                place += 1
    return program


def reduced_death(
    program: list[Statement],
    script: Callable[[list[Statement]], str],
    run: Callable[[list[Statement]], object],
) -> list[Statement]:
    """The program without statements that it does not need to end the process that runs it."""

    def dies(less: list[Statement]) -> bool:
        return isinstance(isolated(lambda: run(less), SECONDS / 10), Death)

    return reduced(program, script, dies)


def _count(body: list[Statement]) -> int:
    return sum(1 + _count(part.body) + _count(part.otherwise) for part in body)


def _remove(body: list[Statement], number: int, *, lifts: bool) -> int:
    """Remove a statement by its number in program order, or put its body in its place.

    Returns the number within what follows, or -1 if the statement was here.
    """
    for place, part in enumerate(body):
        if number == 0:
            body[place : place + 1] = part.body if lifts else []
            return -1
        number = _remove(part.body, number - 1, lifts=lifts)
        if number >= 0:
            number = _remove(part.otherwise, number, lifts=lifts)
        if number < 0:
            return -1
    return number
