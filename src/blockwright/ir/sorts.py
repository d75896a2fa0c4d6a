"""Classification of integer expressions as indices or values (docs/semantics.md, Integers).

An index is a mathematical integer of type int32 or int64: a loop variable, a block iterator, a
size, a constant, or an expression built from those by operators. A value is a number modulo 2**n:
anything of an unsigned or narrower type, an element of a buffer, the result of a call, a scalar
parameter that is not a size, a name bound to a value, any expression that uses one of those, and a
conditional expression whose condition depends on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from blockwright.ir import expr as E
from blockwright.ir.attributes import INDEX_PARAMS
from blockwright.ir.buffer import Buffer, IterVar
from blockwright.ir.expr import Expr, IntImm, Var
from blockwright.ir.function import PrimFunc
from blockwright.ir.node import Node
from blockwright.ir.rare import Rare
from blockwright.ir.stmt import AssertStmt, For, LetStmt
from blockwright.ir.visit import collect

INDEX_CALLS = frozenset({"shift_left", "shift_right", "bitwise_and"})
"""The calls that give an index if their arguments are indices; they act on all its binary digits,
of which there are infinitely many."""


class Sorts:
    """Classifies integer expressions, given the variables that hold values."""

    def __init__(self, values: AbstractSet[Var]) -> None:
        self.values = values
        self._known: dict[Expr, bool] = {}

    def is_index(self, expr: Expr) -> bool:
        """Whether an integer expression is an index."""
        result = self._known.get(expr)
        if result is None:
            result = self._known[expr] = self._decide(expr)
        return result

    def _decide(self, expr: Expr) -> bool:
        if isinstance(expr, E.BinaryOp):  # iterative: sums may have thousands of operators
            node: Expr = expr
            while isinstance(node, E.BinaryOp):
                if not self.is_index(node.b):
                    return False
                node = node.a
            return self.is_index(node)
        match expr:
            case IntImm():
                return expr.dtype.is_index
            case Var():
                return expr.dtype.is_index and expr not in self.values
            case E.Cast():
                return expr.type.is_index and self.is_index(expr.value)
            case E.Ramp():
                return self.is_index(expr.base) and self.is_index(expr.stride)
            case E.Broadcast():
                return self.is_index(expr.value)
            case E.Select():
                branches = self.is_index(expr.true_value) and self.is_index(expr.false_value)
                return branches and self._compares_indices(expr.condition)
            case E.Let():
                named = not expr.var.dtype.is_int or self.is_index(expr.value)
                return named and self.is_index(expr.body)
            case E.Call(op="if_then_else"):
                branches = self.is_index(expr.args[1]) and self.is_index(expr.args[2])
                return branches and self._compares_indices(expr.args[0])
            case E.Call(op="likely"):
                return self.is_index(expr.args[0])
            case E.Call(op="checked_index" | "as_index"):
                return expr.dtype.is_index
            case E.Call():
                return expr.op in INDEX_CALLS and all(self.is_index(a) for a in expr.args)
            case _:
                return False

    def _compares_indices(self, condition: Expr) -> bool:
        """Whether a condition consists only of comparisons of indices."""
        stack: list[Expr] = [condition]
        while stack:
            node = stack.pop()
            match node:
                case IntImm():
                    pass
                case E.And() | E.Or():
                    stack += (node.a, node.b)
                case E.Not():
                    stack.append(node.a)
                case E.Broadcast():
                    stack.append(node.value)
                case E.Call(op="likely"):
                    stack.append(node.args[0])
                case E.CompareOp():
                    if not (self.is_index(node.a) and self.is_index(node.b)):
                        return False
                case _:
                    return False
        return True


@lru_cache(maxsize=64)
def value_variables(func: PrimFunc) -> frozenset[Var]:
    """The integer variables of a function that hold values.

    A scalar parameter counts as a size if the domain of a loop or block iterator or the shape,
    strides or offset of a buffer uses it, or if an assertion uses it as a divisor. A let-bound name
    is a value if the expression bound to it is one. `with_fixed_sorts` keeps what parameters are.
    """
    handles = {handle for handle, _ in func.buffer_map}
    scalars = [p for p in func.params if p not in handles and p.dtype.is_int]
    if not scalars:
        return frozenset(_with_names(set(), _lets.of(func.body)))
    known: Sequence[str] | None = func.attrs.get(INDEX_PARAMS)
    if known is not None:
        values = {p for p in scalars if p.name not in known}
        return frozenset(_with_names(values, _lets.of(func.body)))
    sizes: set[Var] = set()
    buffers: set[Buffer] = set(func.buffers)
    lets: list[LetStmt | E.Let] = []
    stack: list[Node] = [func.body]
    while stack:
        node = stack.pop()
        if isinstance(node, Buffer):
            buffers.add(node)
            continue
        if isinstance(node, (LetStmt, E.Let)):
            lets.append(node)
        elif isinstance(node, AssertStmt) or _is_assumption(node):
            sizes.update(v for m in collect(node, E.FloorMod) for v in collect(m.b, Var))
        elif isinstance(node, (For, IterVar)):
            sizes.update(collect(node.dom, Var))
        stack.extend(c for c in node.children() if not isinstance(c, (Var, IntImm)))
    sizes.update(v for b in buffers for v in _named(b))
    return frozenset(_with_names({p for p in scalars if p not in sizes}, lets))


def with_fixed_sorts(func: PrimFunc) -> PrimFunc:
    """The function with an attribute that says which scalar parameters are indices, if it has any
    scalar parameters: they remain so whatever becomes of the domains and shapes that use them."""
    handles = {handle for handle, _ in func.buffer_map}
    scalars = [p for p in func.params if p not in handles and p.dtype.is_int]
    if not scalars or INDEX_PARAMS in func.attrs:
        return func
    values = value_variables(func)
    indices = tuple(p.name for p in scalars if p not in values)
    return func.replace(attrs={**func.attrs, INDEX_PARAMS: indices})


_lets: Rare[LetStmt | E.Let] = Rare(LetStmt, E.Let)


def _is_assumption(node: Node) -> bool:
    return isinstance(node, E.Call) and node.op == "assume"


def _named(buffer: Buffer) -> list[Var]:
    """Variables used by the shape, strides and offset of a buffer."""
    layout = (*buffer.shape, *buffer.strides, buffer.offset)
    return [v for e in layout if e is not None for v in collect(e, Var)]


def _with_names(values: set[Var], lets: Sequence[LetStmt | E.Let]) -> set[Var]:
    """`values` plus all let-bound names whose definition is a value, directly or transitively."""
    left = [let for let in lets if let.var.dtype.is_int]
    while left:
        sorts = Sorts(values)
        result = {let.var for let in left if not sorts.is_index(let.value)}
        if not result:
            break
        values = values | result
        left = [let for let in left if let.var not in result]
    return values
