"""Emit AMX instructions for buffers in tile registers.

A buffer of scope "amx.tile" takes one register per 1024 bytes; register numbers are fixed when the
code is emitted. Four statements use such a buffer, each a whole tile at a time:

    tile[…] = T.broadcast(0.0, 256)          tilezero
    tile[…] = memory[rows of 64 bytes]       tileloadd
    memory[rows of 64 bytes] = tile[…]       tilestored
    sums[…] = T.mma_…(sums[…], a[…], b[…])   tdpbf16ps, tdpbssd, …

LLVM would also allocate the registers itself, but it spills tiles and configures the unit anew in
ways that cost more than the products. A function that has such buffers configures the unit when it
starts, and anew after calls and parallel loops, and releases it on every exit. Its library asks
Linux for the permission to use tiles when it is loaded; programs may load it without this package.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from blockwright.analysis.lane_offsets import lane_offsets
from blockwright.codegen.llvm import access, nontemporal
from blockwright.codegen.llvm.context import FunctionContext
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.scratch_plan import allocations, constant_bytes
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.intrin.hardware import MATRIX_PRODUCTS
from blockwright.ir import (
    Allocate,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Expr,
    For,
    ForKind,
    Node,
    build,
    const,
    walk,
)
from blockwright.ir import expr as E
from blockwright.runtime.cpu import TILE_PERMISSION
from blockwright.support import BuildError
from blockwright.target.scopes import TILE_BYTES, TILE_SCOPE, TILES

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

_CONFIGURATION = "bw.tile_config"
_ROWS = 16
_ROW_BYTES = TILE_BYTES // _ROWS


def in_tiles(buffer: Buffer) -> bool:
    """Whether a buffer lies in tile registers."""
    return buffer.scope == TILE_SCOPE


def is_tile_store(stmt: BufferStore) -> bool:
    """Whether a store moves tiles or multiplies them."""
    return in_tiles(stmt.buffer) or _loaded_tile(stmt.value) is not None


def configure(context: FunctionContext, body: Node) -> None:
    """Configure the unit if a function has buffers in tiles; release it on every exit."""
    if not any(in_tiles(node.buffer) for node in allocations(body)):
        return
    context.tiles_ready = True
    rows, columns = [_ROWS] * TILES + [0] * 8, [_ROW_BYTES] * TILES + [0] * 8
    data = bytes([1, *[0] * 15, *(b for n in columns for b in (n, 0)), *rows])
    text = "".join(f"\\{byte:02X}" for byte in data)
    context.module.add_global_once(
        _CONFIGURATION,
        f'@{_CONFIGURATION} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 64',
    )
    context.module.initializer(_request.address(context.module))
    _load_configuration(context)

    def release() -> None:
        context.e.intrinsic("x86.tilerelease", "void")

    context.cleanups.append(release)


def _load_configuration(context: FunctionContext) -> None:
    context.e.intrinsic("x86.ldtilecfg", "void", Value("ptr", f"@{_CONFIGURATION}"))


def lost_in(context: FunctionContext, body: Node) -> None:
    """Note that a loop begins; if it has calls, a later iteration finds no tile as it was."""
    if context.tiles_ready and any(map(_is_call, walk(body))):
        context.tiles_held.clear()


def after(context: FunctionContext, stmt: Node) -> None:
    """Configure the unit anew after a statement that calls a function or runs tasks.

    The callee may have released the unit, and has its own contents in the registers.
    """
    if context.tiles_ready and _is_call_of(stmt):
        context.tiles_held.clear()
        _load_configuration(context)


def _is_call_of(stmt: Node) -> bool:
    if isinstance(stmt, For):
        return stmt.kind is ForKind.PARALLEL
    return any(map(_is_call, walk(stmt)))


def _is_call(node: Node) -> bool:
    parallel = isinstance(node, For) and node.kind is ForKind.PARALLEL
    return parallel or (isinstance(node, Call) and node.op.startswith("call_"))


@routine("bw.request_tiles", "void")
def _request(e: FunctionEmitter) -> None:
    """Request the permission of this process; without it, the first tile instruction ends it."""
    numbers = (int_const(number) for number in TILE_PERMISSION)
    e.call("i64", "syscall", *numbers, variadic="i64")


def allocate(context: FunctionContext, stmt: Allocate) -> None:
    """Assign the next free registers to a buffer; `release` frees them after its last use.

    Raises: BuildError BW637: no whole tiles, or more than there are.
    """
    buffer = stmt.buffer
    size = constant_bytes(buffer)
    first = context.tiles_used
    count = (size or 0) // TILE_BYTES
    if size is None or size % TILE_BYTES or first + count > TILES:
        raise BuildError(
            f"buffer {buffer.name} takes {'a variable number of' if size is None else size} bytes "
            f"of tile registers, of which {(TILES - first) * TILE_BYTES} are free",
            code="BW637",
            help=f"a buffer of scope {TILE_SCOPE!r} holds whole tiles of {TILE_BYTES} bytes, at "
            f"most {TILES} at a time",
        )
    context.tiles[buffer] = first
    context.tiles_used += count


def release(context: FunctionContext, buffer: Buffer) -> None:
    """Free the registers of the buffer that was allocated last."""
    context.tiles_used = context.tiles.pop(buffer)
    context.tiles_held -= set(range(context.tiles_used, TILES))


def store(c: ExprEmitter, stmt: BufferStore) -> None:
    """Emit a store whose target or value is a tile.

    Raises: BuildError BW637: it is none of the four statements.
    """
    if c.mask is not None or stmt.predicate is not None:
        _refuse(stmt.buffer, "a mask selects some of its lanes")
    if not in_tiles(stmt.buffer):
        source = _loaded_tile(stmt.value)
        assert source is not None
        register = _held(c.context, source)
        place = _rows(c, stmt)
        c.e.intrinsic("x86.tilestored64", "void", register, place.pointer, place.step)
        return
    target, value = _register(c.context, stmt), stmt.value
    if isinstance(value, Call) and value.op in MATRIX_PRODUCTS:
        _multiply(c, stmt, value, target)
    elif isinstance(value, BufferLoad) and not in_tiles(value.buffer):
        if value.predicate is not None:
            _refuse(stmt.buffer, "it is filled under a mask")
        place = _rows(c, value)
        nontemporal.fetch(
            c, value.buffer, nontemporal.prefetch_for_load(c.context, value.buffer, place.start)
        )
        c.e.intrinsic("x86.tileloadd64", "void", target, place.pointer, place.step)
    elif _is_zero(value):
        c.e.intrinsic("x86.tilezero", "void", target)
    else:
        _refuse(stmt.buffer, "only zeros, a tile from memory and products are stored to it")
    c.context.tiles_held.add(int(target.text))


def _multiply(c: ExprEmitter, stmt: BufferStore, product: Call, target: Value) -> None:
    row = MATRIX_PRODUCTS[product.op]
    tiles: list[Value] = []
    for operand in product.args:
        if not isinstance(operand, BufferLoad) or not in_tiles(operand.buffer):
            _refuse(stmt.buffer, f"an operand of {product.op} is in memory")
        tiles.append(_held(c.context, operand))
    if tiles[0].text != target.text:
        _refuse(stmt.buffer, f"{product.op} adds to the tile that it is stored to")
    found = row.form(row.tile, c.e.module.target.feature_set)
    if found is None:
        needs = sorted({name for form in row.forms[row.tile] for name in form.features})
        raise BuildError(
            f"{c.e.module.target} has no instruction for {product.op}",
            code="BW601",
            help=f"use a target with {' and '.join(needs)}, or dot products of lanes",
        )
    c.e.intrinsic(found[1].intrinsic, "void", *tiles)


def _loaded_tile(value: Expr) -> BufferLoad | None:
    return value if isinstance(value, BufferLoad) and in_tiles(value.buffer) else None


def _is_zero(value: Expr) -> bool:
    """Whether all elements are zeros with a positive sign, as TILEZERO makes them."""
    inner = value.value if isinstance(value, Broadcast) else value
    constant = isinstance(inner, (E.IntImm, E.FloatImm))
    return constant and inner.value == 0 and math.copysign(1, inner.value) > 0


def _register(context: FunctionContext, place: BufferLoad | BufferStore) -> Value:
    """The number of the register at a constant index, all of whose lanes are accessed."""
    buffer = place.buffer
    found = lane_offsets(access.flatten_index(place))
    if found is None or found.base is not None:
        _refuse(buffer, "its index is not a constant")
    size = buffer.dtype.nbytes
    first, lanes = found.offsets[0], TILE_BYTES // size
    if first % lanes or found.offsets != tuple(range(first, first + lanes)):
        _refuse(buffer, f"{len(found.offsets)} lanes from {first} are not one tile of {lanes}")
    if buffer not in context.tiles:
        _refuse(buffer, "it is used outside its allocation")
    return int_const(context.tiles[buffer] + first // lanes, "i8")


def _held(context: FunctionContext, place: BufferLoad) -> Value:
    """The number of a register that is read."""
    register = _register(context, place)
    if int(register.text) not in context.tiles_held:
        _refuse(place.buffer, "it is read where it is not set, or a call in between may change it")
    return register


class _Rows(NamedTuple):
    """16 rows of 64 bytes in memory: index and address of the first, bytes from row to row."""

    start: Expr
    pointer: Value
    step: Value


def _rows(c: ExprEmitter, place: BufferLoad | BufferStore) -> _Rows:
    buffer = place.buffer
    size = buffer.dtype.nbytes
    flat = access.flatten_index(place)
    found = lane_offsets(flat)
    row = _ROW_BYTES // size
    if found is None or len(found.offsets) != _ROWS * row:
        _refuse(buffer, "rows of a tile are 64 bytes at a constant distance")
    offsets = found.offsets
    first, step = offsets[0], offsets[row] - offsets[0]
    if any(at != first + k // row * step + k % row for k, at in enumerate(offsets)):
        _refuse(buffer, "rows of a tile are 64 bytes at a constant distance")
    memory = c.context.memory(buffer)
    base, start = memory.pointer, const(first, "int64")
    if found.base is not None:
        base = c.e.offset(base, c.index(found.base), size)
        start = build.add(found.base, const(first, found.base.dtype))
    return _Rows(start, c.e.offset(base, first, size), int_const(step * size))


def _refuse(buffer: Buffer, why: str) -> NoReturn:
    raise BuildError(
        f"buffer {buffer.name}: {why}",
        code="BW637",
        help=f"access buffers of scope {TILE_SCOPE!r} by the tensor intrinsics tile_zero_*, "
        "tile_load_*, mma_16x16x* and tile_store_*, with unrolled loops around them",
    )
