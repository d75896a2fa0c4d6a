"""Insert run-time checks on request: out-of-bounds accesses, NaN, uninitialized reads.

Before::

    B[i + 1] = A[i] / s[0]

After (bounds, nan)::

    assert 0 <= i + 1 and i + 1 < n, "BW713: B: index out of bounds in dimension 0"
    B[i + 1] = A[i] / s[0]
    assert not T.isnan(B[i + 1]), "BW714: B: NaN written"

Checks that provably hold are omitted. `uninit` keeps a flag per element of every allocated buffer
whose address does not escape. Checks run lane by lane, so vectorized loops become serial.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    Allocate,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Expr,
    For,
    ForKind,
    Node,
    PrimFunc,
    Stmt,
    Var,
    add,
    all_of,
    call,
    cast_to,
    collect,
    compare,
    const,
    logical_not,
    mul,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.check_indices import Check, statement
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.intervals import Intervals
from blockwright.lower.rewrite import (
    Analysed,
    mentions,
    sequence,
    stable,
    walk_code,
)

_LARGEST = 1 << 63


@lowering_pass
def insert_checks(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Insert the checks that `LowerOptions.sanitize` selects."""
    wanted = context.options.sanitize
    if not wanted:
        return func
    return func.replace(body=_Checks(func, context, wanted)(func.body))


class _Checks(Analysed):
    def __init__(self, func: PrimFunc, context: LowerContext, wanted: tuple[str, ...]) -> None:
        super().__init__(function_analyzer(func))
        self.context, self.wanted = context, wanted
        self.intervals = Intervals(func)
        self.shadows: dict[Buffer, Buffer] = {}

    def rewrite_For(self, node: For) -> Stmt:
        checks = self._of_reads([node.min, node.extent])
        self.intervals.enter(node)
        with self.inside(node.loop_var, node.dom):
            kind = node.kind
            if kind is ForKind.VECTORIZED:
                self.context.note(
                    f"loop {node.loop_var.name} is not vectorized: it has sanitizer checks"
                )
                kind = ForKind.SERIAL
            loop = node.replace(kind=kind, body=self(node.body))
        return sequence([*checks, loop])

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        with self.analyzer.assume(stable(node.condition)):
            then_case = self(node.then_case)
        else_case = None if node.else_case is None else self(node.else_case)
        checks = self._of_reads([node.condition])
        return sequence([*checks, S.IfThenElse(node.condition, then_case, else_case)])

    def rewrite_While(self, node: S.While) -> Stmt:
        checks = self._of_reads([node.condition])
        body = self(node.body)
        if not checks:
            return node.replace(body=body)
        leave = S.Evaluate(Call("break", (), E.DType("int", 32)))
        body = sequence([*checks, S.IfThenElse(logical_not(node.condition), leave), body])
        return S.While(const(True, "bool"), body)

    def rewrite_AssertStmt(self, node: S.AssertStmt) -> Stmt:
        return sequence([*self._of_reads([node.condition, *node.values]), node])

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        return sequence([self(stmt) for stmt in node.seq])

    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        checks = self._of_reads([node.value])
        return sequence([*checks, node.replace(body=self(node.body))])

    def rewrite_Evaluate(self, node: S.Evaluate) -> Stmt:
        return sequence([*self._of_reads([node.value]), node])

    def rewrite_BufferStore(self, node: BufferStore) -> Stmt:
        before = self._of_reads([node.value, *node.indices])
        if "bounds" in self.wanted and node.predicate is None:
            before += self._bounds(node.buffer, node.indices, ())
        after: list[Stmt] = []
        shadow = self.shadows.get(node.buffer)
        if shadow is not None:
            after.append(node.replace(buffer=shadow, value=_true(node.value.dtype.lanes)))
        if "nan" in self.wanted and node.value.dtype.is_float and node.value.dtype.lanes == 1:
            written = BufferLoad(node.buffer, node.indices)
            fine = logical_not(call("isnan", written))
            after.append(S.AssertStmt(fine, f"BW714: {node.buffer.name}: NaN written"))
        return sequence([*before, node, *after])

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        if "uninit" not in self.wanted or _escapes(node.buffer, node.body):
            return node.replace(body=self(node.body))
        buffer = node.buffer
        shadow = Buffer(f"{buffer.name}_written", E.DType("bool", 1), buffer.shape)
        self.shadows[buffer] = shadow
        body = self(node.body)
        inner = Allocate(shadow, sequence([_cleared(shadow), body]))
        return node.replace(body=inner)

    # --------------------------------------------------------------------------------- checks

    def _of_reads(self, roots: list[Expr]) -> list[Stmt]:
        checks: list[Stmt] = []
        for root in roots:
            if "bounds" in self.wanted:
                checks += self._divisors(root)
                checks += self._products(root)
            for load, guards in _loads(root, ()):
                if "bounds" in self.wanted and load.predicate is None:
                    checks += self._bounds(load.buffer, load.indices, guards)
                shadow = self.shadows.get(load.buffer)
                if shadow is not None and load.dtype.lanes == 1:
                    known = BufferLoad(shadow, load.indices)
                    text = f"BW715: {load.buffer.name}: read before it is written"
                    checks.append(statement(Check(known, guards, text)))
        return checks

    def _divisors(self, root: Expr) -> list[Stmt]:
        """Assertions that no integer divisor is zero."""
        checks: list[Stmt] = []
        lets = {let.var for let in collect(root, E.Let)}
        for node, guards in _guarded(root, ()):
            if not isinstance(node, (E.FloorDiv, E.FloorMod, E.Div, E.Mod)):
                continue
            divisor = node.b
            if not divisor.dtype.is_int or divisor.dtype.lanes > 1 or uses_var(divisor, lets):
                continue
            fine = compare(E.NE, divisor, const(0, divisor.dtype))
            with self.analyzer.assume(all_of(guards)):
                known = self.analyzer.prove(fine)
            if not known:
                checks.append(statement(Check(fine, guards, "BW716: integer division by zero")))
        return checks

    def _products(self, root: Expr) -> list[Stmt]:
        """Assertions that no product of indices overflows 64 bits."""
        checks: list[Stmt] = []
        lets = {let.var for let in collect(root, E.Let)}
        for node, guards in _guarded(root, ()):
            if not isinstance(node, E.Mul) or node.dtype.lanes > 1 or uses_var(node, lets):
                continue
            low, high = self.intervals.of(node)
            if not self.intervals.sorts.is_index(node) or (low >= -_LARGEST and high < _LARGEST):
                continue
            product = mul(cast_to(node.a, "float64"), cast_to(node.b, "float64"))
            largest = const(float(_LARGEST), "float64")
            fine = all_of([compare(E.LT, product, largest), compare(E.GE, product, -largest)])
            checks.append(statement(Check(fine, guards, "BW718: an index overflows 64 bits")))
        return checks

    def _bounds(
        self, buffer: Buffer, indices: tuple[Expr, ...], guards: tuple[Expr, ...]
    ) -> list[Stmt]:
        checks: list[Stmt] = []
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            for end in _ends(index):
                inside = E.And(E.GE(end, const(0, end.dtype)), compare(E.LT, end, extent))
                if guards:
                    with self.analyzer.assume(all_of(guards)):
                        known = self.analyzer.prove(inside)
                else:
                    known = self.analyzer.prove(inside)
                if not known:
                    text = f"BW713: {buffer.name}: index out of bounds in dimension {axis}"
                    checks.append(statement(Check(inside, guards, text)))
        return checks


def _true(lanes: int) -> Expr:
    yes = const(True, "bool")
    return yes if lanes == 1 else E.Broadcast(yes, lanes)


def _escapes(buffer: Buffer, body: Stmt) -> bool:
    """Whether the buffer's address escapes, so that its writes cannot be tracked."""
    return any(
        isinstance(n, Call) and n.op in ("address_of", "tensor") and mentions(n, buffer)
        for n in walk_code(body)
    )


def _ends(index: Expr) -> list[Expr]:
    """The extreme lanes of an index as scalars; empty for lanes at unrelated places."""
    if isinstance(index, E.Broadcast):
        return [index.value]
    if isinstance(index, E.Ramp):
        last = add(index.base, mul(index.stride, index.lanes - 1))
        return [index.base, last]
    return [index] if index.dtype.lanes == 1 else []


def _loads(node: Node, guards: tuple[Expr, ...]) -> Iterator[tuple[BufferLoad, tuple[Expr, ...]]]:
    """Loads of an expression, with the conditions under which they execute."""
    for result, around in _guarded(node, guards):
        if isinstance(result, BufferLoad):
            yield result, around


def _guarded(node: Node, guards: tuple[Expr, ...]) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """Subexpressions, with the conditions under which they are evaluated."""
    if isinstance(node, Call) and node.op in ("address_of", "tensor"):
        return
    if isinstance(node, Call) and node.op == "if_then_else":
        condition, yes, no = node.args
        yield from _guarded(condition, guards)
        yield from _guarded(yes, (*guards, *conjuncts(condition)))
        yield from _guarded(no, (*guards, logical_not(condition)))
        return
    if isinstance(node, Buffer):
        return
    for child in node.children():
        yield from _guarded(child, guards)
    if isinstance(node, Expr):
        yield node, guards


def _cleared(shadow: Buffer) -> Stmt:
    indices = tuple(Var(f"c{axis}", n.dtype) for axis, n in enumerate(shadow.shape))
    body: Stmt = BufferStore(shadow, const(False, "bool"), indices)
    for var, extent in reversed(list(zip(indices, shadow.shape, strict=True))):
        body = For(var, const(0, var.dtype), extent, ForKind.SERIAL, body)
    return body
