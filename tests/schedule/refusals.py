"""What tests of refused steps share: programs over two matrices, and what a refusal must have."""

from __future__ import annotations

import re
from collections.abc import Callable, Set

import pytest

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support.errors import Diagnostic
from tests.schedule.followed import followed

HEAD = """
@T.prim_func
def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32")):
"""
COPY = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * 2.0
"""
CHAIN = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""
Step = Callable[[Schedule], object]
Case = tuple[str, Step, str, str]
"""Program, step, pattern of the code, and pattern of the reason."""


def function(text: str) -> ir.PrimFunc:
    """The program with these statements, over matrices `A` and `B`."""
    lines = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    found = from_source(HEAD + lines)
    assert isinstance(found, ir.PrimFunc)
    return found


def block(sch: Schedule, name: str) -> BlockRV:
    return sch.get_block(name)


def loop(sch: Schedule, name: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(name))[position]


def require_refusal(name: str, case: Case, unmarked: Set[str] = frozenset()) -> None:
    """A step on a program over matrices `A` and `B` is refused as `require_taught` wants it.

    Args:
        name: the step, with what is special about the case behind a colon.
        case: what is refused.
        unmarked: names of the cases that have no node to mark.
    """
    text, step, codes, words = case
    message = require_taught(function(text), step, codes, words, marked=name not in unmarked)
    assert message.startswith(name.split(":")[0])


def require_taught(
    func: ir.PrimFunc, step: Step, codes: str, words: str, marked: bool = True
) -> str:
    """The step is refused: with its code and reason, guilty nodes underlined in the program as it
    still is, and a way out, which is taken where it is a call. Unless `marked`, nothing is wrong in
    the program; the message."""
    sch = Schedule(func, verify="full")
    with pytest.raises(ScheduleError, match=words) as caught:
        step(sch)
    (problem,) = caught.value.diagnostics
    assert re.fullmatch(codes, problem.code), str(caught.value)
    require_advice(problem)
    followed(sch, str(problem.help))
    assert bool(marks(problem)) == marked, str(caught.value)
    if marked:
        require_program(problem, sch.func)
    return problem.message


def require_advice(problem: Diagnostic) -> None:
    """The error names a step and a rule, and says what to do in more than a word."""
    assert re.match(r"[a-z_]+: .", problem.message), "the step, then the rule"
    assert problem.help
    assert len(problem.help.split()) >= 3, problem.help
    assert "error[" not in problem.message, "a reason is a sentence, not another error"


def marks(problem: Diagnostic) -> list[str]:
    """The lines of carets below guilty nodes."""
    return [
        line
        for note in problem.notes
        for line in str(note).splitlines()
        if re.fullmatch(r" *\^[ ^]*", line)
    ]


def require_program(problem: Diagnostic, func: ir.PrimFunc) -> None:
    """What is shown is the program, which the refused step left as it was."""
    note = str(problem.notes[0])
    underlined = marks(problem)
    lines = [line for line in note.splitlines()[1:] if line not in underlined]
    if note.startswith("the program, which stays"):
        assert "\n".join(lines).strip() == script(func).strip()
    else:
        assert note.startswith("the program as the step would leave it:")
