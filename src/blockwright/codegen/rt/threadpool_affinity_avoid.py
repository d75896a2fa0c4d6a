"""Keep workers off the caller's processor, as LLVM text.

While other programs keep all processors busy, the system may schedule a worker on the caller's
processor and leave it there, because no other one is less loaded. The two then alternate, and the
region takes as long as on one thread. A worker that is about to join and runs on the caller's
processor removes that processor from its affinity mask first. At worst it then shares another
processor with another program.
"""

from __future__ import annotations

APART_IR = r"""
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; The affinity mask of this thread; all zero when the system has more processors than the mask bits.
define internal void @bw.tp.allowed(ptr %set) {
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 128, i1 false)
  %bytes = call i64 (i64, ...) @syscall(i64 {GETAFFINITY}, i32 0, i64 128, ptr %set)
  ret void
}

; Initializes a worker's given and chosen masks: at first it chooses all processors it was given.
define internal void @bw.tp.born(ptr %given, ptr %chosen) {
  call void @bw.tp.allowed(ptr %given)
  call void @llvm.memcpy.p0.p0.i64(ptr %chosen, ptr %given, i64 128, i1 false)
  ret void
}

; Moves this thread away from a processor; returns whether that worked. If the mask was changed
; externally since the last choice, the changed mask becomes the given one.
define internal i1 @bw.tp.leave(i32 %cpu, ptr %given, ptr %chosen) noinline {
entry:
  %now = alloca [16 x i64], align 64
  %counted = icmp ult i32 %cpu, 1024
  br i1 %counted, label %ask, label %stay
ask:
  call void @bw.tp.allowed(ptr %now)
  %differs = call i32 @memcmp(ptr %now, ptr %chosen, i64 128)
  %kept = icmp eq i32 %differs, 0
  br i1 %kept, label %choose, label %given_anew
given_anew:
  call void @llvm.memcpy.p0.p0.i64(ptr %given, ptr %now, i64 128, i1 false)
  br label %choose
choose:
  call void @llvm.memcpy.p0.p0.i64(ptr %chosen, ptr %given, i64 128, i1 false)
  %word32 = lshr i32 %cpu, 6
  %word = zext i32 %word32 to i64
  %bit32 = and i32 %cpu, 63
  %bit = zext i32 %bit32 to i64
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %wp = getelementptr i64, ptr %chosen, i64 %word
  %had = load i64, ptr %wp, align 8
  %has = and i64 %had, %others
  store i64 %has, ptr %wp, align 8
  %rc = call i64 (i64, ...) @syscall(i64 {SETAFFINITY}, i32 0, i64 128, ptr %chosen)
  %done = icmp eq i64 %rc, 0
  br i1 %done, label %gone, label %refused
gone:
  ret i1 true
refused:
  call void @llvm.memcpy.p0.p0.i64(ptr %chosen, ptr %now, i64 128, i1 false)
  br label %stay
stay:
  ret i1 false
}
"""
