"""Lower blocks to plain statements: iterators, predicates, initial values, views, allocations.

Before::

    for i, k in T.grid(8, 4):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(i < n)
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]

After::

    for i, k in T.grid(8, 4):
        if i < n:
            if k == 0:
                B[i] = 0.0
            B[i] = B[i] + A[i, k]

What is evaluated once, when a block, a loop or a declaration begins, is bound to a name where the
program may change the memory that it loads: iterators, regions of views, bounds of loops. The
layouts of buffers are bound wherever they load. So no later pass evaluates it again:

    for k in range(N[0]):                           n = N[0]
        N[0] = 3                          ->        for k in range(n): ...

Initial values of reductions that may run no iteration are first moved in front of the reduction.
Facts that the body does not show are kept as attributes for later passes: `match_buffer` (a view
whose strides or offset are variables), `touched_region` (the region reached through an address)
and, in vectorized loops, `reducer` (how a declared reduction combines lanes). Accesses of a view
become accesses of its source; a view that is passed on as a tensor is also declared as a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.analysis import align_rows, define_empty_reductions
from blockwright.analysis.access.stable_values import changes_in
from blockwright.analysis.canonical.control_reads import loads_of_layout
from blockwright.ir import (
    Block,
    BlockRealize,
    Buffer,
    BufferLoad,
    BufferRegion,
    Call,
    DeclBuffer,
    Expr,
    For,
    ForKind,
    IterType,
    IterVar,
    MatchBufferRegion,
    Mutator,
    PrimFunc,
    Range,
    Sorts,
    Stmt,
    Var,
    add,
    all_of,
    cast_to,
    const,
    const_int,
    is_const_int,
    tensor_of,
    value_variables,
    walk,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.annotations import DIM_ALIGN, REDUCER
from blockwright.ir.dtype import HANDLE, INT32, INT64
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import (
    Instantiate,
    reads_memory,
    sequence,
    vector_binary,
    walk_code,
)
from blockwright.support import BuildError

MATCH_BUFFER = "match_buffer"
TOUCHED_REGION = "touched_region"
"""The value of the attribute is 1 if the code behind the address relies on the buffer's strides."""


@lowering_pass
def lower_blocks(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Lower the blocks of the function.

    Raises BuildError BW631 for a loop bound to a thread axis on a target without thread axes, and
    BW613 for a view whose shape does not match its region.
    """
    func = define_empty_reductions(func)
    return func.replace(body=_Blocks(func, context.target.kind)(func.body))


def passed_as_tensors(func: PrimFunc) -> set[Buffer]:
    """Buffers that are passed to calls as tensors, with their shapes."""
    places = (n.args[0] for n in walk_code(func.body) if isinstance(n, Call) and n.op == "tensor")
    return {place.buffer for place in places if isinstance(place, BufferLoad)}


def _computes_with(block: Block, iter_var: IterVar) -> bool:
    """Whether arithmetic on the iterator could wrap around if the iterator were a value.

    True for any arithmetic on a 32-bit iterator, and for a cast of a 64-bit iterator to 32 bits.
    Plain indices and comparisons of the iterator do not count."""
    operators: tuple[type[Any], ...] = (
        E.Cast,
        E.BinaryOp,
        E.Select,
        E.Ramp,
        E.Let,
        S.LetStmt,
        Call,
    )
    if iter_var.var.dtype is not INT32:
        operators = (E.Cast,)
    return any(
        isinstance(node, operators) and any(c is iter_var.var for c in node.children())
        for node in walk(block)
    )


class _Blocks(Mutator):
    def __init__(self, func: PrimFunc, machine: str) -> None:
        super().__init__()
        self.machine = machine
        self.is_index = Sorts(value_variables(func)).is_index
        self.views: dict[Buffer, BufferRegion] = {}
        self.passed = passed_as_tensors(func)
        self.tensors: dict[Buffer, Buffer] = {}  # a view that is passed as a tensor → its buffer
        self.align: dict[Buffer, list[tuple[int, int, int]]] = {}
        self.changes = changes_in(func)
        self.lanes = False  # in the body of a vectorized loop

    def rewrite_BlockRealize(self, node: BlockRealize) -> Stmt:
        block = node.block
        if any(iter_var.var in self._memo for iter_var in block.iter_vars):
            # The block object occurs twice in the tree: give this occurrence its own iterators.
            mapping = {
                iter_var.var: Var(iter_var.var.name, iter_var.var.type)
                for iter_var in block.iter_vars
            }
            mapping |= {b: b.replace(name=b.name) for b in block.alloc_buffers}
            block = Instantiate(mapping)(block)
        values: list[Expr] = []
        named = _Names(self.is_index)
        for iter_var, value in zip(block.iter_vars, node.iter_values, strict=True):
            bound = cast_to(self(value), iter_var.var.dtype)
            if self.changes(value):
                bound = named(bound, iter_var.var.name)
            if (
                bound.dtype is INT32
                and not self.is_index(bound)
                and _computes_with(block, iter_var)
            ):
                bound = Call("as_index", (bound,), INT32)
            self._memo[iter_var.var] = bound
            values.append(bound)
        predicate = self(node.predicate)
        body = named.around(self._block(block, values))
        return body if is_const_int(predicate, 1) else S.IfThenElse(predicate, body)

    def _block(self, block: Block, values: list[Expr]) -> Stmt:
        named = _Names(self.is_index)
        matches = [self._match(match, named) for match in block.match_buffers]
        self._note_alignment(block)
        tensors = [m.buffer for m in block.match_buffers if m.buffer in self.passed]
        self.tensors |= {view: self._tensor(view) for view in tensors}
        layouts = _Names(self.is_index)
        for buffer in block.alloc_buffers:
            self._name_layout(buffer, layouts)
        body = self(block.body)
        for view in reversed(tensors):
            body = self._declared(view, body)
        if self.lanes and REDUCER in block.annotations:
            body = S.AttrStmt(block.annotations[REDUCER], REDUCER, const(1, "int32"), body)
        if block.init is not None:
            body = sequence([_initial(self(block.init), block.iter_vars, values), body])
        for region, fixed in self._touched(block):
            body = S.AttrStmt(region, TOUCHED_REGION, const(int(fixed), "int32"), body)
        for match in reversed(matches):
            if match is not None:
                body = S.AttrStmt(match, MATCH_BUFFER, const(1, "int32"), body)
        for buffer in reversed(block.alloc_buffers):
            new = self(buffer)
            align = self.align.get(new)
            annotations: dict[str, Any] = {DIM_ALIGN: tuple(align)} if align else {}
            body = S.Allocate(new, body, annotations)
        return named.around(layouts.around(body))

    def _name_layout(self, buffer: Buffer, named: _Names) -> None:
        """Bind the sizes of a declared buffer that load memory to names."""
        if not loads_of_layout(buffer):
            return
        shape = tuple(named(self(n), f"{buffer.name}_size") for n in buffer.shape)
        strides = tuple(named(self(n), f"{buffer.name}_stride") for n in buffer.strides)
        offset = buffer.offset
        if offset is not None:
            offset = named(self(offset), f"{buffer.name}_offset")
        self._memo[buffer] = buffer.replace(shape=shape, strides=strides, offset=offset)

    def rewrite_DeclBuffer(self, node: DeclBuffer) -> Stmt:
        return self._declaration(node)

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        return self._declaration(node)

    def _declaration(self, node: DeclBuffer | S.Allocate) -> Stmt:
        named = _Names(self.is_index)
        self._name_layout(node.buffer, named)
        return named.around(self.descend(node))

    # ------------------------------------------------------------------------------------- views

    def _match(self, match: MatchBufferRegion, named: _Names) -> MatchBufferRegion | None:
        """Record a view; return the match if strides or offset must still be bound or checked."""
        source = self._resolve(match.source)
        view = match.buffer
        if any(self.changes(e) for r in match.source.region for e in (r.min, r.extent)):
            ends = ((named(r.min, view.name), named(r.extent, view.name)) for r in source.region)
            source = BufferRegion(source.buffer, tuple(Range(*both) for both in ends))
        extra = len(source.region) - view.ndim
        if extra < 0 or any(const_int(r.extent) not in (1, None) for r in source.region[:extra]):
            raise BuildError(
                f"view {view.name} has {view.ndim} dimensions, its region of "
                f"{source.buffer.name} needs {len(source.region)}",
                code="BW613",
                help="only leading dimensions of extent 1 may be dropped",
            )
        for extent, rng in zip(view.shape, source.region[extra:], strict=True):
            if isinstance(extent, Var):
                self._memo.setdefault(extent, cast_to(rng.extent, extent.dtype))
            elif None not in (const_int(extent), const_int(rng.extent)) and (
                const_int(extent) != const_int(rng.extent)
            ):
                raise BuildError(
                    f"view {view.name} has extent {const_int(extent)} where its region of "
                    f"{source.buffer.name} has {const_int(rng.extent)}",
                    code="BW613",
                    help="give the view the shape of the region",
                )
        self.views[view] = source
        self._memo[view] = view
        demands = view.strides or view.offset is not None or view.offset_factor > 1
        if demands or view.data_alignment > view.dtype.nbytes:
            return MatchBufferRegion(view, source)
        return None

    def _tensor(self, view: Buffer) -> Buffer:
        """The buffer of a view that is passed as a tensor. Its strides are those of the source,
        which are bound when layouts are final."""
        shape = tuple(self(extent) for extent in view.shape)
        strides = tuple(Var(f"{view.name}_stride{axis}", INT64) for axis in range(view.ndim))
        return Buffer(view.name, view.dtype, shape, strides, scope=view.scope)

    def _declared(self, view: Buffer, body: Stmt) -> Stmt:
        """A statement inside the declaration of the buffer of a view."""
        buffer, source = self.tensors[view], self.views[view]
        first = BufferLoad(source.buffer, tuple(rng.min for rng in source.region))
        declared = DeclBuffer(buffer, Call("address_of", (first,), HANDLE), body)
        bound = MatchBufferRegion(buffer, source)
        return S.AttrStmt(bound, MATCH_BUFFER, const(1, "int32"), declared)

    def _resolve(self, region: BufferRegion) -> BufferRegion:
        """The region in terms of source buffers and loop variables."""
        ranges = tuple(self(r) for r in region.region)
        view = self.views.get(region.buffer)
        if view is None:
            return BufferRegion(self(region.buffer), ranges)
        extra = len(view.region) - len(ranges)
        inner = tuple(
            Range(add(outer.min, r.min), r.extent)
            for outer, r in zip(view.region[extra:], ranges, strict=True)
        )
        return BufferRegion(view.buffer, (*view.region[:extra], *inner))

    def _indices(self, source: BufferRegion, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        extra = len(source.region) - len(indices)
        moved = tuple(
            vector_binary(E.Add, rng.min, index)
            for rng, index in zip(source.region[extra:], indices, strict=True)
        )
        return (*(rng.min for rng in source.region[:extra]), *moved)

    def rewrite_Call(self, node: Call) -> Expr:
        place = node.args[0] if node.op == "tensor" else None
        own = self.tensors.get(place.buffer) if isinstance(place, BufferLoad) else None
        return self.descend(node) if own is None else tensor_of(own)

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        new = self.descend(node)
        source = self.views.get(node.buffer)
        if source is None:
            return new
        return BufferLoad(source.buffer, self._indices(source, new.indices), new.predicate)

    def rewrite_BufferStore(self, node: S.BufferStore) -> Stmt:
        new = self.descend(node)
        source = self.views.get(node.buffer)
        if source is None:
            return new
        indices = self._indices(source, new.indices)
        return new.replace(buffer=source.buffer, indices=indices)

    # ------------------------------------------------------------------------------------- facts

    def _touched(self, block: Block) -> list[tuple[BufferRegion, bool]]:
        """Declared regions of the buffers whose addresses the body takes, and whether the code
        behind an address relies on the strides of its buffer.

        It does not if a view passes them on, as variables, or if the region is part of a row.
        """
        views = {match.buffer: match.source for match in block.match_buffers}
        reached: dict[Buffer, None] = {}
        for node in _own_code(block.body):
            if isinstance(node, Call) and node.op == "address_of":
                target = node.args[0]
                if isinstance(target, BufferLoad):
                    reached[target.buffer] = None
        regions: list[tuple[BufferRegion, bool]] = []
        for buffer in reached:
            stated = [r for r in (*block.reads, *block.writes) if r.buffer is buffer]
            passed = any(isinstance(stride, Var) for stride in buffer.strides)
            for region in [views[buffer]] if buffer in views else stated:
                row = all(is_const_int(rng.extent, 1) for rng in region.region[:-1])
                regions.append((self._resolve(region), not (passed or row)))
        return regions

    def _note_alignment(self, block: Block) -> None:
        for index, row in align_rows(block):
            buffer = self(block.writes[index].buffer)
            self.align.setdefault(buffer, []).append(row)

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        parts = [self(stmt) for stmt in node.seq]
        same = all(new is old for new, old in zip(parts, node.seq, strict=True))
        return node if same else sequence(parts)  # flat, also where a block was a sequence

    def rewrite_For(self, node: For) -> Stmt:
        if node.kind is ForKind.THREAD_BINDING and self.machine == "cpu":
            tag = node.thread.thread_tag if node.thread else "a thread axis"
            raise BuildError(
                f"loop {node.loop_var.name} is bound to {tag}, which this processor does not have",
                code="BW631",
                help="use parallel and vectorize, or a cuda target",
            )
        outside, self.lanes = self.lanes, self.lanes or node.kind is ForKind.VECTORIZED
        loop = self.descend(node)
        self.lanes = outside
        if not self.changes(node.min) and not self.changes(node.extent):
            return loop
        named = _Names(self.is_index)
        low = named(loop.min, f"{node.loop_var.name}_begin")
        extent = named(loop.extent, f"{node.loop_var.name}_count")
        return named.around(loop.replace(min=low, extent=extent))


class _Names:
    """Names for indices that are evaluated once, before a statement."""

    def __init__(self, is_index: Callable[[Expr], bool]) -> None:
        self._is_index = is_index
        self._known: list[tuple[Var, Expr]] = []

    def __call__(self, value: Expr, name: str) -> Expr:
        """The name of a value; a value that loads nothing itself."""
        if not reads_memory(value):
            return value
        if value.dtype in (INT32, INT64) and not self._is_index(value):
            value = Call("as_index", (value,), value.dtype)
        var = Var(name, value.dtype)
        self._known.append((var, value))
        return var

    def around(self, body: Stmt) -> Stmt:
        """The statement in the scope of the names."""
        for var, value in reversed(self._known):
            body = S.LetStmt(var, value, body)
        return body


def _own_code(body: Stmt) -> list[Any]:
    """Nodes of a block's body, excluding nested blocks."""
    nested: set[int] = set()
    out: list[Any] = []
    for node in walk_code(body):
        if isinstance(node, BlockRealize):
            nested.update(id(inner) for inner in walk_code(node))
        elif id(node) not in nested:
            out.append(node)
    return out


def _initial(init: Stmt, iter_vars: tuple[IterVar, ...], values: list[Expr]) -> Stmt:
    """`init` under the condition that every reduction iterator has its first value."""
    starts = [
        E.EQ(value, cast_to(iter_var.dom.min, value.dtype))
        for iter_var, value in zip(iter_vars, values, strict=True)
        if iter_var.iter_type is IterType.REDUCE
    ]
    condition = all_of(_decided(start) for start in starts)
    return init if is_const_int(condition, 1) else S.IfThenElse(condition, init)


def _decided(start: E.EQ) -> Expr:
    a, b = const_int(start.a), const_int(start.b)
    return start if a is None or b is None else const(a == b, "bool")
