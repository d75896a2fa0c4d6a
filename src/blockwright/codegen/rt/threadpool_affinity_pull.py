"""Migrate a descheduled worker to the waiting caller's processor, as LLVM text.

A worker whose processor runs another program keeps its chunk, and all others wait: milliseconds for
work of microseconds. The caller has a processor and is idle, so it moves the worker there and
sleeps. After the region the worker returns to its previous processor and affinity mask.
"""

from __future__ import annotations

PULL_IR = r"""
@bw.tp.saved = internal global [16 x i64] zeroinitializer, align 64

; CPU time of a thread in nanoseconds.
define internal i64 @bw.tp.ran(i32 %number) {
  %ts = alloca [2 x i64], align 8
  store i64 0, ptr %ts, align 8
  %np = getelementptr i8, ptr %ts, i64 8
  store i64 0, ptr %np, align 8
  %not = xor i32 %number, -1
  %high = shl i32 %not, 3
  %clock = or i32 %high, 6
  %rc = call i32 @clock_gettime(i32 %clock, ptr %ts)
  %s = load i64, ptr %ts, align 8
  %n = load i64, ptr %np, align 8
  %sn = mul i64 %s, 1000000000
  %t = add i64 %sn, %n
  ret i64 %t
}

; Whether a thread used no CPU time during about a microsecond.
define internal i1 @bw.tp.stuck(i32 %number) {
entry:
  %before = call i64 @bw.tp.ran(i32 %number)
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  {PAUSE}
  %i1 = add i32 %i, 1
  %done = icmp eq i32 %i1, 64
  br i1 %done, label %out, label %loop
out:
  %after = call i64 @bw.tp.ran(i32 %number)
  %same = icmp eq i64 %before, %after
  ret i1 %same
}

; Restricts a thread to one processor; returns 0 on success.
define internal i64 @bw.tp.only(i32 %number, i32 %cpu) {
entry:
  %mask = alloca [16 x i64], align 8
  br label %fill
fill:
  %w = phi i64 [ 0, %entry ], [ %w1, %fill ]
  %wp = getelementptr i64, ptr %mask, i64 %w
  store i64 0, ptr %wp, align 8
  %w1 = add i64 %w, 1
  %filled = icmp eq i64 %w1, 16
  br i1 %filled, label %set, label %fill
set:
  %word32 = lshr i32 %cpu, 6
  %word = zext i32 %word32 to i64
  %bit32 = and i32 %cpu, 63
  %bit = zext i32 %bit32 to i64
  %one = shl i64 1, %bit
  %op = getelementptr i64, ptr %mask, i64 %word
  store i64 %one, ptr %op, align 8
  %rc = call i64 (i64, ...) @syscall(i64 {SETAFFINITY}, i32 %number, i64 128, ptr %mask)
  ret i64 %rc
}

; Moves a joined, descheduled worker to this processor; returns its index, or 0. The caller must
; hold the busy flag.
define internal i32 @bw.tp.pull() noinline {
entry:
  %started = load i32, ptr @bw.tp.started, align 4
  %here = call i32 @sched_getcpu()
  %valid = icmp ult i32 %here, 1024
  br i1 %valid, label %loop, label %none
loop:
  %t = phi i32 [ 0, %entry ], [ %t1, %look ], [ %t1, %inside ], [ %t1, %idle ], [ %t1, %allowed ]
  %t1 = add i32 %t, 1
  %last = icmp sgt i32 %t1, %started
  br i1 %last, label %none, label %look
none:
  ret i32 0
look:
  %t64 = zext i32 %t1 to i64
  %line = getelementptr [8 x i64], ptr @bw.tp.next, i64 %t64
  %insidep = getelementptr i8, ptr %line, i64 16
  %flag = load atomic i32, ptr %insidep acquire, align 8
  %is = icmp ne i32 %flag, 0
  br i1 %is, label %inside, label %loop
inside:
  %numberp = getelementptr i8, ptr %line, i64 8
  %number = load atomic i32, ptr %numberp monotonic, align 8
  %stuck = call i1 @bw.tp.stuck(i32 %number)
  br i1 %stuck, label %idle, label %loop
idle:
  %bytes = call i64 (i64, ...) @syscall(i64 {GETAFFINITY}, i32 %number, i64 128, ptr @bw.tp.saved)
  %got = icmp sgt i64 %bytes, 0
  br i1 %got, label %allowed, label %loop
allowed:
  %word32 = lshr i32 %here, 6
  %word = zext i32 %word32 to i64
  %setp = getelementptr i8, ptr %line, i64 24
  %set = load ptr, ptr %setp, align 8
  %wp = getelementptr i64, ptr %set, i64 %word
  %bits = load i64, ptr %wp, align 8
  %bit32 = and i32 %here, 63
  %bit = zext i32 %bit32 to i64
  %moved = lshr i64 %bits, %bit
  %odd = trunc i64 %moved to i1
  br i1 %odd, label %move, label %loop
move:
  %rc = call i64 @bw.tp.only(i32 %number, i32 %here)
  %fine = icmp eq i64 %rc, 0
  %result = select i1 %fine, i32 %t1, i32 0
  ret i32 %result
}

; Moves a worker back to the processor where it joined, and restores its affinity mask.
define internal void @bw.tp.put_back(i32 %t) noinline {
entry:
  %t64 = zext i32 %t to i64
  %line = getelementptr [8 x i64], ptr @bw.tp.next, i64 %t64
  %numberp = getelementptr i8, ptr %line, i64 8
  %number = load atomic i32, ptr %numberp monotonic, align 8
  %cpup = getelementptr i8, ptr %line, i64 12
  %cpu = load atomic i32, ptr %cpup monotonic, align 4
  %valid = icmp ult i32 %cpu, 1024
  br i1 %valid, label %back, label %free
back:
  %r0 = call i64 @bw.tp.only(i32 %number, i32 %cpu)
  br label %free
free:
  %r1 = call i64 (i64, ...) @syscall(i64 {SETAFFINITY}, i32 %number, i64 128, ptr @bw.tp.saved)
  ret void
}
"""
