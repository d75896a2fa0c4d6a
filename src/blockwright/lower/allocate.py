"""Move allocations to their innermost use and shrink them to the footprint there.

Before::

    C_local = T.allocate((1024, 1024), scope="local")
    for i0 in T.parallel(128):
        for i, j in T.grid(8, 16):
            C_local[i0 * 8 + i, j] = 0.0
        ...

After::

    for i0 in T.parallel(128):
        C_local = T.allocate((8, 16), scope="local")
        for i, j in T.grid(8, 16):
            C_local[i, j] = 0.0
        ...

`place_allocations` sinks allocations and `compact_buffers` shrinks them. `hoist_allocations` later
moves the compact buffers out of serial loops again, where one allocation is enough.
"""

from __future__ import annotations

from blockwright.analysis.canonical.control_reads import loads_of_layout
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import Analyzer, defined
from blockwright.ir import (
    Allocate,
    Buffer,
    BufferLoad,
    BufferRegion,
    BufferStore,
    Expr,
    For,
    ForKind,
    MatchBufferRegion,
    PrimFunc,
    Range,
    Stmt,
    Var,
    const,
    const_int,
    free_vars,
    is_const_int,
    loops,
    seq,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.access import BufferAccess, find_accesses, largest, touched_box
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.loop_carried import private_to
from blockwright.lower.rewrite import (
    Analysed,
    Renamed,
    Scoped,
    Statements,
    mentions,
    reads_memory,
    sequence,
    stable,
    vector_binary,
)

# ---------------------------------------------------------------------------------------- placing


@lowering_pass
def place_allocations(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Sink each allocation to the innermost statement that contains all uses of one lifetime."""
    return func.replace(body=_Place(function_analyzer(func))(func.body))


class _Place(Analysed, Statements):
    def rewrite_For(self, node: For) -> Stmt:
        with self.inside(node.loop_var, node.dom):
            return self.descend(node)

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        node = node.replace(body=self(node.body))
        return self._sink(node, node.body)

    def _sink(self, node: Allocate, stmt: Stmt) -> Stmt:
        """`stmt` with the allocation sunk into it as far as possible."""
        buffer = node.buffer
        if isinstance(stmt, S.SeqStmt):
            users = [i for i, part in enumerate(stmt.seq) if mentions(part, buffer)]
            if not users:
                return stmt
            first, last = users[0], users[-1] + 1
            if last - first == 1:
                middle = self._sink(node, stmt.seq[first])
            else:
                middle = node.replace(body=seq(stmt.seq[first:last]))
            return seq([*stmt.seq[:first], middle, *stmt.seq[last:]])
        if not mentions(stmt, buffer):
            return stmt
        inner = self._into(node, stmt)
        return node.replace(body=stmt) if inner is None else inner

    def _into(self, node: Allocate, stmt: Stmt) -> Stmt | None:
        """The statement with the allocation in its body; None when it must stay outside."""
        buffer = node.buffer
        match stmt:
            case For():
                return self._into_loop(node, stmt)
            case S.IfThenElse():
                other = stmt.else_case
                if mentions(stmt.condition, buffer):
                    return None
                if other is not None and mentions(other, buffer):
                    if mentions(stmt.then_case, buffer):
                        return None
                    return stmt.replace(else_case=self._sink(node, other))
                with self.analyzer.assume(stable(stmt.condition)):
                    return stmt.replace(then_case=self._sink(node, stmt.then_case))
            case S.LetStmt():
                if mentions(stmt.value, buffer):
                    return None
                return stmt.replace(body=self._sink(node, stmt.body))
            case Allocate():
                if any(load.buffer is buffer for load in loads_of_layout(stmt.buffer)):
                    return None
                return stmt.replace(body=self._sink(node, stmt.body))
            case S.AttrStmt() | S.DeclBuffer() if _feeds_threads(stmt.body, buffer):
                beside = [c for c in stmt.children() if c is not stmt.body]
                if any(mentions(child, buffer) for child in beside):
                    return None
                return stmt.replace(body=self._sink(node, stmt.body))
            case _:
                return None

    def _into_loop(self, node: Allocate, loop: For) -> Stmt | None:
        """The loop with the allocation in its body; None when iterations may share elements.

        Iterations of a parallel loop exchange no data: a box that does not depend on the loop
        variable is private to each iteration, even where that cannot be proved."""
        buffer = node.buffer
        if mentions(loop.min, buffer) or mentions(loop.extent, buffer):
            return None
        if loop.kind is ForKind.UNROLLED and not _feeds_threads(loop.body, buffer):
            return None
        if loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED, ForKind.PARALLEL):
            return None
        with self.inside(loop.loop_var, loop.dom):
            accesses = find_accesses(loop.body, buffer)
            if not private_to(loop, buffer, accesses, self.analyzer):
                box = touched_box(accesses, buffer, self.analyzer)
                moving = any(uses_var(rng, loop.loop_var) for rng in box)
                if moving or loop.kind is not ForKind.PARALLEL:
                    return None
            return loop.replace(body=self._sink(node, loop.body))


def _feeds_threads(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a parallel loop in the statement uses the buffer."""
    return any(loop.kind is ForKind.PARALLEL and mentions(loop, buffer) for loop in loops(stmt))


# ------------------------------------------------------------------------------------- compacting

_MOST_PADDED = 1 << 14
"""Largest tile, in elements, for which a buffer of symbolic size is padded to a constant size."""


@lowering_pass
def compact_buffers(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Shrink each allocated buffer to the extents that its accesses need."""
    return func.replace(body=_Compact(function_analyzer(func), context)(func.body))


class _Compact(Analysed):
    def __init__(self, analyzer: Analyzer, context: LowerContext) -> None:
        super().__init__(analyzer)
        self.context = context

    def rewrite_For(self, node: For) -> Stmt:
        with self.inside(node.loop_var, node.dom):
            return self.descend(node)

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        with self.analyzer.assume(stable(node.condition)):
            then_case = self(node.then_case)
        else_case = None if node.else_case is None else self(node.else_case)
        return node.replace(then_case=then_case, else_case=else_case)

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        buffer = node.buffer
        shape = tuple(nonnegative(extent, self.analyzer) for extent in buffer.shape)
        unsure = [n for n, kept in zip(buffer.shape, shape, strict=True) if n is not kept]
        if unsure:
            sized = buffer.replace(shape=shape)
            node = node.replace(buffer=sized, body=Renamed(buffer, sized)(node.body))
        node = self._compacted(node)
        checks = self._size_checks(buffer, unsure)
        return sequence([*checks, node.replace(body=self(node.body))])

    def _size_checks(self, buffer: Buffer, unsure: list[Expr]) -> list[Stmt]:
        """The assertions of a sanitizer build on declared extents."""
        if "bounds" not in self.context.options.sanitize:
            return []
        text = f"BW717: {buffer.name}: negative extent"
        return [S.AssertStmt(E.GE(n, const(0, n.dtype)), text) for n in unsure]

    def _compacted(self, node: Allocate) -> Allocate:
        buffer = node.buffer
        accesses = find_accesses(node.body, buffer)
        if not accesses or buffer.strides or any(access.opaque for access in accesses):
            return node
        box = touched_box(accesses, buffer, self.analyzer)
        local = _locals(accesses)
        limit = _MOST_PADDED if buffer.scope == "global" else None
        ranges = [
            _useful(rng, extent, self.analyzer, local, limit)
            for rng, extent in zip(box, buffer.shape, strict=True)
        ]
        if fixed := max(access.fixed for access in accesses):
            last = buffer.shape[buffer.ndim - fixed :]
            ranges[buffer.ndim - fixed :] = (Range(const(0, n.dtype), n) for n in last)
        elif ranges and buffer.scope == "local":
            ranges[-1] = _whole_vectors(ranges[-1], self.context.target.lanes(buffer.dtype))
        same = (
            is_const_int(r.min, 0) and r.extent is n
            for r, n in zip(ranges, buffer.shape, strict=True)
        )
        if all(same):
            return node
        # The bounds of the box are evaluated even where no access runs, and every access is rebased
        # on them, so they must be defined everywhere (no division by zero).
        total = [
            defined(e, self.analyzer)
            for r in ranges
            for e in (r.min, nonnegative(r.extent, self.analyzer))
        ]
        known = tuple(e for e in total if e is not None)
        if len(known) < len(total):
            return node
        starts, shape = known[::2], known[1::2]
        new = buffer.replace(shape=shape)
        body = _Rebase(buffer, new, starts)(node.body)
        return node.replace(buffer=new, body=body)


def _locals(accesses: list[BufferAccess]) -> set[Var]:
    return {var for access in accesses for var, _ in access.loops}


def _useful(
    rng: Range, extent: Expr, analyzer: Analyzer, local: set[Var], limit: int | None
) -> Range:
    """The touched range of one dimension, rounded up to a constant extent where one is known.

    Returns the full dimension where the range may exceed it, or depends on variables that are not
    in scope at the allocation. `limit` limits the extent that rounding up may produce.
    """
    whole = Range(const(0, extent.dtype), extent)
    if local & {*free_vars(rng.min), *free_vars(rng.extent)} or reads_memory(rng):
        return whole
    full, bound = const_int(extent), const_int(rng.extent)
    if bound is not None and bound > _MOST_PADDED and full is None:
        # A data-dependent index may have any value of its type.
        return rng if analyzer.prove(E.LE(rng.extent, extent)) else whole
    if bound is None:
        if limit is not None and analyzer.prove_equal(rng.extent, extent):
            return whole
        high = largest(rng.extent, analyzer)
        bound = high if high is not None and (limit is None or high <= limit) else None
    if bound is None or bound <= 0:
        return rng if analyzer.prove(E.LE(rng.extent, extent)) else whole
    if full is not None and bound >= full:
        return whole
    return Range(rng.min, const(bound, extent.dtype))


def _whole_vectors(rng: Range, lanes: int) -> Range:
    """The range rounded up to whole vectors, so that a partial vector fits a register too."""
    size = const_int(rng.extent)
    if size is None or size <= lanes // 2 or size % lanes == 0:
        return rng
    return Range(rng.min, const(-(-size // lanes) * lanes, rng.extent.dtype))


class _Rebase(Scoped):
    """Accesses of a buffer in coordinates relative to the start of its box."""

    def __init__(self, old: Buffer, new: Buffer, starts: tuple[Expr, ...]) -> None:
        super().__init__()
        self.old, self.new, self.starts = old, new, starts

    def _moved(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(
            vector_binary(E.Sub, index, start)
            for index, start in zip(indices, self.starts, strict=True)
        )

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        new = self.descend(node)
        if node.buffer is not self.old:
            return new
        return new.replace(buffer=self.new, indices=self._moved(new.indices))

    def rewrite_BufferStore(self, node: BufferStore) -> Stmt:
        new = self.descend(node)
        if node.buffer is not self.old:
            return new
        return new.replace(buffer=self.new, indices=self._moved(new.indices))

    def rewrite_BufferRegion(self, node: BufferRegion) -> BufferRegion:
        new = self.descend(node)
        if node.buffer is not self.old:
            return new
        starts = self._moved(tuple(rng.min for rng in new.region))
        region = tuple(Range(low, rng.extent) for low, rng in zip(starts, new.region, strict=True))
        return BufferRegion(self.new, region)

    def rewrite_MatchBufferRegion(self, node: MatchBufferRegion) -> MatchBufferRegion:
        return node.replace(source=self(node.source))
