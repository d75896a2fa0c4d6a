"""Multi-versioning: several schedules of one program in one function, selected at entry.

Before:  f1: W_packed = W; out = …      f2: W_packed = W; out = … otherwise
After:   f:  W_packed = W
             if n < 9: out = …
             else:     out = … otherwise

Statements that only pack a parameter, and are equal in all versions, run once, before the branch;
`hoist_weight_prepack` finds them there.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis.access.tree import takes_addresses
from blockwright.analysis.sole_blocks import effects
from blockwright.schedule.engine.fresh_copy import copied


def chosen_at_entry(
    usual: ir.PrimFunc, others: Sequence[tuple[ir.Expr, ir.PrimFunc]]
) -> ir.PrimFunc:
    """One function that runs the first of `others` whose condition on sizes holds, else `usual`.

    All are schedules of one program: they have the same parameters, and buffers of their own for
    intermediate results.
    """
    if not others:
        return usual
    stmts = _statements(usual)
    packing = [s for s in stmts if _packed(usual, s) is not None]
    body = ir.seq([s for s in stmts if s not in packing])
    buffers = list(usual.root.alloc_buffers)
    for when, other in reversed(others):
        own: list[ir.Stmt] = []
        renamed: dict[ir.Buffer, ir.Buffer] = {}
        for stmt in _statements(other):
            twin = next((s for s in packing if _alike(usual, s, other, stmt)), None)
            if twin is None:
                own.append(stmt)
                continue
            mine, theirs = _packed(usual, twin), _packed(other, stmt)
            assert mine is not None
            assert theirs is not None
            renamed[theirs] = mine
        for result in other.root.alloc_buffers:
            if result not in renamed:
                if result in buffers:  # its own buffer, which lowering can allocate inside a loop
                    renamed[result] = result.replace()
                buffers.append(renamed.get(result, result))
        case = copied(ir.substitute(ir.seq(own), renamed))
        body = ir.IfThenElse(when, case, body)
    root = usual.root.replace(body=ir.seq([*packing, body]), alloc_buffers=tuple(buffers))
    return usual.replace(body=usual.body.replace(block=root))


def _statements(func: ir.PrimFunc) -> list[ir.Stmt]:
    body = func.root.body
    return list(body.seq) if isinstance(body, ir.SeqStmt) else [body]


def _packed(func: ir.PrimFunc, stmt: ir.Stmt) -> ir.Buffer | None:
    """The buffer that a statement computes from one parameter alone, if it does nothing else."""
    reads = {n.buffer for n in ir.collect(stmt, ir.BufferLoad)}
    writes = {n.buffer for n in ir.collect(stmt, ir.BufferStore)}
    plain = all(not block.match_buffers for block in ir.blocks(stmt))
    if not plain or ir.collect(stmt, ir.DeclBuffer) or effects(stmt) or takes_addresses(stmt):
        return None
    if len(reads) != 1 or len(writes) != 1 or not reads <= set(func.buffers):
        return None
    (result,) = writes
    return result if result in func.root.alloc_buffers else None


def _alike(usual: ir.PrimFunc, mine: ir.Stmt, other: ir.PrimFunc, theirs: ir.Stmt) -> bool:
    """Whether two statements pack a parameter in the same way."""
    result = _packed(other, theirs)
    if result is None:
        return False
    first, second = (_closed(f, s) for f, s in ((usual, mine), (other, theirs)))
    return ir.structural_equal(first, second)


def _closed(func: ir.PrimFunc, stmt: ir.Stmt) -> ir.PrimFunc:
    """The statement as a function of the buffers that it reads and writes."""
    result = _packed(func, stmt)
    assert result is not None
    (source,) = {n.buffer for n in ir.collect(stmt, ir.BufferLoad)}
    return ir.prim_func(stmt, (source, result))
