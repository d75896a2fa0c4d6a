"""Scratch memory of compiled functions: a lock-free cache of blocks per library, and its plan.

`ptr @bw_scratch_acquire(i64 bytes)` returns memory aligned to 64 bytes, or null when the system has
none; `void @bw_scratch_release(ptr)` releases it. `void @bw_scratch_idle(i32 idle)`, exported,
frees cached blocks when `idle` is 1 (`blockwright.runtime.reclaim`). Sizes are rounded up to powers
of two. Free blocks are cached in 32 slots per size, which are emptied and filled by single atomic
exchanges. Without a lock, any thread, and a child after `fork`, can use the cache at any time. In
steady state nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockwright.codegen.llvm.context import MAX_STACK_BYTES
from blockwright.ir import (
    Allocate,
    Buffer,
    Expr,
    For,
    ForKind,
    IntImm,
    Node,
    Var,
    build,
    collect,
)

ALIGNMENT = 64
_SPREAD_CLASS = 16
"""Blocks larger than 2 to this power begin at offset `_PLACE` in a page, away from the usual
offsets of arguments and results (see `bw_tensor_alloc` for the reason)."""

_PLACE = 1088
_SMALL_GLOBAL = 4096
"""Size in bytes up to which a buffer of global scope is placed on the stack."""


def scratch_ir() -> str:
    """The allocator as one LLVM module."""
    text = _SCRATCH_IR.replace("{SPREAD_FROM}", str(1 << _SPREAD_CLASS))
    return text.replace("{SPREAD_CLASS}", str(_SPREAD_CLASS + 1)).replace("{PLACE}", str(_PLACE))


class Slot(msgspec.Struct):
    """A planned allocation; it starts at the end of `after`, or at the start of the block."""

    buffer: Buffer
    after: Buffer | None


def constant_bytes(buffer: Buffer) -> int | None:
    """Size of a buffer in bytes if its shape is constant."""
    size = buffer.dtype.nbytes * buffer.dtype.lanes
    for extent in buffer.shape:
        if not isinstance(extent, IntImm):
            return None
        size *= extent.value
    return size


def on_stack(buffer: Buffer, used: int) -> bool:
    """Whether a buffer fits the stack frame, of which `used` bytes are taken."""
    size = constant_bytes(buffer)
    if size is None or used + size > MAX_STACK_BYTES:
        return False
    return buffer.scope == "local" or size <= _SMALL_GLOBAL


def byte_count(buffer: Buffer) -> Expr:
    """Size of a buffer in bytes, rounded up to the alignment."""
    total: Expr = build.const(buffer.dtype.nbytes * buffer.dtype.lanes, "int64")
    for extent in buffer.shape:
        total = build.mul(total, build.cast_to(extent, "int64"))
    unit = build.const(ALIGNMENT, "int64")
    return build.mul(build.floordiv(build.add(total, ALIGNMENT - 1), unit), unit)


def stack_plan(body: Node) -> set[Buffer]:
    """Buffers placed in the function's stack frame: in program order, while there is room."""
    used, chosen = 0, set[Buffer]()
    for allocate in _allocates(body):
        if on_stack(allocate.buffer, used):
            chosen.add(allocate.buffer)
            used += constant_bytes(allocate.buffer) or 0
    return chosen


def block_plan(body: Node, on_stack: set[Buffer], known: set[Var]) -> list[Slot]:
    """Plan the allocations whose sizes are known at entry; they share one block.

    Nested allocations follow each other; allocations with disjoint lifetimes share memory.
    """
    slots: list[Slot] = []
    planned: set[Buffer] = set()

    def visit(node: Node, after: Buffer | None) -> None:
        if isinstance(node, For) and node.kind is ForKind.PARALLEL:
            return
        if isinstance(node, Expr):
            return
        if isinstance(node, Allocate):
            buffer = node.buffer
            used = {v for extent in buffer.shape for v in collect(extent, Var)}
            if buffer not in on_stack and used <= known and buffer not in planned:
                slots.append(Slot(buffer, after))
                planned.add(buffer)
                after = buffer
        for child in node.children():
            visit(child, after)

    visit(body, None)
    return slots


def _allocates(body: Node) -> Iterator[Allocate]:
    """Allocations of this function, excluding those in its parallel loops."""
    stack = [body]
    while stack:
        node = stack.pop()
        if isinstance(node, Expr) or (isinstance(node, For) and node.kind is ForKind.PARALLEL):
            continue
        if isinstance(node, Allocate):
            yield node
        stack += node.children()[::-1]


_SCRATCH_IR = r"""
@bw.scratch.slots = internal global [64 x [32 x ptr]] zeroinitializer, align 64
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)

define hidden ptr @bw_scratch_acquire(i64 %bytes) {
entry:
  %out = alloca ptr, align 8
  %least = add i64 %bytes, 63
  %large = icmp uge i64 %least, {SPREAD_FROM}
  %head = select i1 %large, i64 {PLACE}, i64 64
  %behind = sub i64 %head, 1
  %need = add i64 %bytes, %behind
  %zeros = call i64 @llvm.ctlz.i64(i64 %need, i1 false)
  %exact = sub i64 64, %zeros
  %class = call i64 @llvm.umax.i64(i64 %exact, i64 12)
  %huge = icmp ugt i64 %class, 47
  br i1 %huge, label %none, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %slot = getelementptr [64 x [32 x ptr]], ptr @bw.scratch.slots, i64 0, i64 %class, i64 %i
  %seen = load atomic ptr, ptr %slot monotonic, align 8
  %empty = icmp eq ptr %seen, null
  br i1 %empty, label %next, label %take
take:
  %got = atomicrmw xchg ptr %slot, ptr null acq_rel, align 8
  %lost = icmp eq ptr %got, null
  br i1 %lost, label %next, label %found
found:
  %fdata = getelementptr i8, ptr %got, i64 %head
  ret ptr %fdata
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 32
  br i1 %more, label %look, label %fresh
fresh:
  %size = shl i64 1, %class
  %align = select i1 %large, i64 4096, i64 64
  %rc = call i32 @posix_memalign(ptr %out, i64 %align, i64 %size)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %mark, label %none
mark:
  %base = load ptr, ptr %out, align 8
  %data = getelementptr i8, ptr %base, i64 %head
  %classp = getelementptr i8, ptr %data, i64 -64
  store i64 %class, ptr %classp, align 8
  ret ptr %data
none:
  ret ptr null
}

define hidden void @bw_scratch_release(ptr %data) {
entry:
  %classp = getelementptr i8, ptr %data, i64 -64
  %class = load i64, ptr %classp, align 8
  %large = icmp uge i64 %class, {SPREAD_CLASS}
  %back = select i1 %large, i64 -{PLACE}, i64 -64
  %base = getelementptr i8, ptr %data, i64 %back
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %slot = getelementptr [64 x [32 x ptr]], ptr @bw.scratch.slots, i64 0, i64 %class, i64 %i
  %seen = load atomic ptr, ptr %slot monotonic, align 8
  %empty = icmp eq ptr %seen, null
  br i1 %empty, label %try, label %next
try:
  %swap = cmpxchg ptr %slot, ptr null, ptr %base acq_rel monotonic, align 8
  %kept = extractvalue { ptr, i1 } %swap, 1
  br i1 %kept, label %done, label %next
done:
  ret void
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 32
  br i1 %more, label %look, label %drop
drop:
  call void @free(ptr %base)
  ret void
}

define void @bw_scratch_idle(i32 %idle) {
entry:
  %used = icmp eq i32 %idle, 0
  br i1 %used, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %slot = getelementptr ptr, ptr @bw.scratch.slots, i64 %i
  %got = atomicrmw xchg ptr %slot, ptr null acq_rel, align 8
  call void @free(ptr %got)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 2048
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
