"""Flatten buffers to one dimension and indices to offsets.

Before::

    def f(A: T.Buffer((n, 8), "float32")):
        B = T.allocate((4, 8))
        B[i, j] = A[i + 1, j]

After::

    def f(A: T.Buffer((n, 8), "float32")):
        A_1 = T.decl_buffer((n * 8,), data=T.address_of(A[0, 0]))
        B_1 = T.allocate((32,))
        B_1[i * 8 + j] = A_1[(i + 1) * 8 + j]

Variable strides of matched views are bound here, because layouts are final now. A buffer that is
passed to an external function as a tensor keeps its shape for that call, under its own name.
"""

from __future__ import annotations

import functools
import math

from blockwright.analysis.access.layout import buffer_strides, unmet_demands
from blockwright.arith import Analyzer
from blockwright.ir import (
    Buffer,
    BufferLoad,
    BufferRegion,
    BufferStore,
    Call,
    DeclBuffer,
    Expr,
    IterVar,
    MatchBufferRegion,
    Mutator,
    Node,
    PrimFunc,
    Range,
    Sorts,
    Stmt,
    Var,
    add,
    cast_to,
    collect,
    const,
    const_int,
    is_const_int,
    maximum,
    mul,
    sub,
    tensor_of,
    value_variables,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.annotations import DIM_ALIGN
from blockwright.ir.dtype import HANDLE, INT64
from blockwright.lower.blocks import MATCH_BUFFER, TOUCHED_REGION, passed_as_tensors
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import contiguous_digits, fold, vector_binary, walk_code
from blockwright.lower.widen import widen
from blockwright.support import BuildError

_LARGEST = (1 << 31) - 1


@lowering_pass
def flatten_buffers(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Flatten all buffers; parameter buffers are redeclared flat at the top of the body."""
    sorts = Sorts(value_variables(func))
    flattener = _Flatten(set(func.buffers), function_analyzer(func), sorts)
    flattener.bound = _bound_variables(func)
    flattener.shaped = passed_as_tensors(func)
    body = flattener(func.body)
    for buffer in reversed(func.buffers):
        flat = flattener.flat.get(buffer)
        if flat is not None:
            body = DeclBuffer(flat, address_of(buffer), body)
    return func.replace(body=body)


def _bound_variables(func: PrimFunc) -> set[Var]:
    """Variables bound by parameters, by shapes of parameters or by statements of the body."""
    result = {
        v
        for b in func.buffers
        for part in (*b.shape, *b.strides, b.offset)
        if part is not None
        for v in collect(part, Var)
    }
    result |= set(func.params)
    for node in walk_code(func.body):
        if isinstance(node, S.For):
            result.add(node.loop_var)
        elif isinstance(node, (S.LetStmt, E.Let)):
            result.add(node.var)
        elif isinstance(node, S.AttrStmt) and isinstance(node.node, IterVar):
            result.add(node.node.var)
    return result


def address_of(buffer: Buffer, *indices: Expr) -> Expr:
    """The address of an element of a buffer, by default of the first."""
    place = indices or tuple(const(0, extent.dtype) for extent in buffer.shape)
    return Call("address_of", (BufferLoad(buffer, place),), HANDLE)


class _Flatten(Mutator):
    def __init__(self, params: set[Buffer], analyzer: Analyzer, sorts: Sorts) -> None:
        super().__init__()
        self.params, self.analyzer, self.sorts = params, analyzer, sorts
        self.flat: dict[Buffer, Buffer] = {}
        self.strides: dict[Buffer, tuple[Expr, ...]] = {}
        self.wide: set[Buffer] = set()
        self.bound: set[Var] = set()
        self.shaped: set[Buffer] = set()
        self.kept: dict[Buffer, Buffer] = {}  # a buffer passed as a tensor → with its final layout
        self.begins: dict[Buffer, Expr] = {}  # offset of a view's first element from its address

    def rewrite_Buffer(self, node: Buffer) -> Node:
        return node

    def _flat(self, buffer: Buffer, align: tuple[tuple[int, int, int], ...] = ()) -> Buffer:
        result = self.flat.get(buffer)
        if result is not None:
            return result
        shape = tuple(self(extent) for extent in buffer.shape)
        shaped = buffer.replace(shape=shape, strides=tuple(self(s) for s in buffer.strides))
        if not _surely_small(buffer, align):
            self.wide.add(buffer)
            shaped = shaped.replace(
                shape=tuple(map(self._wide, shaped.shape)),
                strides=tuple(map(self._wide, shaped.strides)),
            )
        strides = buffer_strides(shaped, align)
        one: Expr = const(1, shaped.shape[-1].dtype if shaped.shape else INT64)
        if shaped.strides:
            reach = (mul(sub(n, 1), s) for n, s in zip(shaped.shape, strides, strict=True))
            size = functools.reduce(add, reach, one)
            if not self.analyzer.prove(E.GE(size, const(0, size.dtype))):
                size = maximum(size, const(0, size.dtype))  # an extent may be 0
        else:
            size = mul(shaped.shape[0], strides[0]) if shaped.shape else one
        if buffer in self.begins:  # the size counts from the address
            size = add(*self._same_type(size, self.begins[buffer]))
        size = mul(size, buffer.dtype.lanes)
        self.strides[buffer] = strides
        flat = Buffer(
            buffer.name,
            buffer.dtype.element,
            (size,),
            scope=buffer.scope,
            data_alignment=buffer.data_alignment,
        )
        self.flat[buffer] = flat
        return flat

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The flat index; 64-bit unless the buffer is known to be small."""
        self._flat(buffer)
        offset: Expr | None = None
        for index, stride in zip(indices, self.strides[buffer], strict=True):
            if buffer in self.wide:
                index, stride = self._wide(index), self._wide(stride)
            term = vector_binary(E.Mul, *self._same_type(index, stride))
            offset = (
                term if offset is None else vector_binary(E.Add, *self._same_type(offset, term))
            )
        lanes = buffer.dtype.lanes
        if offset is None:
            offset = const(0, INT64)
        if buffer in self.begins:
            begin = self.begins[buffer]
            begin = self._wide(begin) if buffer in self.wide else begin
            offset = vector_binary(E.Add, *self._same_type(begin, offset))
        if lanes > 1:
            base = fold(E.Mul, offset, const(lanes, offset.dtype))
            return E.Ramp(base, const(1, base.dtype), lanes)
        return contiguous_digits(offset, self.analyzer)

    def _wide(self, index: Expr) -> Expr:
        return widen(index, self.sorts)

    def _same_type(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        if a.dtype.bits < b.dtype.bits:
            a = self._wide(a)
        elif b.dtype.bits < a.dtype.bits:
            b = self._wide(b)
        return a, b

    # -------------------------------------------------------------------------------- accesses

    def rewrite_BufferLoad(self, node: BufferLoad) -> Expr:
        indices = tuple(self(index) for index in node.indices)
        predicate = None if node.predicate is None else self(node.predicate)
        return BufferLoad(self._flat(node.buffer), (self._offset(node.buffer, indices),), predicate)

    def rewrite_BufferStore(self, node: BufferStore) -> Stmt:
        indices = tuple(self(index) for index in node.indices)
        predicate = None if node.predicate is None else self(node.predicate)
        offset = self._offset(node.buffer, indices)
        return BufferStore(self._flat(node.buffer), self(node.value), (offset,), predicate)

    def rewrite_Call(self, node: Call) -> Expr:
        place = node.args[0] if node.op == "tensor" else None
        if not isinstance(place, BufferLoad):
            return self.descend(node)
        kept = self.kept.get(place.buffer)
        return node if kept is None else tensor_of(kept)  # needs the shape; see `_with_shape`

    # ----------------------------------------------------------------------------- definitions

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        align = node.annotations.get(DIM_ALIGN, ())
        flat = self._flat(node.buffer, align)
        rest = {key: value for key, value in node.annotations.items() if key != DIM_ALIGN}
        return S.Allocate(flat, self._with_shape(node.buffer, node.body, bool(align)), rest)

    def rewrite_DeclBuffer(self, node: DeclBuffer) -> Stmt:
        source = self(node.source)
        start = node.buffer.offset
        if isinstance(start, Var) and start not in self.bound:  # unbound offset: 0
            self._memo.setdefault(start, const(0, start.dtype))
            start = None
        if start is None or is_const_int(start, 0):
            body = self._with_shape(node.buffer, node.body)
            return DeclBuffer(self._flat(node.buffer), source, body)
        begin = Var(f"{node.buffer.name}_offset", start.dtype)
        self.begins[node.buffer] = start if is_const_int(start) else begin
        body = self._with_shape(node.buffer, node.body)
        view = DeclBuffer(self._flat(node.buffer), source, body)
        return view if is_const_int(start) else S.LetStmt(begin, self(start), view)

    def _with_shape(self, buffer: Buffer, body: Stmt, aligned: bool = False) -> Stmt:
        """The body of a buffer's declaration; in it the buffer keeps its shape, with its final
        strides, if it is passed as a tensor."""
        if buffer not in self.shaped:
            return self(body)
        flat = self._flat(buffer)
        strides = self.strides[buffer] if buffer.strides or aligned else ()
        shape = tuple(self(extent) for extent in buffer.shape)
        kept = buffer
        same = all(new is old for new, old in zip(shape, buffer.shape, strict=True))
        if strides or buffer.offset is not None or not same:
            kept = Buffer(buffer.name, buffer.dtype, shape, strides, scope=buffer.scope)
        self.kept[buffer] = kept
        begin = self.begins.get(buffer, const(0, INT64))
        first = fold(E.Mul, begin, const(buffer.dtype.lanes, begin.dtype))
        return DeclBuffer(kept, address_of(flat, first), self(body))

    def rewrite_AttrStmt(self, node: S.AttrStmt) -> Stmt:
        if node.key == TOUCHED_REGION:
            return self(node.body)
        if node.key == MATCH_BUFFER:
            self._bind(node.node)
            return self(node.body)
        return self.descend(node)

    def _bind(self, match: MatchBufferRegion) -> None:
        """Bind a view's stride and offset variables to those of its source buffer, whose layout is
        final now, and check the view's requirements."""
        view, source = match.buffer, match.source
        self._flat(source.buffer)
        strides = self.strides[source.buffer]
        extra = len(source.region) - view.ndim
        for variable, stride in zip(view.strides, strides[extra:], strict=False):
            if isinstance(variable, Var):
                self._memo.setdefault(variable, cast_to(stride, variable.dtype))
        if isinstance(view.offset, Var):
            start = tuple(self(rng.min) for rng in source.region)
            offset = self._offset(source.buffer, start)
            self._memo.setdefault(view.offset, cast_to(offset, view.offset.dtype))
        region = tuple(Range(self(r.min), self(r.extent)) for r in source.region)
        unmet = unmet_demands(
            view,
            BufferRegion(source.buffer, region),
            strides,
            source.buffer not in self.params,
            self.analyzer,
        )
        for demand, known, remedy in unmet:
            raise BuildError(
                f"view {view.name} demands {demand}, but {known}", code="BW613", help=remedy
            )


def _surely_small(buffer: Buffer, align: tuple[tuple[int, int, int], ...]) -> bool:
    """Whether every flat index is known to fit 32 bits; symbolic sizes are not."""
    shape = [const_int(extent) for extent in buffer.shape]
    strides = [const_int(stride) for stride in buffer.strides]
    if None in shape or None in strides:
        return False
    known = [n for n in shape if n is not None]
    if strides:
        size = 1 + sum((n - 1) * s for n, s in zip(known, strides, strict=True) if s is not None)
    else:
        size = math.prod(n + sum(factor for _, factor, _ in align) for n in known)
    return size * buffer.dtype.lanes <= _LARGEST
