"""Following the advice of a refusal to the letter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.schedule.primitive import PRIMITIVES

THEN = ", then "


def methods() -> list[str]:
    """The steps of a schedule."""
    return [record.method for record in PRIMITIVES]


_STEPS = "|".join(sorted(methods(), key=len, reverse=True))
_CALL = re.compile(rf"(?:[a-z_0-9]+(?:, [a-z_0-9]+)* = )?(?<![\w.])(?:{_STEPS})\(")


def chains(advice: str) -> Iterator[str]:
    """The chains of concrete calls in a text: every word of them is a call that Python parses."""
    end = -1
    chain = ""
    for found in _CALL.finditer(advice):
        if found.start() < end:
            continue  # an argument of the call before, as in merge(get_loops("a")[0], …)
        stop = _closing(advice, found.end())
        call = advice[found.start() : stop]
        if chain and advice[end : found.start()] == THEN:
            chain += THEN + call
        else:
            if chain:
                yield chain
            chain = call
        end = stop
    if chain:
        yield chain


def _closing(text: str, start: int) -> int:
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        if not depth:
            return place + 1
    return len(text)


def followed(sch: Schedule, advice: str) -> list[str]:
    """The chains of calls in a text, each taken on a copy of the schedule. Fails where a step that
    the text recommends is refused."""
    taken: list[str] = []
    for chain in chains(advice):
        try:
            follow(sch.copy(), chain)
        except Vague:
            continue
        except ScheduleError as error:
            raise AssertionError(f"false advice: {chain}: {error}") from error
        taken.append(chain)
    return taken


class Vague(Exception):
    """A call that leaves something to the reader, such as `split(i, …)`."""


def follow(sch: Schedule, chain: str) -> None:
    """Take the steps of a chain. Raises: Vague where it says something else than calls on loops and
    blocks of the program; ScheduleError where a step is refused."""
    names: dict[str, Any] = {}
    blocks = set()
    for block in _blocks(sch):
        try:
            above = sch.get_loops(block)
        except ScheduleError:
            continue
        blocks.add(block)
        for loop in above:
            names.setdefault(sch.get(loop).loop_var.name, []).append(loop)
    scope: dict[str, Any] = {
        name: found[0] for name, found in names.items() if len({sch.get(f) for f in found}) == 1
    }
    scope |= {name: getattr(sch, name) for name in methods()}
    for step in chain.split(THEN):
        try:
            tree = ast.parse(step)
        except SyntaxError as error:
            raise Vague(step) from error
        used = {
            n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        if not used <= set(scope) or any(
            isinstance(n, ast.Constant) and n.value is ... for n in ast.walk(tree)
        ):
            raise Vague(step)
        exec(step, scope)


def _blocks(sch: Schedule) -> list[str]:
    return [b.name for b in ir.blocks(sch.func) if b.name and b.name != "root"]
