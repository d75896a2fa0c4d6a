"""What a program does besides running blocks, and a statement besides accessing memory."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.stable_values import is_pure
from blockwright.analysis.access.tree import child_stmts, may_return


def sole_blocks(func: ir.PrimFunc) -> list[ir.Block]:
    """The blocks without inner blocks, in program order, if the program does nothing else.

    Empty if another statement has an effect: a store, a call, an assertion, `T.ret()`, a jump or a
    `while` outside of these blocks, or a return inside. Loops, conditions, named values and
    declared buffers may be around blocks, so it is not certain that a block runs.
    """
    result: list[ir.Block] = []
    stack: list[ir.Stmt] = [func.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.BlockRealize):
            block = node.block
            if not all(map(is_pure, (*node.iter_values, node.predicate))):
                return []
            if block is not func.root and not ir.collect(block, ir.BlockRealize):
                result.append(block)
            elif block.init is None:
                stack.append(block.body)
            else:
                return []
        elif isinstance(node, _AROUND):
            stack += child_stmts(node)[::-1]
            if not all(is_pure(e) for e in node.children() if isinstance(e, ir.Expr)):
                return []
        elif not isinstance(node, ir.Evaluate) or not is_pure(node.value):
            return []
    return [] if any(map(may_return, result)) else result


def effects(root: ir.Stmt) -> list[ir.Call | ir.AssertStmt]:
    """What a statement does besides loads, stores and atomic updates: calls with effects, and
    assertions."""
    return [
        node
        for node in ir.walk(root)
        if isinstance(node, ir.AssertStmt)
        or (isinstance(node, ir.Call) and ir.op_has_effect(node.op) and not ir.is_atomic(node))
    ]


def acts_outside(root: ir.Stmt) -> bool:
    """Whether a statement may do something that no result shows, such as a foreign call or a print.

    An assertion that holds, and a call of a program of the module, do not.
    """
    return any(isinstance(n, ir.Call) and n.op not in _UNSEEN for n in effects(root))


_UNSEEN = frozenset(
    {"assume", "break", "call_global", "continue", "prefetch", "ret", "tvm_storage_sync"}
)

_AROUND = (
    ir.SeqStmt,
    ir.For,
    ir.IfThenElse,
    ir.LetStmt,
    ir.AttrStmt,
    ir.Allocate,
    ir.DeclBuffer,
)
