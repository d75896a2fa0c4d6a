"""The fallback: takes every program, keeps its loops, and uses the threads where that is safe.

The outermost loop of each nest becomes parallel when the checker allows it. Nothing else changes,
so a program that no other rule understands is still right, and the note says that it was used.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.rules.facts import leaf_blocks
from blockwright.rules.rule import Rule
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from blockwright.target import Target


def refuses(func: ir.PrimFunc, target: Target) -> str:
    return "" if leaf_blocks(func) else "no blocks directly under the root"


def apply(sch: Schedule, target: Target) -> None:
    for handle in sch.get_child_blocks(sch.get_block("root")):
        for loop in sch.get_loops(handle)[:1]:
            try:
                sch.parallel(loop)
            except ScheduleError:
                continue  # iterations depend on each other: the loop stays serial


RULE = Rule("fallback", refuses, apply, note="no rule for its pattern; the fallback was used")
