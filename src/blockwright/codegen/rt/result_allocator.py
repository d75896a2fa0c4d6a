"""Memory of result tensors, as LLVM text: a part of the module of `ffi.runtime_ir()`.

A tensor's header, shape and data share one block. Small blocks are allocated and freed with the C
library. Of large blocks, the most recently released one is cached for a result of the same size.
"""

from __future__ import annotations

_SPREAD_FROM = 1 << 16  # bytes from which a result begins at a chosen offset in a page
_PLACE = 2112  # about the middle of a page; scratch memory begins at a quarter
_HUGE_FROM = 4 << 20  # bytes from which blocks are cached; glibc itself keeps smaller freed ones
_OFFERED_FROM = 256 << 20  # bytes from which a cached block is offered back to the system


def results_ir() -> str:
    """`bw_tensor_alloc` and `bw_results_idle`, described in `runtime_ir`.

    The text calls `bw_raise`, which is defined in the rest of that module.
    """
    text = _RESULTS_IR.replace("{HUGE_FROM}", str(_HUGE_FROM))
    text = text.replace("{OFFERED_FROM}", str(_OFFERED_FROM))
    return text.replace("{SPREAD_FROM}", str(_SPREAD_FROM)).replace("{PLACE}", str(_PLACE))


_RESULTS_IR = r"""
declare i32 @posix_memalign(ptr, i64, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @free(ptr)
declare i32 @TVMFFITensorFromDLPack(ptr, i32, i32, ptr)
declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)
@bw.rt.memory = private constant [12 x i8] c"MemoryError\00"
@bw.rt.full = private constant [84 x i8]
  c"BW720: no memory for a result tensor\0Ahelp: use smaller inputs or free other tensors\00"

; Large blocks come in huge pages where the system has them, because a kernel that writes freshly
; mapped memory once would otherwise spend most of its time on page faults. The most recently
; released large block is cached for a result of the same size.
@bw.rt.kept = internal global ptr null, align 8
@bw.rt.idle = internal global i32 0, align 4

define internal i32 @bw.rt.memory_of(ptr %slot, i64 %need) {
  %large = icmp uge i64 %need, {HUGE_FROM}
  br i1 %large, label %huge, label %small
huge:
  %kept = atomicrmw xchg ptr @bw.rt.kept, ptr null acq_rel, align 8
  %some = icmp ne ptr %kept, null
  br i1 %some, label %look, label %fresh
look:
  %sizep = getelementptr i8, ptr %kept, i64 48
  %size = load i64, ptr %sizep, align 8
  %same = icmp eq i64 %size, %need
  br i1 %same, label %reuse, label %drop
reuse:
  store ptr %kept, ptr %slot, align 8
  ret i32 0
drop:
  call void @free(ptr %kept)
  br label %fresh
fresh:
  %rch = call i32 @posix_memalign(ptr %slot, i64 2097152, i64 %need)
  %made = icmp eq i32 %rch, 0
  br i1 %made, label %advise, label %done
advise:
  %m = load ptr, ptr %slot, align 8
  %ignored = call i32 @madvise(ptr %m, i64 %need, i32 14)
  br label %done
done:
  ret i32 %rch
small:
  %rcs = call i32 @posix_memalign(ptr %slot, i64 64, i64 %need)
  ret i32 %rcs
}

; The block stays allocated, as the C library and other allocators keep memory for reuse. Very large
; blocks are offered back (MADV_FREE) in whole huge pages, because splitting huge pages takes as
; long as writing tens of megabytes. The first page is kept: it holds the block's size at byte 48.
define internal void @bw.rt.release(ptr %m, i64 %need) {
  %large = icmp uge i64 %need, {HUGE_FROM}
  br i1 %large, label %huge, label %small
huge:
  %very = icmp uge i64 %need, {OFFERED_FROM}
  br i1 %very, label %offer, label %keep
offer:
  %pages = and i64 %need, -2097152
  %length = sub i64 %pages, 2097152
  %second = getelementptr i8, ptr %m, i64 2097152
  %ignored = call i32 @madvise(ptr %second, i64 %length, i32 8)
  br label %keep
keep:
  %old = atomicrmw xchg ptr @bw.rt.kept, ptr %m seq_cst, align 8
  call void @free(ptr %old)
  call void @bw.rt.unkeep_if_idle()
  br label %out
small:
  call void @free(ptr %m)
  br label %out
out:
  ret void
}

define internal void @bw.rt.unkeep_if_idle() {
  %idle = load atomic i32, ptr @bw.rt.idle seq_cst, align 4
  %used = icmp eq i32 %idle, 0
  br i1 %used, label %out, label %unkeep
unkeep:
  %kept = atomicrmw xchg ptr @bw.rt.kept, ptr null seq_cst, align 8
  call void @free(ptr %kept)
  br label %out
out:
  ret void
}

define void @bw_results_idle(i32 %idle) {
  store atomic i32 %idle, ptr @bw.rt.idle seq_cst, align 4
  call void @bw.rt.unkeep_if_idle()
  ret void
}

; A DLManagedTensor (64 bytes), its shape and strides, and its data share one allocation. Large data
; begins at offset {PLACE} in a page, to avoid 4K aliasing: a load waits for an earlier store whose
; address has the same low 12 bits. Large arrays mostly begin at a page boundary. If a result did
; too, slightly behind an argument, each read of the argument would wait for a write of the result.
define internal void @bw.rt.delete(ptr %managed) {
  %sizep = getelementptr i8, ptr %managed, i64 48
  %need = load i64, ptr %sizep, align 8
  call void @bw.rt.release(ptr %managed, i64 %need)
  ret void
}

define hidden i32 @bw_tensor_alloc(ptr %shape, i32 %ndim, i32 %dtype, ptr %out) {
entry:
  %slot = alloca ptr, align 8
  %n = zext i32 %ndim to i64
  %bits32 = lshr i32 %dtype, 8
  %bits8 = and i32 %bits32, 255
  %lanes32 = lshr i32 %dtype, 16
  %element32 = mul i32 %bits8, %lanes32
  %element = zext i32 %element32 to i64
  br label %size
size:
  %i = phi i64 [ 0, %entry ], [ %i1, %axis ]
  %total = phi i64 [ %element, %entry ], [ %total1, %axis ]
  %over = phi i1 [ false, %entry ], [ %over1, %axis ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %axis, label %allocate
axis:
  %ep = getelementptr i64, ptr %shape, i64 %i
  %extent = load i64, ptr %ep, align 8
  %product = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %total, i64 %extent)
  %total1 = extractvalue { i64, i1 } %product, 0
  %wrapped = extractvalue { i64, i1 } %product, 1
  %over1 = or i1 %over, %wrapped
  %i1 = add i64 %i, 1
  br label %size
allocate:
  %rounded = add i64 %total, 7
  %bytes = lshr i64 %rounded, 3
  %tables = mul i64 %n, 16
  %head0 = add i64 %tables, 127
  %head = and i64 %head0, -64
  %spread = icmp uge i64 %bytes, {SPREAD_FROM}
  %room = select i1 %spread, i64 4096, i64 0
  %both = add i64 %head, %bytes
  %need = add i64 %both, %room
  %huge = icmp ugt i64 %bytes, 4611686018427387904
  %refuse = or i1 %over, %huge
  br i1 %refuse, label %fail, label %get
get:
  %rc = call i32 @bw.rt.memory_of(ptr %slot, i64 %need)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %fill, label %fail
fail:
  %rf = call i32 @bw_raise(ptr @bw.rt.memory, ptr @bw.rt.full)
  ret i32 %rf
fill:
  %m = load ptr, ptr %slot, align 8
  %first = getelementptr i8, ptr %m, i64 %head
  %at = ptrtoint ptr %first to i64
  %away = sub i64 {PLACE}, %at
  %inside = and i64 %away, 4032
  %shift = select i1 %spread, i64 %inside, i64 0
  %data = getelementptr i8, ptr %first, i64 %shift
  %sizes = getelementptr i8, ptr %m, i64 64
  %strides = getelementptr i64, ptr %sizes, i64 %n
  store ptr %data, ptr %m, align 8
  %device = getelementptr i8, ptr %m, i64 8
  store i64 1, ptr %device, align 8
  %np = getelementptr i8, ptr %m, i64 16
  store i32 %ndim, ptr %np, align 8
  %dp = getelementptr i8, ptr %m, i64 20
  store i32 %dtype, ptr %dp, align 4
  %sp = getelementptr i8, ptr %m, i64 24
  store ptr %sizes, ptr %sp, align 8
  %tp = getelementptr i8, ptr %m, i64 32
  store ptr %strides, ptr %tp, align 8
  %op = getelementptr i8, ptr %m, i64 40
  store i64 0, ptr %op, align 8
  %cp = getelementptr i8, ptr %m, i64 48
  store i64 %need, ptr %cp, align 8
  %xp = getelementptr i8, ptr %m, i64 56
  store ptr @bw.rt.delete, ptr %xp, align 8
  br label %copy
copy:
  %j = phi i64 [ %n, %fill ], [ %j1, %one ]
  %stride = phi i64 [ 1, %fill ], [ %stride1, %one ]
  %left = icmp ugt i64 %j, 0
  br i1 %left, label %one, label %wrap
one:
  %j1 = sub i64 %j, 1
  %from = getelementptr i64, ptr %shape, i64 %j1
  %extent1 = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %sizes, i64 %j1
  store i64 %extent1, ptr %to, align 8
  %st = getelementptr i64, ptr %strides, i64 %j1
  store i64 %stride, ptr %st, align 8
  %stride1 = mul i64 %stride, %extent1
  br label %copy
wrap:
  %rw = call i32 @TVMFFITensorFromDLPack(ptr %m, i32 0, i32 0, ptr %out)
  %made = icmp eq i32 %rw, 0
  br i1 %made, label %done, label %undo
undo:
  call void @free(ptr %m)
  br label %done
done:
  ret i32 %rw
}
"""
