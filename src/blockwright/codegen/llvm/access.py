"""Emit buffer loads and stores: scalars, contiguous vectors, gathers and scatters, with masks.

A vector access claims only the alignment that the buffer and its index prove, so programs accept
any array whose elements are aligned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blockwright.analysis.lane_offsets import lane_offsets
from blockwright.codegen.llvm import integers, nontemporal, types
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import (
    Value,
    int_const,
    lanes_of,
    nbytes_of,
    vector,
)
from blockwright.ir import Buffer, BufferLoad, BufferStore, DType, Expr, build, cast_to
from blockwright.ir import expr as E
from blockwright.support import BuildError
from blockwright.target import GATHER_STRIDE

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter


def flatten_index(access: BufferLoad | BufferStore) -> Expr:
    """The flat index of a load or store, from its indices and the buffer's strides."""
    buffer, indices = access.buffer, access.indices
    if not indices:
        return build.const(0, "int64")
    if len(indices) == 1 and not buffer.strides:
        return indices[0]
    strides: list[Expr] = list(buffer.strides)
    if not strides:
        strides = [build.const(1, "int64")]
        for extent in reversed(buffer.shape[1:]):
            strides.insert(0, build.mul(strides[0], cast_to(extent, "int64")))
    lanes = max(index.dtype.lanes for index in indices)
    ramp = next((i for i in indices if isinstance(i, E.Ramp)), None)
    alone = ramp is not None and all(i is ramp or i.dtype.lanes == 1 for i in indices)
    total: Expr = build.const(0, "int64")
    step: Expr | None = None
    for index, stride in zip(indices, strides, strict=True):
        part = index
        if alone and part is ramp:
            assert ramp is not None
            step = build.mul(cast_to(ramp.stride, "int64"), stride)
            part = ramp.base
        elif not alone and lanes > 1 and part.dtype.lanes == 1:
            part = E.Broadcast(part, lanes)
        wide = DType("int", 64, part.dtype.lanes)
        total = build.add(total, build.mul(cast_to(part, wide), cast_to(stride, "int64")))
    return total if step is None else E.Ramp(total, step, lanes)


def address(c: ExprEmitter, access: BufferLoad | BufferStore) -> Value:
    """The address of an element, or of the first element of a vector."""
    flat = flatten_index(access)
    while isinstance(flat, (E.Ramp, E.Broadcast)):
        flat = flat.base if isinstance(flat, E.Ramp) else flat.value
    return _place(c, access.buffer, flat)[0]


def _place(c: ExprEmitter, buffer: Buffer, index: Expr) -> tuple[Value, int]:
    """Address and known alignment of the element at a scalar or vector index."""
    memory = c.context.memory(buffer)
    nbytes = buffer.dtype.nbytes * buffer.dtype.lanes
    pointer = c.e.offset(memory.pointer, c.index(index), nbytes)
    element = buffer.dtype.nbytes
    known = c.context.alignment(memory, index, nbytes)
    return pointer, max(known, element) if memory.align >= element else known


def _mask(c: ExprEmitter, predicate: Expr | None, lanes: int) -> Value | None:
    """The mask of an access: its own predicate and the mask of the surrounding code."""
    mask = c.mask
    if predicate is not None and integers.constant_of(predicate) != 1:
        own = c.value(predicate)
        mask = own if mask is None else c.e.binary("and", _spread(c, mask, own), own)
    if mask is not None and lanes_of(mask.type) == 1 and lanes > 1:
        return c.e.splat(mask, lanes)
    return mask


def _spread(c: ExprEmitter, mask: Value, like: Value) -> Value:
    return c.e.splat(mask, lanes_of(like.type)) if lanes_of(mask.type) == 1 else mask


def _any(e: FunctionEmitter, mask: Value) -> Value:
    lanes = lanes_of(mask.type)
    return mask if lanes == 1 else e.intrinsic(f"vector.reduce.or.v{lanes}i1", "i1", mask)


def load(c: ExprEmitter, expr: BufferLoad) -> Value:
    """Emit the load of an element or a vector; inactive lanes are zero."""
    e, dtype, flat = c.e, expr.dtype, flatten_index(expr)
    type_ = types.memory_type(dtype)
    if isinstance(flat, E.Broadcast):
        single = BufferLoad(expr.buffer, (flat.value,))
        with c.scope(_mask(c, expr.predicate, flat.lanes)):
            one = c.value(single)
        return e.splat(one, flat.lanes)
    mask = _mask(c, expr.predicate, dtype.lanes)
    if flat.dtype.lanes == 1:
        if mask is None:
            pointer, align = _place(c, expr.buffer, flat)
            return types.from_memory(e, e.load(type_, pointer, align), dtype)
        result = _guarded_load(c, expr.buffer, flat, type_, mask)
        return types.from_memory(e, result, dtype)
    stride = integers.constant_of(flat.stride) if isinstance(flat, E.Ramp) else None
    if isinstance(flat, E.Ramp) and stride in (1, -1):
        result = _contiguous(c, expr.buffer, flat, type_, mask, reverse=stride == -1)
    elif (
        isinstance(flat, E.Ramp)
        and stride is not None
        and 2 <= stride <= GATHER_STRIDE < dtype.lanes
    ):
        result = _every(c, expr.buffer, flat, stride, type_, mask)
    elif mask is None and (near := _near(c, expr.buffer, flat)) is not None:
        result = near
    else:
        _whole_elements(expr.buffer)
        pointer, align = _place(c, expr.buffer, flat)
        align = min(align, expr.buffer.dtype.nbytes)
        result = _gather(e, type_, pointer, align, mask)
    return types.from_memory(e, result, dtype)


def _guarded_load(c: ExprEmitter, buffer: Buffer, flat: Expr, type_: str, mask: Value) -> Value:
    """A scalar load within masked vector code, executed if any lane is active."""

    def read() -> Value:
        with c.scope():
            pointer, align = _place(c, buffer, flat)
            return c.e.load(type_, pointer, align)

    wanted = _any(c.e, mask)
    return c.e.choose(wanted, read, lambda: Value(type_, "zeroinitializer"))


def _every(
    c: ExprEmitter, buffer: Buffer, ramp: E.Ramp, stride: int, type_: str, mask: Value | None
) -> Value:
    """Load every `stride`-th element with contiguous loads that stay within the accessed range."""
    _whole_elements(buffer)
    e, lanes = c.e, ramp.lanes
    last = (lanes - 1) * stride
    starts = [min(part * lanes, last + 1 - lanes) for part in range(stride)]
    source = [
        min(part for part, at in enumerate(starts) if lane * stride < at + lanes)
        for lane in range(lanes)
    ]
    result: Value | None = None
    for part, start in enumerate(starts):
        wanted = {lane * stride - start: lane for lane in range(lanes) if source[lane] == part}
        own = None
        if mask is not None:
            nothing = Value(mask.type, "zeroinitializer")
            own = e.shuffle(mask, nothing, [wanted.get(k, lanes) for k in range(lanes)])
        base = build.add(ramp.base, build.const(start, ramp.base.dtype))
        piece = _contiguous(
            c, buffer, E.Ramp(base, build.const(1, base.dtype), lanes), type_, own, reverse=False
        )
        place = {lane: at for at, lane in wanted.items()}
        first = piece if result is None else result
        picks = [lanes + place[lane] if lane in place else lane for lane in range(lanes)]
        result = e.shuffle(first, piece, picks)
    assert result is not None
    return result


def _near(c: ExprEmitter, buffer: Buffer, index: Expr) -> Value | None:
    """Load elements at constant distances, fewer than lanes, with a contiguous load between them.

    None if the index has another form.
    """
    found = lane_offsets(index)
    if found is None or buffer.dtype.lanes > 1:
        return None
    first, last = min(found.offsets), max(found.offsets)
    count = last - first + 1
    if count > len(found.offsets):
        return None
    at = build.const(first, "int64")
    if found.base is not None:
        at = build.add(found.base, build.const(first, found.base.dtype))
    if count == 1:
        return c.e.splat(load(c, BufferLoad(buffer, (at,))), len(found.offsets))
    ramp = E.Ramp(at, build.const(1, at.dtype), count)
    type_ = types.memory_type(buffer.dtype.with_lanes(count))
    piece = _contiguous(c, buffer, ramp, type_, None, reverse=False)
    return c.e.shuffle(piece, Value(type_, "poison"), [k - first for k in found.offsets])


def _contiguous(
    c: ExprEmitter, buffer: Buffer, ramp: E.Ramp, type_: str, mask: Value | None, *, reverse: bool
) -> Value:
    e, lanes = c.e, lanes_of(type_)
    base = _lowest(ramp) if reverse else ramp.base
    pointer, align = _place(c, buffer, base)
    nontemporal.fetch(c, buffer, nontemporal.prefetch_for_load(c.context, buffer, base))
    if mask is None:
        result = e.load(type_, pointer, align)
    elif _in_register(buffer, ramp):
        mask = _reverse(e, mask) if reverse else mask
        whole = e.load(type_, pointer, align)
        result = e.select(mask, whole, Value(type_, "zeroinitializer"))
    else:
        mask = _reverse(e, mask) if reverse else mask
        result = e.masked_load(type_, pointer, align, mask)
    if not reverse:
        return result
    if lanes != ramp.lanes:
        _whole_elements(buffer)
    return _reverse(e, result)


def _in_register(buffer: Buffer, ramp: E.Ramp) -> bool:
    """Whether the vector is one of the whole vectors that make up a private array.

    LLVM promotes such an array to registers when all its accesses are whole vectors. Under a mask,
    the inactive lanes are read and written back unchanged, which no other thread can observe.
    """
    base, size = integers.constant_of(ramp.base), integers.constant_of(buffer.shape[0])
    if buffer.scope != "local" or len(buffer.shape) != 1 or base is None or size is None:
        return False
    at = base if integers.constant_of(ramp.stride) == 1 else base - ramp.lanes + 1
    return at % ramp.lanes == 0 and size % ramp.lanes == 0 and at + ramp.lanes <= size


def _lowest(ramp: E.Ramp) -> Expr:
    return build.sub(ramp.base, build.const(ramp.lanes - 1, ramp.base.dtype))


def _reverse(e: FunctionEmitter, value: Value) -> Value:
    lanes = lanes_of(value.type)
    return e.shuffle(value, Value(value.type, "poison"), range(lanes - 1, -1, -1))


def _whole_elements(buffer: Buffer) -> None:
    if buffer.dtype.lanes > 1:
        raise BuildError(
            f"buffer {buffer.name} of {buffer.dtype} is indexed by a vector that is "
            "not a contiguous ramp",
            code="BW614",
            help="use a buffer of single elements",
        )


def _gather(
    e: FunctionEmitter, type_: str, pointers: Value, align: int, mask: Value | None
) -> Value:
    lanes = lanes_of(type_)
    mask = mask or int_const(1, vector("i1", lanes))
    return e.masked_load(type_, pointers, align, mask)


def store(c: ExprEmitter, stmt: BufferStore) -> None:
    """Emit the store of an element or a vector; inactive lanes keep their contents."""
    e, buffer, flat = c.e, stmt.buffer, flatten_index(stmt)
    expected = buffer.dtype.with_lanes(buffer.dtype.lanes * flat.dtype.lanes)
    source = stmt.value
    if source.dtype.lanes == 1 and expected.lanes > 1:
        source = E.Broadcast(source, expected.lanes)
    if source.dtype is not expected:
        raise BuildError(
            f"a value of {source.dtype} is stored to buffer {buffer.name} of {expected}",
            code="BW614",
            help="cast the value first",
        )
    value = types.to_memory(e, c.value(source), expected)
    stride = integers.constant_of(flat.stride) if isinstance(flat, E.Ramp) else None
    plain = stride == 1 and c.mask is None and buffer.dtype.lanes == 1
    if isinstance(flat, E.Ramp) and plain and not e.module.target.cheap_predication:
        test = None if _in_register(buffer, flat) else _end_of_lanes(stmt.predicate)
        if test is not None:
            _store_first(c, buffer, flat, value, test)
            return
    mask = _mask(c, stmt.predicate, expected.lanes)
    if flat.dtype.lanes == 1:
        _store_one(c, buffer, flat, value, mask)
        return
    shifted = c.context.shifted.get(stmt)
    if shifted is not None:
        assert mask is None
        shifted.store(c, stmt, value, address(c, stmt))
        return
    if isinstance(flat, E.Ramp) and stride in (1, -1):
        _store_contiguous(c, buffer, flat, value, mask, reverse=stride == -1)
        return
    _whole_elements(buffer)
    if isinstance(flat, E.Ramp) and mask is None:
        _store_apart(c, buffer, flat, value)
        return
    pointer, align = _place(c, buffer, flat)
    mask = mask or int_const(1, vector("i1", expected.lanes))
    e.masked_store(value, pointer, min(align, buffer.dtype.nbytes), mask)


def _store_one(
    c: ExprEmitter, buffer: Buffer, flat: Expr, value: Value, mask: Value | None
) -> None:
    if mask is None:
        pointer, align = _place(c, buffer, flat)
        c.e.store(value, pointer, align)
        return
    with c.e.guarded(_any(c.e, mask)), c.scope():
        pointer, align = _place(c, buffer, flat)
        c.e.store(value, pointer, align)


def _store_apart(c: ExprEmitter, buffer: Buffer, ramp: E.Ramp, value: Value) -> None:
    """Store a vector with a constant or variable stride, lane by lane.

    A scatter instruction is no faster, and on some cores takes twice as long. It would also need
    all addresses in a vector; here each one is an offset from the first or previous one."""
    e, nbytes = c.e, buffer.dtype.nbytes
    pointer, align = _place(c, buffer, ramp.base)
    align = min(align, nbytes)
    fixed = integers.constant_of(ramp.stride)
    stride = None if fixed is not None else c.index(ramp.stride)
    for lane in range(ramp.lanes):
        if lane and stride is not None:
            pointer = e.offset(pointer, stride, nbytes)
        at = pointer if fixed is None else e.offset(pointer, lane * fixed, nbytes)
        e.store(e.extract(value, lane), at, align)


def _end_of_lanes(predicate: Expr | None) -> E.LT | None:
    """The predicate if it activates the lanes before an end: first + lane < end; else None."""
    if not isinstance(predicate, E.LT) or not isinstance(predicate.a, E.Ramp):
        return None
    if not isinstance(predicate.b, E.Broadcast) or predicate.a.dtype.kind != "int":
        return None
    return predicate if integers.constant_of(predicate.a.stride) == 1 else None


def _store_first(c: ExprEmitter, buffer: Buffer, ramp: E.Ramp, value: Value, test: E.LT) -> None:
    """Store the lanes before an end on a target without mask registers, where a masked store takes
    as long as ten ordinary ones (Zen 3). A known number of lanes is stored in power-of-two parts;
    for an unknown number, a test selects a whole-vector store where all lanes are active."""
    e, lanes = c.e, ramp.lanes
    assert isinstance(test.a, E.Ramp)  # `_end_of_lanes`
    assert isinstance(test.b, E.Broadcast)
    first, end = test.a.base, test.b.value
    low, high = integers.constant_of(first), integers.constant_of(end)
    pointer, align = _place(c, buffer, ramp.base)
    if low is not None and high is not None:
        _store_parts(c, value, pointer, align, min(max(high - low, 0), lanes))
        return
    left = e.binary("sub", c.index(end), c.index(first))

    def whole() -> None:
        past = buffer in c.context.streamed and nontemporal.whole(value, align)
        e.store(value, pointer, align, nontemporal=past)

    def some() -> None:
        with c.scope():
            e.masked_store(value, pointer, align, c.value(test))

    e.either(e.compare("sge", left, int_const(lanes)), whole, some)


def _store_parts(c: ExprEmitter, value: Value, pointer: Value, align: int, count: int) -> None:
    e, at, size = c.e, 0, nbytes_of(value.type) // lanes_of(value.type)
    while at < count:
        lanes = 1 << ((count - at).bit_length() - 1)
        part = e.shuffle(value, Value(value.type, "poison"), range(at, at + lanes))
        e.store(part, e.offset(pointer, at * size), math.gcd(align, at * size))
        at += lanes


def _store_contiguous(
    c: ExprEmitter,
    buffer: Buffer,
    ramp: E.Ramp,
    value: Value,
    mask: Value | None,
    *,
    reverse: bool,
) -> None:
    e = c.e
    if reverse:
        _whole_elements(buffer)
        value = _reverse(e, value)
        mask = None if mask is None else _reverse(e, mask)
    base = _lowest(ramp) if reverse else ramp.base
    pointer, align = _place(c, buffer, base)
    nontemporal.fetch(c, buffer, nontemporal.prefetch_for_store(c.context, buffer, base))
    if mask is not None and _in_register(buffer, ramp):
        value, mask = e.select(mask, value, e.load(value.type, pointer, align)), None
    if mask is None:
        past = buffer in c.context.streamed and nontemporal.whole(value, align)
        e.store(value, pointer, align, nontemporal=past)
        return
    e.masked_store(value, pointer, align, mask)
