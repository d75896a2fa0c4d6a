"""Memory of result tensors: `bw_tensor_alloc` and `bw_results_idle`, described in `runtime_ir`.

A tensor's header, shape, strides and data share one block. Small blocks are allocated and freed
with the C library. Of large blocks, the most recently released one is cached for a result of the
same size.

Large blocks come in huge pages where the system has them, because a kernel that writes freshly
mapped memory once would otherwise spend most of its time on page faults.
"""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import DEVICE_CPU, MANAGED_TENSOR
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Global, Record
from blockwright.codegen.llvm.values import FALSE, NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import bw_raise
from blockwright.codegen.rt.memory_count import bw_memory_taken

ALIGNMENT = 64
_PAGE, _HUGE_PAGE = 4096, 2 << 20
_SPREAD_FROM = 1 << 16  # bytes from which a result begins at a chosen offset in a page
_PLACE = 2112  # about the middle of a page; scratch memory begins at a quarter
_HUGE_FROM = 4 << 20  # bytes from which blocks are cached; glibc itself keeps smaller freed ones
_OFFERED_FROM = 256 << 20  # bytes from which a cached block is offered back to the system
_MAX_BYTES = 1 << 62

_NO_MEMORY = "BW720: no memory for a result tensor\nhelp: use smaller inputs or free other tensors"

_MADV_FREE, _MADV_HUGEPAGE = int_const(8, "i32"), int_const(14, "i32")

_KEPT = Global("bw.rt.kept", "ptr", initial="null")
"""The cached block, or null."""

_IDLE = Global("bw.rt.idle", "i32", initial=0)
"""1 while no block is to be cached."""


@routine("bw_tensor_alloc", "i32", "ptr", "i32", "i32", "ptr", linkage="hidden")
def bw_tensor_alloc(
    e: FunctionEmitter, shape: Value, ndim: Value, dtype: Value, out: Value
) -> Value:
    """Allocate a row-major tensor; see `runtime_ir`."""
    slot = e.stack(8, 8)
    rank = e.convert("zext", ndim, "i64")
    nbytes, too_large = _data_size(e, shape, rank, dtype)
    tables = e.binary("mul", rank, 2 * 8)
    header = MANAGED_TENSOR.size + ALIGNMENT - 1
    head = e.binary("and", e.binary("add", tables, header), -ALIGNMENT)
    spread = e.compare("uge", nbytes, _SPREAD_FROM)
    room = e.select(spread, int_const(_PAGE), int_const(0))
    need = e.binary("add", e.binary("add", head, nbytes), room)

    def refused() -> Value:
        return int_const(-1, "i32")

    status = e.choose(too_large, refused, lambda: memory_of.call(e, slot, need))
    with e.guarded(e.compare("ne", status, 0)):
        text = (
            "BW720: no memory for a result tensor\nhelp: use smaller inputs or free other tensors"
        )
        strings = (e.module.string(t) for t in ("MemoryError", text))
        e.ret(bw_raise.call(e, *strings))
    block = e.load("ptr", slot, 8)
    data = _data_address(e, e.offset(block, head), spread)
    managed = MANAGED_TENSOR.at(e, block)
    sizes = e.offset(block, MANAGED_TENSOR.size)
    strides = e.offset(sizes, rank, 8)
    _describe(e, managed.inner("tensor"), (data, ndim, dtype, sizes, strides))
    managed.store("context", need)
    managed.store("deleter", delete.address(e.module))
    _write_shape(e, shape, rank, sizes, strides)
    none = int_const(0, "i32")
    status = e.call("i32", "TVMFFITensorFromDLPack", block, none, none, out)
    with e.guarded(e.compare("ne", status, 0)):
        e.call("void", "free", block)
        e.ret(status)
    bw_memory_taken.call(e, nbytes)
    return status


def _data_size(e: FunctionEmitter, shape: Value, rank: Value, dtype: Value) -> tuple[Value, Value]:
    """Bytes of a tensor's data, and whether they are too many."""
    element_bits = e.binary("and", e.binary("lshr", dtype, 8), 255)
    lanes = e.binary("lshr", dtype, 16)
    element = e.convert("zext", e.binary("mul", element_bits, lanes), "i64")
    with e.loop(int_const(0), element, FALSE) as loop:
        axis, bits, overflows = loop.values
        with e.guarded(e.compare("uge", axis, rank)):
            loop.leave()
        extent = e.load("i64", e.offset(shape, axis, 8), 8)
        product = e.intrinsic("umul.with.overflow.i64", "{ i64, i1 }", bits, extent)
        overflow = e.binary("or", overflows, e.member(product, 1, "i1"))
        loop.again(e.binary("add", axis, 1), e.member(product, 0, "i64"), overflow)
    nbytes = e.binary("lshr", e.binary("add", bits, 7), 3)
    return nbytes, e.binary("or", overflows, e.compare("ugt", nbytes, _MAX_BYTES))


def _data_address(e: FunctionEmitter, first: Value, spread: Value) -> Value:
    """Where a tensor's data begin, at or behind `first`.

    Large data begin at a fixed offset in a page, to avoid 4K aliasing: a load waits for an earlier
    store whose address has the same low 12 bits. Large arrays mostly begin at a page boundary. If a
    result did too, slightly behind an argument, each read of the argument would wait for a write of
    the result.
    """
    away = e.binary("sub", int_const(_PLACE), e.convert("ptrtoint", first, "i64"))
    inside = e.binary("and", away, _PAGE - ALIGNMENT)
    return e.offset(first, e.select(spread, inside, int_const(0)))


def _describe(e: FunctionEmitter, tensor: Record, fields: tuple[Value, ...]) -> None:
    """Fill a DLTensor with (data, ndim, dtype, shape, strides) in host memory."""
    names = ("data", "ndim", "dtype", "shape", "strides")
    tensor.store("device_type", int_const(DEVICE_CPU))  # 64 bits: the device's number is 0
    tensor.store("byte_offset", 0)
    for name, value in zip(names, fields, strict=True):
        tensor.store(name, value)


def _write_shape(
    e: FunctionEmitter, shape: Value, rank: Value, sizes: Value, strides: Value
) -> None:
    """Copy a shape, and write the strides of the row-major layout."""
    with e.loop(rank, int_const(1)) as loop:
        left, stride = loop.values
        with e.guarded(e.compare("eq", left, 0)):
            loop.leave()
        axis = e.binary("sub", left, 1)
        extent = e.load("i64", e.offset(shape, axis, 8), 8)
        e.store(extent, e.offset(sizes, axis, 8), 8)
        e.store(stride, e.offset(strides, axis, 8), 8)
        loop.again(axis, e.binary("mul", stride, extent))


@routine("bw.rt.memory_of", "i32", "ptr", "i64")
def memory_of(e: FunctionEmitter, slot: Value, need: Value) -> Value:
    """Allocate a block, or take the cached one if it has that size; return 0 on success."""

    def allocate(align: int) -> Value:
        return e.call("i32", "posix_memalign", slot, int_const(align), need)

    with e.guarded(e.compare("uge", need, _HUGE_FROM)):
        kept = e.update("xchg", _KEPT.address(e.module), NULL, "acq_rel")
        with e.guarded(e.compare("ne", kept, NULL)):
            with e.guarded(e.compare("eq", _block_size(e, kept), need)):
                e.store(kept, slot, 8)
                e.ret(int_const(0, "i32"))
            e.call("void", "free", kept)
        status = allocate(_HUGE_PAGE)
        with e.guarded(e.compare("eq", status, 0)):
            e.call("i32", "madvise", e.load("ptr", slot, 8), need, _MADV_HUGEPAGE)
        e.ret(status)
    return allocate(ALIGNMENT)


@routine("bw.rt.delete", "void", "ptr")
def delete(e: FunctionEmitter, managed: Value) -> None:
    """The deleter of a result tensor."""
    release_block.call(e, managed, _block_size(e, managed))


def _block_size(e: FunctionEmitter, block: Value) -> Value:
    """The size of a block in bytes, which the tensor's context holds."""
    return MANAGED_TENSOR.at(e, block).load("context", type_="i64")


@routine("bw.rt.release", "void", "ptr", "i64")
def release_block(e: FunctionEmitter, block: Value, size: Value) -> None:
    """Free a block, or cache it if it is large.

    A cached block stays allocated, as the C library and other allocators keep memory for reuse.
    Very large blocks are offered back (MADV_FREE) in whole huge pages, because splitting huge pages
    takes as long as writing tens of megabytes. The first page is kept: it holds the block's size.
    """
    with e.guarded(e.compare("ult", size, _HUGE_FROM)):
        e.call("void", "free", block)
        e.ret()
    with e.guarded(e.compare("uge", size, _OFFERED_FROM)):
        length = e.binary("sub", e.binary("and", size, -_HUGE_PAGE), _HUGE_PAGE)
        e.call("i32", "madvise", e.offset(block, _HUGE_PAGE), length, _MADV_FREE)
    old = e.update("xchg", _KEPT.address(e.module), block, "seq_cst")
    e.call("void", "free", old)
    unkeep_if_idle.call(e)


@routine("bw.rt.unkeep_if_idle", "void")
def unkeep_if_idle(e: FunctionEmitter) -> None:
    """Free the cached block if no block is to be cached."""
    idle = _IDLE.load(e, order="seq_cst")
    with e.guarded(e.compare("ne", idle, 0)):
        kept = e.update("xchg", _KEPT.address(e.module), NULL, "seq_cst")
        e.call("void", "free", kept)


@routine("bw_results_idle", "void", "i32", linkage="")
def bw_results_idle(e: FunctionEmitter, idle: Value) -> None:
    """Stop caching blocks (1), or resume (0)."""
    _IDLE.store(e, idle, order="seq_cst")
    unkeep_if_idle.call(e)
