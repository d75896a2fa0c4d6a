"""Compare the compiled program with the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

import blockwright as bw
from blockwright.build import build
from blockwright.support import InterpretError
from fuzzing.control.draw import BUFFERS, SIZE, script
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.statements import Statement

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
