"""Traversal of a statement's memory accesses; it alone decides which nodes access memory.

Every collector of accesses derives from `AccessWalker`: the one that infers signatures, which takes
all accesses (`access.collect`), and the one that looks for counterexamples, which takes those that
happen for certain (`dataflow.accesses`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from blockwright import ir

NodeT = TypeVar("NodeT", bound=ir.Node)


class AccessWalker:
    """Visits nodes in program order and calls a method for each access.

    Subclasses override `read`, `write`, `update` and `address` to record accesses, `branch` and
    `uncertain` to record conditions, and `visit_<ClassName>(self, node)` for other nodes.
    """

    _table: ClassVar[dict[str, Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._table = {
            name.removeprefix("visit_"): method
            for base in reversed(cls.__mro__)
            for name, method in vars(base).items()
            if name.startswith("visit_")
        }

    def __init__(self) -> None:
        self.lets: dict[ir.Var, ir.Expr] = {}
        self._expanded: dict[ir.Var, ir.Expr] = {}  # values of `lets`, fully expanded

    # ------------------------------------------------------------------ accesses
    def read(self, load: ir.BufferLoad) -> None:
        """An element, or the lanes of a vector, is read."""

    def write(self, element: ir.BufferStore | ir.BufferLoad) -> None:
        """An element, or the lanes of a vector, is written."""

    def update(self, place: ir.BufferLoad) -> None:
        """An element is updated atomically."""
        self.read(place)
        self.write(place)

    def address(self, first: ir.BufferLoad) -> None:
        """The address of an element is taken: anything in its buffer may be accessed."""

    def local(self, buffer: ir.Buffer) -> None:
        """A buffer is allocated or declared."""

    # ------------------------------------------------------------------ control flow
    def branch(self, condition: ir.Expr, part: ir.Stmt | ir.Expr) -> None:
        """A part that runs if and only if a condition holds."""
        self.visit(part)

    def uncertain(self, part: ir.Node) -> None:
        """A part that may not run although the loops and conditions around it allow it."""
        self.visit(part)

    # ------------------------------------------------------------------ traversal
    def visit(self, node: ir.Node) -> None:
        method = self._table.get(type(node).__name__)
        if method is not None:
            method(self, node)
            return
        for child in node.children():
            self.visit(child)

    def visit_BlockRealize(self, node: ir.BlockRealize) -> None:
        """An inner block accesses the regions of its signature; subclasses record them."""

    def visit_BufferStore(self, node: ir.BufferStore) -> None:
        self.write(node)
        self.operands(node)

    def visit_BufferLoad(self, node: ir.BufferLoad) -> None:
        self.read(node)
        self.operands(node)

    def operands(self, node: ir.BufferStore | ir.BufferLoad) -> None:
        for index in node.indices:
            self.visit(index)
        if isinstance(node, ir.BufferStore):
            self.visit(node.value)
        if node.predicate is not None:
            self.visit(node.predicate)

    def atomic(self, node: ir.Call) -> None:
        """An atomic update accesses only its element."""
        place = ir.atomic_place(node)
        if place is None:
            self.visit(node.args[0])
        else:
            self.update(place)
            self.operands(place)
        self.visit(node.args[1])

    def visit_LetStmt(self, node: ir.LetStmt | ir.Let) -> None:
        self.visit(node.value)
        self.lets[node.var] = node.value
        self._expanded.pop(node.var, None)
        self.visit(node.body)

    visit_Let = visit_LetStmt

    def visit_DeclBuffer(self, node: ir.DeclBuffer) -> None:
        self.local(node.buffer)
        self.uncertain(node.source)
        self.visit(node.body)

    def visit_Allocate(self, node: ir.Allocate) -> None:
        self.local(node.buffer)
        self.visit(node.body)

    def visit_IfThenElse(self, node: ir.IfThenElse) -> None:
        self.visit(node.condition)
        self.branch(node.condition, node.then_case)
        if node.else_case is not None:
            self.branch(ir.Not(node.condition), node.else_case)

    def visit_And(self, node: ir.And | ir.Or) -> None:
        self.visit(node.a)
        self.uncertain(node.b)

    visit_Or = visit_And

    def visit_While(self, node: ir.While) -> None:
        self.visit(node.condition)
        self.uncertain(node.body)

    def visit_Evaluate(self, node: ir.Evaluate) -> None:
        if ir.is_atomic(node.value):
            self.visit(node.value)
        else:
            self.uncertain(node.value)  # an operation decides what it does with its operands

    def visit_AttrStmt(self, node: ir.AttrStmt) -> None:
        for child in node.children():
            if child is node.body:
                self.visit(child)
            else:
                self.uncertain(child)

    def visit_Call(self, node: ir.Call) -> None:
        if ir.is_atomic(node):
            self.atomic(node)
        elif node.op in ("address_of", "tensor"):
            first = node.args[0]
            if isinstance(first, ir.BufferLoad):
                for index in first.indices:
                    self.uncertain(index)
                self.address(first)
        elif node.op == "tvm_thread_allreduce":
            self._all_reduce(node)
        elif node.op == "if_then_else":
            condition, yes, no = node.args
            self.visit(condition)
            self.branch(condition, yes)
            self.branch(ir.Not(condition), no)
        else:
            for arg in node.args:
                self.visit(arg)

    def _all_reduce(self, node: ir.Call) -> None:
        """A reduction over threads writes its result arguments and does not read them.

        Its arguments are n, n values, a condition, n results and the thread axes.
        """
        count = (ir.const_int(node.args[0]) if node.args else None) or 0
        for k, arg in enumerate(node.args):
            if not isinstance(arg, ir.BufferLoad) or not 2 + count <= k < 2 + 2 * count:
                self.visit(arg)
                continue
            self.write(arg)
            for index in arg.indices:
                self.visit(index)

    def visit_Var(self, node: ir.Var) -> None:
        pass

    def visit_Buffer(self, node: ir.Buffer) -> None:
        """The shape of a buffer is not evaluated by an access."""

    visit_IntImm = visit_Var

    # ------------------------------------------------------------------ let-bound names
    def without_names(self, node: NodeT) -> NodeT:
        """A node with let-bound names expanded; few of them occur in indices."""
        if not self.lets:
            return node
        used: dict[ir.Var, ir.Expr] = {}
        for var in ir.collect(node, ir.Var):
            if var in self.lets:
                if var not in self._expanded:
                    self._expanded[var] = self.without_names(self.lets[var])
                used[var] = self._expanded[var]
        return ir.substitute(node, used)
