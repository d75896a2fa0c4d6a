"""Vectorize marked loops: rewrite their bodies to vector statements.

Before::

    for v in T.vectorized(16):
        if f * 16 + v < n:
            B[f * 16 + v] = T.exp(A[f * 16 + v]) * s[0]

After::

    B.vstore([T.Ramp(f * 16, 1, 16)],
             T.exp(A.vload([T.Ramp(f * 16, 1, 16)], predicate=m)) * T.Broadcast(s[0], 16),
             predicate=m)        # m: T.Ramp(f * 16, 1, 16) < T.Broadcast(n, 16)

In a thread-private "local" buffer, a masked store becomes a select with the old contents, so that
the buffer can live in registers.

A sum, minimum or maximum over the lanes, written as `B[i] = B[i] + f(v)`, becomes one vector
reduction; other reductions combine their lanes in a tree (`horizontal_reduce`). A loop whose body
has no vector form becomes serial, and a note is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from blockwright.analysis.canonical.memory import memory_roots, named_twice
from blockwright.arith.condition import conjuncts
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
    Stmt,
    Var,
    add,
    build,
    collect,
    const,
    const_int,
    free_vars,
    is_const_int,
    logical_not,
    select,
    structural_equal,
    substitute,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.annotations import REDUCER
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.cpu.horizontal_reduce import combined_lanes
from blockwright.lower.lanes import CannotVectorize, LaneRewriter
from blockwright.lower.rewrite import Analysed, Instantiate, broadcast, fold, sequence, walk_code
from blockwright.support import BuildError


@lowering_pass
def vectorize_loops(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Vectorize the marked loops of the function.

    Raises BuildError BW630 where the number of lanes is not a constant, and BW632 where all lanes
    update one element and the update is not a reduction step.
    """
    return func.replace(body=_Loops(context, func)(func.body))


class _Loops(Analysed):
    def __init__(self, context: LowerContext, func: PrimFunc) -> None:
        super().__init__(function_analyzer(func))
        self.context = context
        self.roots = memory_roots(func)
        self.own: set[Buffer] = set()  # allocated inside the innermost enclosing parallel loop

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        self.own.add(node.buffer)
        return self.descend(node)

    def rewrite_For(self, node: For) -> Stmt:
        if node.kind is not ForKind.VECTORIZED:
            outer = self.own
            self.own = set() if node.kind is ForKind.PARALLEL else outer
            with self.inside(node.loop_var, node.dom):
                done = self.descend(node)
            self.own = outer
            return done
        count = const_int(node.extent)
        if count is None:
            raise BuildError(
                f"loop {node.loop_var.name} cannot be vectorized: its extent "
                f"{node.extent!r} is not a constant",
                code="BW630",
                help="split the loop by the vector length first",
            )
        if count == 1:  # remainder of a split loop; single-lane vectors do not exist
            return self(substitute(node.body, {node.loop_var: node.min}))
        fewer = self._narrowed(node, count)
        if fewer is not node:
            return self(fewer)
        if twice := named_twice(node.body, self.roots):
            self._note(node, f"{twice[0].name} and {twice[1].name} alias")
            return self(node.replace(kind=ForKind.SERIAL))
        inner = [loop for loop in collect(node.body, For) if loop.kind is ForKind.VECTORIZED]
        if inner:
            self._note(node, f"loop {inner[0].loop_var.name} inside it is vectorized")
            return self(node.replace(kind=ForKind.SERIAL))
        if count > self.context.options.max_lanes:
            return self(self._cut(node, count))
        try:
            return _Body(node, count, self._lanes(node, count), self.roots).run()
        except CannotVectorize as reason:
            self._note(node, str(reason))
            return self(node.replace(kind=ForKind.SERIAL))

    def _narrowed(self, node: For, count: int) -> Stmt:
        """The loop shortened, up to a power of two, to the iterations where its guard holds.

        Applies where the guard depends on the loop variable alone and fails from some iteration on.
        """
        guard = node.body
        if not isinstance(guard, S.IfThenElse) or guard.else_case is not None:
            return node
        var = node.loop_var
        if set(free_vars(guard.condition)) != {var} or collect(guard.condition, BufferLoad):
            return node
        first = [add(node.min, const(k, var.dtype)) for k in range(count)]
        holds = [self.analyzer.simplify(substitute(guard.condition, {var: k})) for k in first]
        kept = sum(is_const_int(value, 1) for value in holds)
        lanes = 1 << (kept - 1).bit_length() if kept else 0
        if not 0 < lanes < count or not all(is_const_int(value, 1) for value in holds[:kept]):
            return node
        if any(not is_const_int(value, 0) for value in holds[kept:]):
            return node
        body = guard.then_case if lanes == kept else guard
        if lanes == 1:
            return substitute(body, {var: node.min})
        return node.replace(extent=const(lanes, node.extent.dtype), body=body)

    def rewrite_AttrStmt(self, node: S.AttrStmt) -> Stmt:
        return self(node.body) if node.key == REDUCER else self.descend(node)

    def _lanes(self, node: For, count: int) -> LaneRewriter:
        registers = frozenset(b for b in self.own if b.scope == "local")
        isa = self.context.target.isa
        masks = isa is not None and isa.masked_memory
        return LaneRewriter(node.loop_var, node.min, count, self.analyzer, registers, masks)

    def _note(self, node: For, why: str) -> None:
        self.context.note(f"loop {node.loop_var.name} is not vectorized: {why}")

    def _cut(self, node: For, count: int) -> Stmt:
        """Strip-mine a long loop into a serial loop over vectors and a shorter remainder vector."""
        limit = self.context.options.max_lanes
        fitting = [n for n in range(limit, limit // 4, -1) if count % n == 0]
        lanes = fitting[0] if fitting else limit
        kind = node.loop_var.dtype
        outer, lane = Var(f"{node.loop_var.name}_o", kind), Var(node.loop_var.name, kind)
        start = fold(E.Add, node.min, fold(E.Mul, outer, const(lanes, kind)))
        zero = const(0, kind)

        def vector(base: Expr, lanes: int, var: Var, fresh_definitions: bool) -> Stmt:
            mapping = {node.loop_var: fold(E.Add, base, var)}
            body = Instantiate(mapping, fresh_definitions=fresh_definitions)(node.body)
            return For(var, zero, const(lanes, kind), ForKind.VECTORIZED, body)

        main = For(
            outer,
            zero,
            const(count // lanes, kind),
            ForKind.SERIAL,
            vector(start, lanes, lane, False),
        )
        rest = count % lanes
        if not rest:
            return main
        base = fold(E.Add, node.min, const(count - rest, kind))
        return sequence([main, vector(base, rest, Var(node.loop_var.name, kind), True)])


class _Body:
    """Rewrites the body of one vectorized loop."""

    def __init__(
        self, loop: For, count: int, lanes: LaneRewriter, roots: Mapping[Buffer, Buffer]
    ) -> None:
        self.loop, self.count, self.lanes, self.roots = loop, count, lanes, roots

    def run(self) -> Stmt:
        combined = combined_lanes(self.loop.body, self.lanes)
        return self.stmt(self.loop.body, self.lanes) if combined is None else combined

    def stmt(self, node: Stmt, lanes: LaneRewriter) -> Stmt:
        match node:
            case BufferStore():
                return self._store(node, lanes)
            case S.SeqStmt():
                return sequence([self.stmt(part, lanes) for part in node.seq])
            case S.IfThenElse():
                return self._branch(node, lanes)
            case For():
                low, extent = lanes(node.min), lanes(node.extent)
                if low.dtype.lanes > 1 or extent.dtype.lanes > 1:
                    raise CannotVectorize(f"the range of loop {node.loop_var.name} varies by lane")
                inner = lanes.inside(node.loop_var, node.dom)
                return node.replace(min=low, extent=extent, body=self.stmt(node.body, inner))
            case S.LetStmt():
                value = lanes(node.value)
                var = lanes.bind(node.var, value)
                return node.replace(var=var, value=value, body=self.stmt(node.body, lanes))
            case S.Evaluate():
                lanes(node.value)  # raises for calls with an effect
                return S.Evaluate(const(0, "int32"))
            case S.AttrStmt():
                body = self.stmt(node.body, lanes)
                return body if node.key == REDUCER else node.replace(body=body)
            case _:
                raise CannotVectorize(f"{type(node).__name__} has no vector form")

    def _branch(self, node: S.IfThenElse, lanes: LaneRewriter) -> Stmt:
        condition = lanes(node.condition)
        if condition.dtype.lanes == 1:
            else_case = None if node.else_case is None else self.stmt(node.else_case, lanes)
            return S.IfThenElse(condition, self.stmt(node.then_case, lanes), else_case)
        # A mask is evaluated at every access under it. Its parts that read what the branches may
        # write are bound to names, with the values from before.
        named: list[tuple[Var, Expr]] = []
        written = self._written(node)
        each: list[Expr] = []
        for one in conjuncts(node.condition):
            part = lanes(one)
            if part.dtype.lanes > 1 and self._reads_any(part, written):
                var = Var("mask", part.dtype)
                named.append((var, self._guarded(one, each, lanes)))
                part = var
            each.append(part)
        if node.else_case is None:
            # Test uniform conditions once, in a branch: some targets evaluate masks lane by lane.
            common = [part for part in each if part.dtype.lanes == 1]
            own = build.all_of(part for part in each if part.dtype.lanes > 1)
            body = _with_names(named, self.stmt(node.then_case, lanes.under(own)))
            return S.IfThenElse(build.all_of(common), body) if common else body
        mask = self._joined(each) if named else condition
        if self._reads_any(mask, written):  # in its uniform parts
            whole = Var("mask", mask.dtype)
            named.append((whole, mask))
            mask = whole
        then_case = self.stmt(node.then_case, lanes.under(mask))
        else_case = self.stmt(node.else_case, lanes.under(logical_not(mask)))
        return _with_names(named, sequence([then_case, else_case]))

    def _guarded(self, part: Expr, before: list[Expr], lanes: LaneRewriter) -> Expr:
        """A part of a condition in the lanes in which the parts before it hold; they may keep it
        from reading outside of a buffer."""
        return lanes.under(self._joined(before))(part) if before else lanes(part)

    def _joined(self, parts: list[Expr]) -> Expr:
        return reduce(E.And, (broadcast(part, self.count) for part in parts))

    def _written(self, node: S.IfThenElse) -> set[Buffer]:
        """The memory that the branches write."""
        stores = (n for n in walk_code(node) if isinstance(n, BufferStore))
        return {self.roots.get(store.buffer, store.buffer) for store in stores}

    def _reads_any(self, value: Expr, memory: set[Buffer]) -> bool:
        loads = (n for n in walk_code(value) if isinstance(n, BufferLoad))
        return any(self.roots.get(load.buffer, load.buffer) in memory for load in loads)

    def _store(self, node: BufferStore, lanes: LaneRewriter) -> Stmt:
        (index,) = node.indices
        if index.dtype.lanes > 1 or node.predicate is not None:
            return self._vector_store(node, lanes)
        place = lanes(index)
        if place.dtype.lanes == 1:
            return self._same_place(node, place, lanes)
        value = broadcast(lanes(node.value), self.count)
        place = lanes.ramp(place)
        if lanes.mask is not None and lanes.in_registers(node.buffer, place):
            old = BufferLoad(node.buffer, (place,))
            return BufferStore(node.buffer, select(lanes.mask, value, old), (place,))
        return BufferStore(node.buffer, value, (place,), lanes.mask)

    def _vector_store(self, node: BufferStore, lanes: LaneRewriter) -> Stmt:
        if uses_var(node, self.loop.loop_var) or lanes.mask is not None:
            raise CannotVectorize("a vector store depends on the loop variable")
        if _reads(node.value, node):
            raise CannotVectorize("a vector store is repeated")
        lanes(node.value)
        return node

    def _same_place(self, node: BufferStore, place: Expr, lanes: LaneRewriter) -> Stmt:
        """A store to one element from all lanes: a reduction, or one uniform value.

        Under a mask it may be that of one lane, as `if v == 3: B[3] = f(B[3])` for `B[v]`.
        """
        step = self._reduction(node, lanes)
        if step is not None:
            return _guarded(step.replace(indices=(place,)), lanes.mask)
        value = lanes(node.value)
        if value.dtype.lanes == 1 and not _reads(node.value, node) and lanes.mask is None:
            return node.replace(value=value, indices=(place,))
        if _reads(node.value, node) and lanes.mask is None:
            raise BuildError(
                f"loop {self.loop.loop_var.name} is vectorized, but every iteration updates the "
                f"same element of {node.buffer.name}",
                code="BW632",
                help="vectorize a spatial loop, use rfactor, or write the update as a step "
                "of a reducer: B[i] = B[i] + f(v), a builtin one or one declared with "
                'T.block_attr({"reducer": T.comm_reducer(…)})',
            )
        raise CannotVectorize(f"all iterations store to one element of {node.buffer.name}")

    def _reduction(self, node: BufferStore, lanes: LaneRewriter) -> BufferStore | None:
        ops: dict[type[Expr], str] = {
            E.Add: "vector_reduce_add", E.Min: "vector_reduce_min", E.Max: "vector_reduce_max",
        }  # fmt: skip
        value = node.value
        op = ops.get(type(value))
        if op is None or not isinstance(value, E.BinaryOp):
            return None
        for kept, term in ((value.a, value.b), (value.b, value.a)):
            if _same_element(kept, node) and not _reads(term, node):
                vector = broadcast(lanes(term), self.count)
                if lanes.mask is not None:
                    neutral = _neutral(op, term.dtype)
                    vector = select(lanes.mask, vector, broadcast(neutral, self.count))
                total = Call(op, (vector,), term.dtype)
                plain = BufferLoad(node.buffer, node.indices)
                return node.replace(value=type(value)(plain, total))
        return None


def _guarded(step: Stmt, mask: Expr | None) -> Stmt:
    """A reduction step under the uniform part of the mask; its element may not exist elsewhere."""
    if mask is None:
        return step
    every = [part.value for part in conjuncts(mask) if isinstance(part, E.Broadcast)]
    return S.IfThenElse(reduce(E.And, every), step) if every else step


def _neutral(op: str, dtype: E.DType) -> Expr:
    if op == "vector_reduce_add":
        return const(0, dtype)
    smallest = op == "vector_reduce_max"
    if dtype.is_float:
        return const(float("-inf") if smallest else float("inf"), dtype)
    return const(dtype.min_value if smallest else dtype.max_value, dtype)


def _reads(value: Node, store: BufferStore) -> bool:
    return any(isinstance(n, BufferLoad) and n.buffer is store.buffer for n in walk_code(value))


def _same_element(value: Expr, store: BufferStore) -> bool:
    return (
        isinstance(value, BufferLoad)
        and value.buffer is store.buffer
        and value.predicate is None
        and structural_equal(value.indices[0], store.indices[0])
    )


def _with_names(named: list[tuple[Var, Expr]], body: Stmt) -> Stmt:
    for var, value in reversed(named):
        body = S.LetStmt(var, value, body)
    return body
