"""Rewriting utilities for lowering: scoped mutators, instantiated copies, vector arithmetic."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from blockwright.analysis.canonical.control_reads import loads_of_layout
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    OPS,
    Buffer,
    Expr,
    IntImm,
    Mutator,
    Node,
    Range,
    Stmt,
    Var,
    build,
    cast_to,
    collect,
    const,
    const_int,
    is_const_int,
    seq,
    substitute,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S


class Scoped(Mutator):
    """A `Mutator` without a memo: one node may be rewritten differently in two scopes.

    Buffers stay unchanged unless a subclass rewrites them.
    """

    def __call__(self, node: Any) -> Any:
        method = self._table.get(type(node).__name__)
        return self.descend(node) if method is None else method(self, node)

    def rewrite_Buffer(self, node: Buffer) -> Node:
        return node


class Statements(Scoped):
    """A `Scoped` rewrite that does not descend into expressions."""

    def __call__(self, node: Any) -> Any:
        return node if isinstance(node, Expr) else super().__call__(node)


class Renamed(Scoped):
    """A `Scoped` rewrite that replaces one buffer by another."""

    def __init__(self, old: Buffer, new: Buffer) -> None:
        super().__init__()
        self.old, self.new = old, new

    def rewrite_Buffer(self, node: Buffer) -> Buffer:
        return self.new if node is self.old else node


class Analysed(Scoped):
    """A `Scoped` rewrite with an analyzer that knows the enclosing loops of the statement."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer = analyzer

    @contextmanager
    def inside(self, var: Var, domain: Range) -> Generator[None]:
        """Bind the loop variable in a copy of the analyzer, since the loop may not iterate."""
        outer = self.analyzer
        self.analyzer = outer.copy()
        self.analyzer.bind(var, domain)
        try:
            yield
        finally:
            self.analyzer = outer


def no_op() -> Stmt:
    """An empty statement."""
    return S.Evaluate(const(0, "int32"))


def is_no_op(stmt: Stmt) -> bool:
    if isinstance(stmt, S.SeqStmt):
        return not stmt.seq
    return isinstance(stmt, S.Evaluate) and isinstance(stmt.value, IntImm)


def sequence(stmts: list[Stmt]) -> Stmt:
    """The statements in order, without empty ones."""
    useful = [stmt for stmt in stmts if not is_no_op(stmt)]
    return seq(useful) if useful else no_op()


def reads_memory(root: Node) -> bool:
    """Whether the value may change while its variables do not."""
    return any(isinstance(node, E.BufferLoad) for node in walk_code(root)) or has_effect(root)


def stable(condition: Expr) -> Expr:
    """The conjuncts of a condition that no statement under it can invalidate."""
    return build.all_of(part for part in conjuncts(condition) if not reads_memory(part))


def stable_negation(condition: Expr) -> Expr:
    """The negated condition if no statement under it can invalidate it, else true."""
    return const(True, "bool") if reads_memory(condition) else build.logical_not(condition)


class Instantiate(Mutator):
    """Copies a statement with variables replaced, constants folded and fresh definitions.

    With `fresh_definitions`, loop variables, let variables and allocated buffers are renamed, so
    that copies of a body can coexist in one function.
    """

    def __init__(self, mapping: Mapping[Any, Node], *, fresh_definitions: bool = True) -> None:
        super().__init__()
        self._memo.update(mapping)
        self.fresh_definitions = fresh_definitions

    def rewrite_For(self, node: S.For) -> Stmt:
        self._fresh(node.loop_var)
        return self.descend(node)

    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        self._fresh(node.var)
        return self.descend(node)

    def rewrite_Let(self, node: E.Let) -> Expr:
        self._fresh(node.var)
        return self.descend(node)

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        self._fresh_buffer(node.buffer)
        return self.descend(node)

    def rewrite_DeclBuffer(self, node: S.DeclBuffer) -> Stmt:
        self._fresh_buffer(node.buffer)
        return self.descend(node)

    def _fresh(self, var: Var) -> None:
        if self.fresh_definitions and var not in self._memo:
            self._memo[var] = Var(var.name, var.type)

    def _fresh_buffer(self, buffer: Buffer) -> None:
        if self.fresh_definitions and buffer not in self._memo:
            self._memo[buffer] = self.descend(buffer).replace(name=buffer.name)

    def rewrite_Buffer(self, node: Buffer) -> Buffer:
        """The same buffer unless its shape mentions a replaced variable; folding alone keeps it."""
        replaced = any(self(var) is not var for var in collect(node, Var))
        return self.descend(node) if replaced else node

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        condition = self(node.condition)
        if isinstance(condition, IntImm):
            if condition.value:
                return self(node.then_case)
            return no_op() if node.else_case is None else self(node.else_case)
        return self.descend(node)

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        return sequence([self(stmt) for stmt in node.seq])

    def _binary(self, node: E.BinaryOp) -> Expr:
        a, b = self(node.a), self(node.b)
        if a is node.a and b is node.b:
            return node
        if a.dtype.is_int and a.dtype.lanes == 1:
            return fold(type(node), a, b)
        if isinstance(node, (E.Add, E.Sub, E.Mul)) and a.dtype.is_int:
            return vector_binary(type(node), a, b)
        return type(node)(a, b)

    rewrite_Add = rewrite_Sub = rewrite_Mul = rewrite_FloorDiv = rewrite_FloorMod = _binary
    rewrite_Min = rewrite_Max = rewrite_Div = rewrite_Mod = _binary

    def _compare(self, node: E.CompareOp) -> Expr:
        a, b = self(node.a), self(node.b)
        return node if a is node.a and b is node.b else build.compare(type(node), a, b)

    rewrite_EQ = rewrite_NE = rewrite_LT = rewrite_LE = rewrite_GT = rewrite_GE = _compare

    def rewrite_And(self, node: E.And) -> Expr:
        return build.logical_and(self(node.a), self(node.b))

    def rewrite_Or(self, node: E.Or) -> Expr:
        return build.logical_or(self(node.a), self(node.b))

    def rewrite_Not(self, node: E.Not) -> Expr:
        return build.logical_not(self(node.a))

    def rewrite_Cast(self, node: E.Cast) -> Expr:
        return cast_to(self(node.value), node.type)

    def rewrite_Select(self, node: E.Select) -> Expr:
        condition = self(node.condition)
        if isinstance(condition, IntImm):
            return self(node.true_value if condition.value else node.false_value)
        return self.descend(node)

    def rewrite_Call(self, node: E.Call) -> Expr:
        if node.op == "if_then_else":
            condition = self(node.args[0])
            if isinstance(condition, IntImm):
                return self(node.args[1 if condition.value else 2])
        return self.descend(node)


def fold(cls: type[E.BinaryOp], a: Expr, b: Expr) -> Expr:
    """`cls(a, b)` on integers, folded; constants move to the right of sums."""
    if cls is E.Sub and isinstance(b, IntImm):
        cls, b = E.Add, build.sub(IntImm(0, b.type), b)
    if cls is E.Add:
        if isinstance(a, IntImm) and not isinstance(b, IntImm):
            a, b = b, a
        if isinstance(b, E.Add) and isinstance(b.b, IntImm):
            return fold(E.Add, fold(E.Add, a, b.a), b.b)
        if isinstance(a, E.Add) and isinstance(a.b, IntImm):
            if isinstance(b, IntImm):
                return build.add(a.a, build.add(a.b, b))
            return fold(E.Add, fold(E.Add, a.a, b), a.b)
    return build.binary(cls, a, b)


def vector_binary(cls: type[E.BinaryOp], a: Expr, b: Expr) -> Expr:
    """`cls(a, b)` with broadcasting; affine operations on ramps produce ramps."""
    if a.dtype.lanes == 1 and b.dtype.lanes == 1:
        return fold(cls, a, b) if a.dtype.is_int else build.binary(cls, a, b)
    lanes = max(a.dtype.lanes, b.dtype.lanes)
    if a.dtype.is_int and cls in (E.Add, E.Sub, E.Mul):
        folded = _affine(cls, _unbroadcast(a), _unbroadcast(b), lanes)
        if folded is not None:
            return folded
    x, y = _unbroadcast(a), _unbroadcast(b)
    if x.dtype.lanes == 1 and y.dtype.lanes == 1:
        return E.Broadcast(build.binary(cls, x, y), lanes)
    return build.binary(cls, a, b)


def _unbroadcast(value: Expr) -> Expr:
    return value.value if isinstance(value, E.Broadcast) else value


def _affine(cls: type[E.BinaryOp], a: Expr, b: Expr, lanes: int) -> Expr | None:
    """Ramp arithmetic, with scalars for broadcasts; None when the result is not affine."""
    ramp_a, ramp_b = isinstance(a, E.Ramp), isinstance(b, E.Ramp)
    scalar_a, scalar_b = a.dtype.lanes == 1, b.dtype.lanes == 1
    if not ((ramp_a or scalar_a) and (ramp_b or scalar_b) and (ramp_a or ramp_b)):
        return None
    zero = const(0, a.dtype.element)
    base_a, step_a = (a.base, a.stride) if isinstance(a, E.Ramp) else (a, zero)
    base_b, step_b = (b.base, b.stride) if isinstance(b, E.Ramp) else (b, zero)
    if cls is E.Mul:
        if ramp_a and ramp_b:
            return None
        base = fold(E.Mul, base_a, base_b)
        step = fold(E.Mul, step_a, base_b) if ramp_a else fold(E.Mul, base_a, step_b)
    else:
        base, step = fold(cls, base_a, base_b), fold(cls, step_a, step_b)
    return E.Broadcast(base, lanes) if is_const_int(step, 0) else E.Ramp(base, step, lanes)


def contiguous_digits(index: Expr, analyzer: Analyzer) -> Expr:
    """Write a sum of quotients and remainders of lanes as a ramp where it is one.

    Before: T.ramp(0, 1, 64) // 4 * 4 + T.ramp(0, 1, 64) % 4
    After:  T.ramp(0, 1, 64)
    """
    divided = any(isinstance(n, (E.FloorDiv, E.FloorMod)) for n in walk_code(index))
    ramps = {n for n in walk_code(index) if isinstance(n, E.Ramp)}
    if index.dtype.lanes == 1 or not divided or not ramps or reads_memory(index):
        return index
    lanes, element = index.dtype.lanes, index.dtype.element
    lane = Var("lane", element)
    scalar = _InLane(lane)(index)
    known = analyzer.copy()
    known.bind(lane, Range(const(0, element), const(lanes, element)))
    first, second = (known.simplify(substitute(scalar, {lane: const(k, element)})) for k in (0, 1))
    step = const_int(known.simplify(E.Sub(second, first)))
    if step is None:
        return index
    line = E.Add(first, E.Mul(lane, const(step, element)))
    if not known.prove(E.EQ(scalar, line)):
        return index
    return E.Ramp(first, const(step, element), lanes) if step else E.Broadcast(first, lanes)


class _InLane(Mutator):
    """The value of a vector of indices in one lane."""

    def __init__(self, lane: Var) -> None:
        super().__init__()
        self.lane = lane

    def rewrite_Ramp(self, node: E.Ramp) -> Node:
        lane = cast_to(self.lane, node.base.dtype)
        return E.Add(node.base, E.Mul(lane, node.stride))

    def rewrite_Broadcast(self, node: E.Broadcast) -> Node:
        return node.value

    def rewrite_Cast(self, node: E.Cast) -> Node:
        return E.Cast(node.type.element, self(node.value))


def broadcast(value: Expr, lanes: int) -> Expr:
    """`value` with the given number of lanes."""
    return value if value.dtype.lanes == lanes else E.Broadcast(value, lanes)


def walk_code(root: Node) -> Iterator[Node]:
    """Every node below and including `root`, parents first; buffer shapes are not visited."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Buffer):
            stack += node.children()[::-1]


def has_effect(root: Node) -> bool:
    """Whether evaluating the expression has side effects."""
    for node in walk_code(root):
        if isinstance(node, E.Call):
            row = OPS.get(node.op)  # names without a row are runtime calls
            if row is None or row.kind == "effect":
                return True
    return False


def mentions(root: Node, buffer: Buffer) -> bool:
    """Whether the buffer occurs in the tree, or in a size or offset of a buffer defined in it."""
    for node in walk_code(root):
        if node is buffer:
            return True
        if isinstance(node, (S.Allocate, S.DeclBuffer)) and any(
            load.buffer is buffer for load in loads_of_layout(node.buffer)
        ):
            return True
    return False
