"""Order of statements and assertions: no step moves a statement to before an assertion.

Code after an assertion may rely on its condition::

    for i in range(8): B[i] = A[i]          stretch 0
    assert n <= 8, "too long"
    for i in range(n): C[i] = B[i]          stretch 1; it may not move to stretch 0

The assertions outside of loops, conditions and inner blocks divide a program into stretches. A
step may move accesses to a later stretch only, as `compute_inline` of `B` does above: the elements
that are written before an assertion fails are unspecified.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.stretches import Part, Uses, common_buffers

_HELP = (
    "apply the step to statements on one side of the assertion, or move the assertion to the start "
    "of the program"
)


def require_kept_assertions(state: StepState, step: StepResult) -> StepResult:
    """Require that a step moves nothing to before an assertion; return the step."""
    before = _stretches(state.func)
    if step.func is state.func or len(before) == 1:
        return step
    after = _stretches(step.func)
    if len(after) != len(before):
        return step  # a step that adds or removes assertions has its own rules
    kept = common_buffers(before, after)
    old, new = Uses(before, kept), Uses(after, kept)
    for key, used in new.used.items():
        if key not in old.used:
            continue
        writers = zip(old.writers[key], new.writers[key], strict=True)
        change = [b - a for a, b in writers]
        grown = [k for k, c in enumerate(change) if c > 0]
        shrunk = [k for k, c in enumerate(change) if c < 0]
        written = bool(grown and shrunk) and grown[0] < shrunk[-1]
        if written or min(used) < min(old.used[key]):
            name = key.name if isinstance(key, ir.Buffer) else key
            state.fail(
                f"it would access {name} before an assertion that precedes the access now; the "
                "access may rely on the condition",
                code="BW316",
                guilty=[n for n in state.tree.order if isinstance(n, ir.AssertStmt)],
                help=_HELP,
            )
    return step


def _stretches(func: ir.PrimFunc) -> list[Part]:
    """What the program accesses before the first assertion outside of loops, and after each."""
    parts = [Part()]
    stack: list[ir.Stmt] = [func.body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, ir.SeqStmt):
            stack += reversed(stmt.seq)
        elif isinstance(stmt, ir.AssertStmt):
            parts[-1].add(stmt)
            parts.append(Part())
        elif isinstance(stmt, ir.BlockRealize) and stmt is func.body:
            stack.append(stmt.block.body)
        elif isinstance(stmt, (ir.Allocate, ir.LetStmt, ir.AttrStmt, ir.DeclBuffer)):
            stack.append(stmt.body)
        else:
            parts[-1].add(stmt)
    return parts
