"""Order of statements and `T.ret()`: no step moves an effect across a return.

No signature states it, but a return decides whether all later statements run. It is therefore
ordered with every statement before and after it. The returns and the loops, conditions and blocks
around them divide a program into stretches of statements without a return, each of which runs as a
whole. A step may rewrite the inside of a stretch. Each stretch must write the same buffers as
before, and call the same functions::

    for i in range(8): Q[i] = …         stretch 0 writes Q
    if A[0] > 0: T.ret()
    for i in range(8): C[i] = Q[i]      stretch 2 writes C; it may not move to stretch 0

Values that nothing else needs may be computed later than before: a producer may be inlined into a
stretch after a return. A new buffer is local to one stretch.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts, is_return, may_return
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.stretches import Part, Uses, common_buffers

_HELP = (
    "apply the step to statements on one side of the return, or guard the statements after it with "
    "a condition instead: if not …:"
)


def require_kept_returns(state: StepState, step: StepResult) -> StepResult:
    """Require that a step moves nothing across a return; return the step."""
    if step.func is state.func or not may_return(state.func.body):
        return step
    before, after = _Stretches(state.func), _Stretches(step.func)
    if not _alike(before.around, after.around):
        _fail(state, "would change what is around a T.ret(), which may end the program")
    problem = _moved(before.parts, after.parts)
    if problem:
        _fail(state, problem)
    return step


def _fail(state: StepState, rule: str) -> None:
    guilty = [n for n in state.tree.order if is_return(n)]
    state.fail(f"it {rule}", code="BW316", guilty=guilty, help=_HELP)


class _Stretches:
    """The stretches of a program, and the statements around its returns in program order."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.around: list[ir.Stmt | None] = []
        self.parts = [Part()]
        self._walk(func.body)

    def _walk(self, stmt: ir.Stmt) -> None:
        if not may_return(stmt):
            self.parts[-1].add(stmt)
            return
        if isinstance(stmt, ir.SeqStmt):
            for part in stmt.seq:
                self._walk(part)
            return
        self.around.append(stmt)
        self.parts.append(Part())
        for child in child_stmts(stmt):
            self._walk(child)
        self.around.append(None)
        self.parts.append(Part())


def _alike(before: list[ir.Stmt | None], after: list[ir.Stmt | None]) -> bool:
    """Whether the statements around the returns are the same, apart from accesses in them."""
    return len(before) == len(after) and all(map(_same, before, after))


def _same(a: ir.Stmt | None, b: ir.Stmt | None) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, ir.For) and isinstance(b, ir.For):
        bounds = zip((a.min, a.extent), (b.min, b.extent), strict=True)
        same = a.loop_var is b.loop_var and a.kind is b.kind and a.thread is b.thread
        return same and all(ir.structural_equal(x, y) for x, y in bounds)
    if isinstance(a, ir.BlockRealize) and isinstance(b, ir.BlockRealize):
        always = [ir.is_const_int(realize.predicate, 1) for realize in (a, b)]
        return always[0] == always[1] and len(a.iter_values) == len(b.iter_values)
    return True


def _moved(before: list[Part], after: list[Part]) -> str:
    """What a step moved from one stretch to another; "" if nothing."""
    kept = common_buffers(before, after)
    old, new = Uses(before, kept), Uses(after, kept)
    for key, used in new.used.items():
        name = key.name if isinstance(key, ir.Buffer) else key
        if key not in old.used:
            if len(used) > 1:
                return f"would pass values of {name} across a T.ret(), which may end the program"
            continue
        change = [b - a for a, b in zip(old.writers[key], new.writers[key], strict=True)]
        starts = [
            bool(a) != bool(b) for a, b in zip(old.writers[key], new.writers[key], strict=True)
        ]
        if any(starts) or min(change) < 0 < max(change):
            return f"would move writes of {name} across a T.ret(), which may end the program"
        if min(used) < min(old.used[key]):
            return f"would read {name} before a T.ret(), after which it is read now"
    for one, other in zip(before, after, strict=True):
        if one.calls != other.calls:
            moved = ", ".join(sorted(one.calls ^ other.calls))
            return f"would move calls ({moved}) across a T.ret(), which may end the program"
    return ""
