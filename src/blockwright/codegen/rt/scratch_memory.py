"""Scratch memory of compiled functions: a lock-free cache of blocks per library.

`ptr @bw_scratch_acquire(i64 bytes)` returns memory aligned to 64 bytes, or null when the system has
none; `void @bw_scratch_release(ptr)` releases it. `void @bw_scratch_idle(i32 idle)`, exported,
frees cached blocks when `idle` is 1 (`blockwright.runtime.reclaim`). Sizes are rounded up to powers
of two. Free blocks are cached in 32 slots per size, which are emptied and filled by single atomic
exchanges. Without a lock, any thread, and a child after `fork`, can use the cache at any time. In
steady state nothing is allocated.
"""

from __future__ import annotations

import functools

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Global
from blockwright.codegen.llvm.values import FALSE, NULL, Value, int_const
from blockwright.target import Target

_HEADER = 64
"""Bytes before the data of a block: the binary logarithm of its size, and the bytes in use."""

_IN_USE = -_HEADER + 8

_PAGE = 4096
_SPREAD_FROM = 1 << 16
"""Blocks of more bytes than this begin at offset `_PLACE` in a page, away from the usual offsets of
arguments and results (see `bw_tensor_alloc` for the reason)."""

_PLACE = 1088
_LEAST_LOG, _MOST_LOG = 12, 47
_CLASSES, _SLOTS = 64, 32

_CACHE = Global("bw.scratch.slots", "ptr", count=_CLASSES * _SLOTS, align=64)
"""Pointers to cached blocks, `_SLOTS` for each logarithm of the size."""


@functools.lru_cache(maxsize=8)
def scratch_ir(target: Target) -> str:
    """The allocator as one LLVM module."""
    module = ModuleEmitter(target, external="")
    for function in (bw_scratch_acquire, bw_scratch_release, bw_scratch_idle):
        function.define(module)
    return module.render()


def _slot(e: FunctionEmitter, log_size: Value, index: Value) -> Value:
    """The address of a slot of the cache."""
    row = e.offset(_CACHE.address(e.module), log_size, _SLOTS * 8)
    return e.offset(row, index, 8)


@routine("bw_scratch_acquire", "ptr", "i64", linkage="hidden")
def bw_scratch_acquire(e: FunctionEmitter, nbytes: Value) -> Value:
    """Take a block from the cache, or allocate one; null if the system has no memory."""
    out = e.stack(8, 8)
    large = e.compare("uge", e.binary("add", nbytes, _HEADER - 1), _SPREAD_FROM)
    head = e.select(large, int_const(_PLACE), int_const(_HEADER))
    last = e.binary("add", nbytes, e.binary("sub", head, 1))
    zeros = e.intrinsic("ctlz.i64", "i64", last, FALSE)
    exact = e.binary("sub", int_const(64), zeros)
    log_size = e.intrinsic("umax.i64", "i64", exact, int_const(_LEAST_LOG))
    with e.guarded(e.compare("ugt", log_size, _MOST_LOG)):
        e.ret(NULL)
    with e.loop(int_const(0)) as loop:
        (index,) = loop.values
        slot = _slot(e, log_size, index)
        seen = e.load("ptr", slot, 8, order="monotonic")
        with e.guarded(e.compare("ne", seen, NULL)):
            block = e.update("xchg", slot, NULL, "acq_rel")
            with e.guarded(e.compare("ne", block, NULL)):
                e.ret(_taken(e, e.offset(block, head), nbytes))
        following = e.binary("add", index, 1)
        with e.guarded(e.compare("ult", following, _SLOTS)):
            loop.again(following)
        loop.leave()
    size = e.binary("shl", int_const(1), log_size)
    align = e.select(large, int_const(_PAGE), int_const(_HEADER))
    status = e.call("i32", "posix_memalign", out, align, size)
    with e.guarded(e.compare("ne", status, 0)):
        e.ret(NULL)
    data = e.offset(e.load("ptr", out, 8), head)
    e.store(log_size, e.offset(data, -_HEADER), 8)
    return _taken(e, data, nbytes)


def _taken(e: FunctionEmitter, data: Value, nbytes: Value) -> Value:
    """Count a block, and note how much of it is in use."""
    e.store(nbytes, e.offset(data, _IN_USE), 8)
    e.call("void", "bw_memory_taken", nbytes)
    return data


@routine("bw_scratch_release", "void", "ptr", linkage="hidden")
def bw_scratch_release(e: FunctionEmitter, data: Value) -> None:
    """Put a block into a free slot of the cache, or free it."""
    e.call("void", "bw_memory_given", e.load("i64", e.offset(data, _IN_USE), 8))
    log_size = e.load("i64", e.offset(data, -_HEADER), 8)
    large = e.compare("ugt", log_size, _SPREAD_FROM.bit_length() - 1)
    block = e.offset(data, e.select(large, int_const(-_PLACE), int_const(-_HEADER)))
    with e.loop(int_const(0)) as loop:
        (index,) = loop.values
        slot = _slot(e, log_size, index)
        seen = e.load("ptr", slot, 8, order="monotonic")
        with e.guarded(e.compare("eq", seen, NULL)):
            _, kept = e.compare_exchange(slot, NULL, block, "acq_rel monotonic")
            with e.guarded(kept):
                e.ret()
        following = e.binary("add", index, 1)
        with e.guarded(e.compare("ult", following, _SLOTS)):
            loop.again(following)
        loop.leave()
    e.call("void", "free", block)


@routine("bw_scratch_idle", "void", "i32", linkage="")
def bw_scratch_idle(e: FunctionEmitter, idle: Value) -> None:
    """Free the cached blocks if `idle` is not 0."""
    with e.guarded(e.compare("eq", idle, 0)):
        e.ret()
    with e.loop(int_const(0)) as loop:
        (index,) = loop.values
        slot = e.offset(_CACHE.address(e.module), index, 8)
        e.call("void", "free", e.update("xchg", slot, NULL, "acq_rel"))
        following = e.binary("add", index, 1)
        with e.guarded(e.compare("ult", following, _CLASSES * _SLOTS)):
            loop.again(following)
        loop.leave()
