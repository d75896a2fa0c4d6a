"""Let an allocation be the one buffer that is declared on all of its memory.

Before::

    X_data = T.allocate([96], "float32")
    X = T.decl_buffer((8, 12), data=X_data)

After::

    X = T.allocate([8, 12], "float32")

Otherwise `fold_views` would replace `X` by flat positions in `X_data`: steps would not find the
buffer by its name or its dimensions, and would have to recover them from the positions.
"""

from __future__ import annotations

from math import prod
from typing import Any

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.access.views import behind
from blockwright.analysis.facts import symbol_facts


def declared_allocations(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace allocations by the buffers declared on them; see the module docstring."""
    if not _declares_on_allocation(func.body):
        return func
    body = _Replace(func)(func.body)
    return func if body is func.body else func.replace(body=body)


def _declares_on_allocation(stmt: ir.Stmt) -> bool:
    stack: list[tuple[ir.Stmt, bool]] = [(stmt, False)]
    while stack:
        node, allocated = stack.pop()
        if allocated and isinstance(node, ir.DeclBuffer):
            return True
        inside = allocated or isinstance(node, ir.Allocate)
        stack.extend((child, inside) for child in child_stmts(node))
    return False


class _Replace(ir.Mutator):
    def __init__(self, func: ir.PrimFunc) -> None:
        super().__init__()
        self.analyzer = symbol_facts(func)
        self.plain: dict[ir.Buffer, ir.Buffer] = {}

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return self.plain.get(node, node)

    def rewrite_Allocate(self, node: ir.Allocate) -> Any:
        declared = _declaration(node)
        if declared is None or not self._is_whole(node.buffer, declared.buffer):
            return self.descend(node)
        view = declared.buffer
        if view.strides or view.offset is not None:
            self.plain[view] = view.replace(strides=(), offset=None)
        return self(node.replace(buffer=view, body=_without(node.body, declared)))

    def _is_whole(self, memory: ir.Buffer, view: ir.Buffer) -> bool:
        """Whether a view has the elements of the memory that it is declared on, in their order."""
        if view.axis_separators or memory.axis_separators or memory.strides:
            return False
        if memory.dtype is not view.dtype or memory.scope != view.scope:
            return False
        if memory.data_alignment > view.data_alignment:
            return False
        if view.offset is not None and not ir.is_const_int(view.offset, 0):
            return False
        compact = buffer_strides(view.replace(strides=()))
        if not all(
            self.analyzer.prove_equal(*ir.match_types(a, b))
            for a, b in zip(view.strides, compact, strict=False)
        ):
            return False
        one = ir.const(1, "int64")
        sizes = (
            prod((ir.cast_to(n, one.dtype) for n in b.shape), start=one) for b in (memory, view)
        )
        return self.analyzer.prove_equal(*sizes)


def _declaration(node: ir.Allocate) -> ir.DeclBuffer | None:
    """The only use of an allocation, if that declares a buffer at its start before other
    statements run."""
    inner = node.body
    while isinstance(inner, (ir.Allocate, ir.DeclBuffer)):
        if isinstance(inner, ir.DeclBuffer):
            first = behind(inner)
            if first is not None and first.buffer is node.buffer:
                start = all(ir.is_const_int(i, 0) for i in first.indices)
                uses = sum(n is node.buffer for n in ir.walk(node.body))
                return inner if start and uses == 1 else None
        inner = inner.body
    return None


def _without(stmt: ir.Stmt, declared: ir.DeclBuffer) -> ir.Stmt:
    """Remove a declaration that only allocations and declarations surround."""
    if stmt is declared:
        return declared.body
    assert isinstance(stmt, (ir.Allocate, ir.DeclBuffer))
    return stmt.replace(body=_without(stmt.body, declared))
