"""Expand checked indices and divisors to assertions before their uses.

Before::

    for i in range(n):
        for j in T.vectorized(16):
            B[i, j] = W[T.checked_index(ids[i], 100), j]

After::

    for i in range(n):
        assert 0 <= ids[i] and ids[i] < 100, "BW708: embedding: ..."
        for j in T.vectorized(16):
            B[i, j] = W[ids[i], j]

An index is checked once, before the outermost loop on which it does not depend, under the
conditions of its use. Where it differs by lane of a vectorized loop, a separate serial loop checks
all lanes first, so that the loop itself can still be vectorized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from blockwright.analysis.access.tree import jumps, may_return
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.canonical.pointers import memories, named_pointers
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.arith.form import is_index
from blockwright.arith.text import expr_text
from blockwright.ir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Expr,
    For,
    ForKind,
    Node,
    PrimFunc,
    Range,
    Sorts,
    Stmt,
    Var,
    add,
    compare,
    const,
    const_int,
    logical_and,
    logical_not,
    op_has_effect,
    structural_equal,
    sub,
    substitute,
    uses_var,
    value_variables,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.blocks import MATCH_BUFFER
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import (
    Analysed,
    Scoped,
    has_effect,
    reads_memory,
    sequence,
    stable,
    stable_negation,
    walk_code,
)
from blockwright.lower.widen import widen
from blockwright.support import BuildError

CHECKED = "checked_index"
Access = TypeVar("Access", BufferLoad, BufferStore)
DIVISOR = "checked_divisor"


@lowering_pass
def check_indices(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Expand `checked_index` and `checked_divisor`.

    Raises: BuildError BW634 for vectors of indices.
    """
    if not any(isinstance(n, Call) and n.op in (CHECKED, DIVISOR) for n in walk_code(func.body)):
        return func
    expand = _Expand(func, function_analyzer(func))
    body = expand(func.body)
    return func.replace(body=sequence([*map(statement, expand.pending), body]))


class Check(msgspec.Struct, frozen=True, eq=False):
    """A condition that must hold whenever all guards hold; guards are tested in order."""

    inside: Expr
    guards: tuple[Expr, ...]
    message: str

    def parts(self) -> tuple[Expr, ...]:
        return (self.inside, *self.guards)

    def reads(self) -> set[Buffer]:
        nodes = (node for part in self.parts() for node in walk_code(part))
        return {node.buffer for node in nodes if isinstance(node, BufferLoad)}

    def uses(self, *variables: Var) -> bool:
        return any(uses_var(part, set(variables)) for part in self.parts())

    def under(self, *guards: Expr) -> Check:
        return Check(self.inside, (*guards, *self.guards), self.message)


def statement(check: Check) -> Stmt:
    """The assertion, nested in one `if` per guard."""
    stmt: Stmt = S.AssertStmt(check.inside, check.message)
    for guard in reversed(check.guards):
        stmt = S.IfThenElse(guard, stmt)
    return stmt


def _in_front(checks: list[Check], body: Stmt) -> Stmt:
    """The body preceded by its checks; checks under the body's own `if` move into that `if`."""
    if not isinstance(body, S.IfThenElse) or body.else_case is not None or not checks:
        return sequence([*map(statement, checks), body])
    shared = [c for c in checks if c.guards and c.guards[0] is body.condition]
    inner = [statement(Check(c.inside, c.guards[1:], c.message)) for c in shared]
    body = body.replace(then_case=sequence([*inner, body.then_case]))
    return sequence([*(statement(c) for c in checks if c not in shared), body])


def _may_stop(stmt: Stmt) -> bool:
    """Whether a statement may fail, or not end."""
    return any(isinstance(node, (S.AssertStmt, S.While)) for node in walk_code(stmt))


class _Strip(Scoped):
    """Strips `checked_index` from expressions; `found` collects the checks to run before them."""

    def __init__(self, owner: str, sorts: Sorts) -> None:
        super().__init__()
        self.owner, self.sorts = owner, sorts
        self.found: list[Check] = []
        self.guards: tuple[Expr, ...] = ()
        self.lets: dict[Var, Expr] = {}

    def rewrite_Call(self, node: Call) -> Expr:
        if node.op == "if_then_else" and node.args[0].dtype.lanes == 1:
            condition = self(node.args[0])
            yes = self._under(condition, node.args[1])
            no = self._under(logical_not(condition), node.args[2])
            return node.replace(args=(condition, yes, no))
        if node.op == DIVISOR:
            return self._divisor(self(node.args[0]))
        if node.op != CHECKED:
            return self.descend(node)
        index, extent = self(node.args[0]), self(node.args[1])
        if index.dtype.lanes > 1:
            raise BuildError(
                f"{CHECKED} of a vector of {index.dtype.lanes} indices",
                code="BW634",
                help="check each index before it becomes a lane",
            )
        inside = logical_and(
            compare(E.GE, index, const(0, index.dtype)), compare(E.LT, index, extent)
        )
        names = sorted({n.buffer.name for n in walk_code(index) if isinstance(n, BufferLoad)})
        source = f"an index read from {', '.join(names)}" if names else "an index"
        limit = expr_text(substitute(extent, self.lets))
        text = f"{source} is out of range: it must be at least 0 and less than {limit}"
        inside = substitute(inside, self.lets)
        self.found.append(Check(inside, self.guards, f"BW708: {self.owner}: {text}"))
        return index

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        return self.descend(_with_wide_indices(node, self.sorts))

    def _divisor(self, value: Expr) -> Expr:
        if value.dtype.lanes > 1:
            raise BuildError(
                f"{DIVISOR} of a vector of {value.dtype.lanes} numbers",
                code="BW634",
                help="check each divisor before it becomes a lane",
            )
        fine = substitute(compare(E.NE, value, const(0, value.dtype)), self.lets)
        if const_int(fine) != 1:
            text = f"BW716: {self.owner}: integer division by zero"
            self.found.append(Check(fine, self.guards, text))
        return value

    def _under(self, condition: Expr, branch: Expr) -> Expr:
        outer = self.guards
        self.guards = (*outer, substitute(condition, self.lets))
        result = self(branch)
        self.guards = outer
        return result

    def rewrite_Let(self, node: E.Let) -> Expr:
        value = self(node.value)
        self.lets[node.var] = substitute(value, self.lets)
        return node.replace(value=value, body=self(node.body))


def _with_wide_indices(node: Access, sorts: Sorts) -> Access:
    """The access with 64-bit arithmetic in sums that contain checked indices.

    A checked index is an index, and sums with it do not wrap around; without its check it is a
    value, and they would.
    """

    def wide(index: Expr) -> Expr:
        summed = not (isinstance(index, Call) and index.op == CHECKED)
        checks = summed and any(isinstance(n, Call) and n.op == CHECKED for n in walk_code(index))
        return widen(index, sorts) if checks and index.dtype.is_int else index

    indices = tuple(map(wide, node.indices))
    same = all(a is b for a, b in zip(indices, node.indices, strict=True))
    return node if same else node.replace(indices=indices)


class _Expand(Analysed):
    """Expands checks; `pending` holds those to run before the statement rewritten last."""

    def __init__(self, func: PrimFunc, analyzer: Analyzer) -> None:
        super().__init__(analyzer)
        operator = str(func.attrs.get("op", func.name))
        self.owner = func.name if "+" in operator else operator  # a fused program has its own name
        self.sorts = Sorts(value_variables(func))
        self.pending: list[Check] = []
        self.roots, self.pointers = memory_roots(func), named_pointers(func)

    # ---------------------------------------------------------------------------------- helpers

    def _strip(self, expr: Expr) -> Expr:
        strip = _Strip(self.owner, self.sorts)
        result = strip(expr)
        self._add(strip.found)
        return result

    def _add(self, checks: list[Check]) -> None:
        for check in checks:
            if not any(structural_equal(check.parts(), other.parts()) for other in self.pending):
                self.pending.append(check)

    def _apart(self, stmt: Stmt) -> tuple[Stmt, list[Check]]:
        outer, self.pending = self.pending, []
        result = self(stmt)
        matches, self.pending = self.pending, outer
        return result, matches

    def _changed(self, check: Check, written: set[Buffer]) -> bool:
        """Whether what the check reads may be in memory that is written."""
        return any(self._root(buffer) in written for buffer in check.reads())

    def _root(self, buffer: Buffer) -> Buffer:
        return self.roots.get(buffer, buffer)

    def _written(self, root: Node) -> set[Buffer]:
        """The memory that a statement or an expression may write: by stores, by atomic updates, and
        by calls that are passed its address."""
        result: set[Buffer] = set()
        for node in walk_code(root):
            if isinstance(node, BufferStore):
                result.add(node.buffer)
            elif isinstance(node, Call) and op_has_effect(node.op):
                for part in (part for arg in node.args for part in walk_code(arg)):
                    if isinstance(part, BufferLoad):
                        result.add(part.buffer)
                    elif isinstance(part, Var) and part.dtype.is_handle:
                        behind = memories(part, self.pointers)
                        result.update(m for m in behind if isinstance(m, Buffer))
        return {self._root(buffer) for buffer in result}

    # ------------------------------------------------------------------------------- statements

    def _leaf(self, node: S.BufferStore | S.Evaluate | S.AssertStmt) -> Stmt:
        strip = _Strip(self.owner, self.sorts)
        wide = _with_wide_indices(node, self.sorts) if isinstance(node, S.BufferStore) else node
        result = strip.descend(wide)
        self._add(strip.found)
        return result

    rewrite_BufferStore = rewrite_Evaluate = rewrite_AssertStmt = _leaf

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        out: list[Stmt] = []
        written: set[Buffer] = set()
        barrier = False
        for part in node.seq:
            result, checks = self._apart(part)
            early = [c for c in checks if not barrier and not self._changed(c, written)]
            self._add(early)
            out += [*(statement(c) for c in checks if c not in early), result]
            written |= self._written(part)
            barrier = barrier or has_effect(part) or _may_stop(part)
        return sequence(out)

    def rewrite_For(self, node: For) -> Stmt:
        low, extent = self._strip(node.min), self._strip(node.extent)
        written = self._written(node.body)
        inside: list[Check] = []
        with self.inside(node.loop_var, Range(low, extent)):
            body, checks = self._apart(node.body)
        for check in checks:  # outside, where the loop is not known to iterate
            moved = None if self._changed(check, written) else self._leave(check, node)
            if moved is None:
                inside.append(check)
            else:
                self._add([moved])
        before: list[Stmt] = []
        if node.kind is ForKind.VECTORIZED and not any(self._changed(c, written) for c in inside):
            before = [self._loop_of(inside, node)] if inside else []
        else:
            body = _in_front(inside, body)
        return sequence([*before, node.replace(min=low, extent=extent, body=body)])

    def _loop_of(self, checks: list[Check], loop: For) -> Stmt:
        lane = Var(loop.loop_var.name, loop.loop_var.type)
        body = substitute(sequence([*map(statement, checks)]), {loop.loop_var: lane})
        return For(lane, loop.min, loop.extent, ForKind.SERIAL, body)

    def _leave(self, check: Check, loop: For) -> Check | None:
        """The check hoisted out of a loop; None when it differs between iterations."""
        var = loop.loop_var
        if uses_var(check.inside, var):
            return None
        guards: list[Expr] = []
        ends: set[bool] = set()
        leaves_early = jumps(loop.body) or may_return(loop.body)  # the last iteration may not run
        for guard in (part for whole in check.guards for part in conjuncts(whole)):
            if not uses_var(guard, var):
                guards.append(guard)
                continue
            falling = self._falls(guard, var)
            if falling is None or (not falling and leaves_early):
                return None
            ends.add(falling)
            last = sub(add(loop.min, loop.extent), 1)
            guards.append(substitute(guard, {var: loop.min if falling else last}))
        if len(ends) > 1:
            return None
        some = compare(E.GT, loop.extent, const(0, loop.extent.dtype))
        if not isinstance(some, E.IntImm) and not self.analyzer.prove(some):
            guards.insert(0, some)
        return Check(check.inside, tuple(guards), check.message)

    def _falls(self, guard: Expr, var: Var) -> bool | None:
        """Whether the guard holds for a leading range of iterations (True) or a trailing one
        (False).

        None where neither is known. Either range may be empty.
        """
        if isinstance(guard, (E.LT, E.LE)):
            room = E.Sub(guard.b, guard.a)
        elif isinstance(guard, (E.GT, E.GE)):
            room = E.Sub(guard.a, guard.b)
        else:
            return None
        if not is_index(room.dtype) or reads_memory(room) or self.analyzer.is_value(room):
            return None
        after = substitute(room, {var: E.Add(var, const(1, var.dtype))})
        step = const_int(self.analyzer.simplify(E.Sub(after, room)))
        return None if step is None else step <= 0

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        condition = self._strip(node.condition)
        with self.analyzer.assume(stable(condition)):
            then_case, checks = self._apart(node.then_case)
        self._add([check.under(condition) for check in checks])
        else_case = node.else_case
        if else_case is not None:
            with self.analyzer.assume(stable_negation(condition)):
                else_case, checks = self._apart(else_case)
            self._add([check.under(logical_not(condition)) for check in checks])
        return node.replace(condition=condition, then_case=then_case, else_case=else_case)

    def rewrite_While(self, node: S.While) -> Stmt:
        body, checks = self._apart(node.body)
        body = sequence([*map(statement, checks), body])
        outer, self.pending = self.pending, []
        condition = self._strip(node.condition)
        result, self.pending = self.pending, outer
        if not result:
            return node.replace(condition=condition, body=body)
        leave = S.IfThenElse(
            logical_not(condition), S.Evaluate(Call("break", (), E.DType("int", 32)))
        )
        return S.While(const(True, "bool"), sequence([*map(statement, result), leave, body]))

    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        value, effect = self._strip(node.value), has_effect(node.value)
        body, checks = self._apart(node.body)
        body = self._keep(body, checks, lambda c: effect or c.uses(node.var))
        return node.replace(value=value, body=body)

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        body, checks = self._apart(node.body)
        return node.replace(body=self._keep(body, checks, lambda c: node.buffer in c.reads()))

    def rewrite_DeclBuffer(self, node: S.DeclBuffer) -> Stmt:
        body, checks = self._apart(node.body)
        return node.replace(body=self._keep(body, checks, lambda c: node.buffer in c.reads()))

    def rewrite_AttrStmt(self, node: S.AttrStmt) -> Stmt:
        body, checks = self._apart(node.body)
        return node.replace(body=self._keep(body, checks, lambda c: node.key == MATCH_BUFFER))

    def _keep(self, body: Stmt, checks: list[Check], stays: Callable[[Check], bool]) -> Stmt:
        """Keep checks that need the statement's definition in its body, and pass on the others."""
        self._add([c for c in checks if not stays(c)])
        return sequence([*(statement(c) for c in checks if stays(c)), body])
