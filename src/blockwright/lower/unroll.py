"""Unroll loops fully, into copies of their bodies.

Before::

    for i in T.unroll(2):
        C[i * 16] = A[k * 2 + i]

After::

    C[0] = A[k * 2]
    C[16] = A[k * 2 + 1]

Loops annotated `pragma_auto_unroll_max_step` (n), and serial loops inside them, are unrolled too if
the result has at most n statements. `llvm.unroll` leaves the decision to LLVM.
"""

from __future__ import annotations

from blockwright.analysis.access.tree import jumps
from blockwright.ir import (
    For,
    ForKind,
    Mutator,
    PrimFunc,
    Stmt,
    const,
    const_int,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.annotations import UNROLL_EXPLICIT, UNROLL_MAX_STEP
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Instantiate, fold, no_op, sequence, walk_code
from blockwright.support import BuildError


@lowering_pass
def unroll_loops(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Unroll the loops that are marked or annotated for it.

    Raises BuildError BW630 where the trip count is not a constant, and BW633 where unrolling would
    produce more statements than `LowerOptions.unroll_limit`.
    """
    return func.replace(body=_Unroll(context.options.unroll_limit)(func.body))


class _Unroll(Mutator):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.max_step = 0

    def rewrite_For(self, node: For) -> Stmt:
        outer = self.max_step
        self.max_step = int(node.annotations.get(UNROLL_MAX_STEP, outer))
        body = self(node.body)
        step, self.max_step = self.max_step, outer
        node = node.replace(body=body)
        explicit = bool(node.annotations.get(UNROLL_EXPLICIT))
        wanted = node.kind is ForKind.UNROLLED or (
            explicit and UNROLL_MAX_STEP not in node.annotations
        )
        if jumps(node.body):  # copies in sequence cannot be left early, so the loop becomes serial
            return node.replace(kind=ForKind.SERIAL) if node.kind is ForKind.UNROLLED else node
        count = const_int(node.extent)
        if wanted and count is None:
            raise BuildError(
                f"loop {node.loop_var.name} cannot be unrolled: its extent "
                f"{node.extent!r} is not a constant",
                code="BW630",
                help="split the loop by a constant factor first",
            )
        if not wanted and (node.kind is not ForKind.SERIAL or not step or count is None):
            return node
        assert count is not None
        copies = count * max(1, _statements(body))
        if not wanted:
            return self._expand(node, count) if copies <= step else node
        if copies > self.limit:
            raise BuildError(
                f"unrolling loop {node.loop_var.name} produces {copies} statements, more "
                f"than {self.limit}",
                code="BW633",
                help="unroll a smaller loop, or raise unroll_limit",
            )
        return self._expand(node, count)

    def _expand(self, node: For, count: int) -> Stmt:
        copies: list[Stmt] = []
        for step in range(count):
            value = fold(E.Add, node.min, const(step, node.min.dtype))
            copies.append(
                Instantiate({node.loop_var: value}, fresh_definitions=step > 0)(node.body)
            )
        return sequence(copies) if copies else no_op()


def _statements(body: Stmt) -> int:
    leaves = (S.BufferStore, S.Evaluate, S.AssertStmt, For, S.While)
    return sum(isinstance(node, leaves) for node in walk_code(body))
