"""Compare the compiled program with the interpreter, and reduce programs for which they differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import blockwright as bw
from blockwright.build import build
from blockwright.support import InterpretError
from fuzzing.control.draw import BUFFERS, SIZE, Statement, script
from fuzzing.eager.outcome import Outcome, problem_of

Array = np.ndarray[Any, Any]


def arguments(seed: int) -> list[Array]:
    """Arguments of a program: numbers from 0 to 63, mostly small."""
    chance = np.random.default_rng(seed)
    wide = chance.integers(0, SIZE, (len(BUFFERS), SIZE), np.int32)
    return list(np.where(wide % 3 > 0, wide % 14, wide).astype(np.int32))


def judge(program: list[Statement], seed: int) -> Outcome:
    """Judge a program for the arguments of a seed; "refused" if the interpreter rejects it."""
    return judge_text(script(program), seed)


def judge_text(text: str, seed: int) -> Outcome:
    """Judge the text of a program."""
    wanted, found = arguments(seed), arguments(seed)
    try:
        func = bw.from_source(text)
        bw.interpret(func, *wanted)
    except InterpretError as error:
        return Outcome("refused", str(error.code), error.message)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    try:
        build(func)["control"](*found)
    except Exception as error:  # noqa: BLE001  what the interpreter runs compiles
        return Outcome("internal", "rejected", str(error))
    for name, a, b in zip(BUFFERS, wanted, found, strict=True):
        if not np.array_equal(a, b):
            places = np.flatnonzero(a != b)[:4]
            words = f"{name}{places.tolist()} is {b[places].tolist()}, not {a[places].tolist()}"
            return Outcome("wrong", "values", words)
    return Outcome("passed")


def reduced(program: list[Statement], fails: Callable[[list[Statement]], bool]) -> list[Statement]:
    """The program without statements that it does not need to fail."""
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
