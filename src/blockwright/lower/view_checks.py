"""Insert run-time checks that declared views lie inside their buffers, for sanitizer builds.

Before::

    V = T.decl_buffer((4,), "float32", data=A.data, elem_offset=k)

After, for A of 8 elements::

    assert k * 4 >= 0, "BW713: view V leaves A"
    assert k * 4 + 16 <= 32, "BW713: view V leaves A"
    V = T.decl_buffer((4,), "float32", data=A.data, elem_offset=k)

Views are folded into their buffers afterwards, so that checks of accesses no longer know them.
"""

from __future__ import annotations

from blockwright.analysis.access.memory_span import laid_out_buffers, memory_span, view_start
from blockwright.analysis.canonical.pointers import fold_pointers
from blockwright.ir import (
    EQ,
    AssertStmt,
    Block,
    Buffer,
    DeclBuffer,
    Expr,
    For,
    IterVar,
    LetStmt,
    Node,
    PrimFunc,
    Stmt,
    Var,
    collect,
    compare,
    const,
    logical_or,
    substitute,
)
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Analysed, sequence


@lowering_pass
def check_views(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Insert the checks if the accesses of the build are checked."""
    if "bounds" not in context.options.sanitize or not collect(func.body, DeclBuffer):
        return func
    plain = fold_pointers(func)
    body = _Checks(plain)(plain.body)
    return func if body is plain.body else plain.replace(body=body)


class _Checks(Analysed):
    def __init__(self, func: PrimFunc) -> None:
        super().__init__(function_analyzer(func))
        self.laid_out = laid_out_buffers(func)
        self.starts: dict[Buffer, tuple[Buffer, Expr]] = {}
        self.bound = {*func.params, *(v for b in func.buffers for v in collect(b, Var))}

    def rewrite_For(self, node: For) -> Stmt:
        self.bound.add(node.loop_var)
        with self.inside(node.loop_var, node.dom):
            return self.descend(node)

    def rewrite_IterVar(self, node: IterVar) -> Node:
        self.bound.add(node.var)
        return node

    def rewrite_LetStmt(self, node: LetStmt) -> Stmt:
        self.bound.add(node.var)
        return self.descend(node)

    def rewrite_Block(self, node: Block) -> Node:
        self.bound |= {v for match in node.match_buffers for v in collect(match.buffer, Var)}
        return self.descend(node)

    def rewrite_DeclBuffer(self, node: DeclBuffer) -> Stmt:
        checks = self._checks(node)
        return sequence([*checks, node.replace(body=self(node.body))])

    def _checks(self, node: DeclBuffer) -> list[Stmt]:
        view, found = node.buffer, view_start(node)
        if found is None or found[0] not in self.laid_out:
            return []
        root, start = found
        if isinstance(view.offset, Var) and view.offset not in self.bound:  # it is 0
            start = substitute(start, {view.offset: const(0, view.offset.dtype)})
        if root in self.starts:
            root, before = self.starts[root]
            start = before + start
        self.starts[view] = root, start
        whole, part = memory_span(root), memory_span(view)
        if whole is None or part is None:
            return []
        checks: list[Stmt] = []
        for inside in part.inside(start, whole):
            condition = inside
            for extent in (*part.extents, *whole.extents):
                condition = logical_or(compare(EQ, extent, 0), condition)
            if not self.analyzer.prove(condition):
                checks.append(AssertStmt(condition, f"BW713: view {view.name} leaves {root.name}"))
        return checks
