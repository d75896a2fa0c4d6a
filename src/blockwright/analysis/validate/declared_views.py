"""Check that declared views lie inside the memory of their buffers (BW241).

A view is rejected if it lies outside wherever it is declared, or in the first or the last iteration
of loops that certainly run. Sizes in bytes are compared, since a view may have elements of another
type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.memory_span import (
    laid_out_buffers,
    memory_span,
    view_start,
)
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.canonical.pointers import fold_pointers
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import Analyzer

_views: ir.Rare[ir.DeclBuffer] = ir.Rare(ir.DeclBuffer)
_JUMPS = ("ret", "break", "continue")


def view_problems(func: ir.PrimFunc) -> Iterator[Violation]:
    """Violations of the declared views of a well-formed function."""
    if _views.of(func.body):
        plain = fold_pointers(func)
        path = _Path(symbol_facts(plain), ({}, {}))
        if any(call.op in _JUMPS for call in ir.collect(plain.body, ir.Call)):
            path = path._replace(ends=())
        yield from _Views(plain).problems(plain.body, path)


class _Path(NamedTuple):
    """What is known where a statement runs.

    Attributes:
        facts: what holds whenever it runs.
        ends: values of the enclosing variables with which it certainly runs: those of the first and
            of the last iteration of all loops, or none.
    """

    facts: Analyzer
    ends: tuple[dict[ir.Var, ir.Expr], ...]

    def within(self, var: ir.Var, domain: ir.Range, *values: ir.Expr) -> _Path:
        """The path below the definition of a variable, with its value at each of the ends."""
        facts = self.facts.copy()
        facts.bind(var, domain)
        pairs = zip(self.ends, values, strict=False)
        return _Path(facts, tuple({**end, var: ir.substitute(v, end)} for end, v in pairs))


class _Views:
    def __init__(self, func: ir.PrimFunc) -> None:
        self.laid_out = laid_out_buffers(func)
        self.starts: dict[ir.Buffer, tuple[ir.Buffer, ir.Expr]] = {}

    def problems(self, node: ir.Stmt, path: _Path) -> Iterator[Violation]:
        """Violations of the views in a statement."""
        if isinstance(node, ir.For):
            some = path.facts.prove(ir.compare(ir.GE, node.extent, 1))
            last = ir.sub(ir.add(node.min, node.extent), 1)
            path = path.within(node.loop_var, node.dom, *((node.min, last) if some else ()))
        elif isinstance(node, ir.BlockRealize):
            if not ir.is_const_int(node.predicate, 1):
                path = path._replace(ends=())
            for it, value in node.bindings:
                path = path.within(it.var, it.dom, value, value)
        elif isinstance(node, ir.LetStmt) and path.ends:
            value = node.value
            path = path._replace(
                ends=tuple({**end, node.var: ir.substitute(value, end)} for end in path.ends)
            )
        elif isinstance(node, (ir.IfThenElse, ir.While)):
            path = path._replace(ends=())
        elif isinstance(node, ir.DeclBuffer):
            yield from self._declared(node, path)
        for part in self._reached(node, path.facts):
            yield from self.problems(part, path)

    def _reached(self, node: ir.Stmt, facts: Analyzer) -> Iterator[ir.Stmt]:
        """The statements of a statement that may run."""
        if isinstance(node, ir.IfThenElse):
            if not facts.prove(ir.logical_not(node.condition)):
                yield node.then_case
            if node.else_case is not None and not facts.prove(node.condition):
                yield node.else_case
            return
        yield from child_stmts(node)

    def _declared(self, node: ir.DeclBuffer, path: _Path) -> Iterator[Violation]:
        """The violation of a view that lies outside; it is placed in the memory behind views."""
        found, view = view_start(node), node.buffer
        if found is None or found[0] not in self.laid_out:
            return
        root, start = found
        if root in self.starts:
            root, before = self.starts[root]
            start = ir.add(before, start)
        self.starts[view] = root, start
        whole, part = memory_span(root), memory_span(view)
        if whole is None or part is None:
            return
        begins, ends = part.inside(start, whole)
        extents = (*part.extents, *whole.extents)
        for condition, what in ((begins, "begins before"), (ends, "ends behind")):
            if any(_refuted(condition, extents, path.facts, end) for end in ({}, *path.ends)):
                yield Violation(
                    "BW241",
                    f"view {view.name} {what} the memory of {root.name}",
                    (node,),
                    "correct its offset, shape or strides; offsets count elements of the view",
                )
                return


def _refuted(
    condition: ir.Expr, extents: tuple[ir.Expr, ...], facts: Analyzer, end: dict[ir.Var, ir.Expr]
) -> bool:
    """Whether a condition is known to be false with the given values of variables."""
    positive = (ir.compare(ir.GT, ir.substitute(n, end), 0) for n in extents)
    return facts.prove(ir.logical_not(ir.substitute(condition, end))) and all(
        map(facts.prove, positive)
    )
