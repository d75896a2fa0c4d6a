"""Case split of a program that ends in a branch on sizes: it is proved if each branch is.

    make a                               make a                make a
    if n < 9:                    →       b from a      and     b from a another way
        b from a
    else:
        b from a another way

For given sizes the program runs exactly one of the resulting branch-free programs. The condition
itself is not used: a branch that is correct only under its condition must be proved in the original
program.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir


def choices(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """The branch-free programs; the function itself if it does not end in a branch on sizes."""
    if not isinstance(func.body, ir.BlockRealize):
        yield func
        return
    stmts = list(func.root.body.seq) if isinstance(func.root.body, ir.SeqStmt) else [func.root.body]
    last = stmts.pop()
    if not isinstance(last, ir.IfThenElse) or not _is_of_sizes(last.condition):
        yield func
        return
    for case in (last.then_case, last.else_case):
        body = ir.seq([*stmts, ir.Evaluate(ir.const(0, "int32")) if case is None else case])
        root = func.root.replace(body=body)
        yield from choices(func.replace(body=func.body.replace(block=root)))


def _is_of_sizes(condition: ir.Expr) -> bool:
    return not any(isinstance(n, ir.BufferLoad | ir.Call) for n in ir.walk(condition))
