"""The cold code of the thread pool, as LLVM text: thread creation, registration, settings."""

from __future__ import annotations

SETUP_IR = r"""
%bw.Any = type { i32, i32, i64 }
declare i32 @__register_atfork(ptr, ptr, ptr, ptr)
declare i32 @TVMFFIFunctionGetGlobal(ptr, ptr)
declare i32 @TVMFFIFunctionSetGlobal(ptr, ptr, i32)
declare i32 @TVMFFIFunctionCreate(ptr, ptr, ptr, ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)

; Starts threads until %wanted (including the caller) exist; returns how many do. The caller must
; hold the busy flag. If the system cannot create more threads, the pool keeps those it has.
define internal i32 @bw.tp.start(i32 %wanted) noinline {
entry:
  %mask = alloca [16 x i64], align 8
  %saved = alloca [16 x i64], align 8
  %thread = alloca i64, align 8
  br label %fill
fill:
  %w = phi i64 [ 0, %entry ], [ %w1, %fill ]
  %wp = getelementptr i64, ptr %mask, i64 %w
  store i64 -1, ptr %wp, align 8
  %w1 = add i64 %w, 1
  %filled = icmp eq i64 %w1, 16
  br i1 %filled, label %block, label %fill
block:
  ; all signals but those a thread raises synchronously: ILL, TRAP, ABRT, BUS, FPE, SEGV
  store i64 -1273, ptr %mask, align 8
  %m0 = call i32 @pthread_sigmask(i32 2, ptr %mask, ptr %saved)
  %gate = load atomic i64, ptr @bw.tp.gate monotonic, align 8
  %epoch = and i64 %gate, -4294967296
  %first = load i32, ptr @bw.tp.started, align 4
  br label %loop
loop:
  %n = phi i32 [ %first, %block ], [ %n1, %made ]
  %n1 = add i32 %n, 1
  %done = icmp sge i32 %n1, %wanted
  br i1 %done, label %out, label %create
create:
  %n64 = zext i32 %n1 to i64
  %bits = or i64 %epoch, %n64
  %arg = inttoptr i64 %bits to ptr
  %rc = call i32 @pthread_create(ptr %thread, ptr null, ptr @bw.tp.worker, ptr %arg)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %made, label %refused
made:
  %handle = load i64, ptr %thread, align 8
  %dt = call i32 @pthread_detach(i64 %handle)
  store i32 %n1, ptr @bw.tp.started, align 4
  br label %loop
refused:
  store atomic i32 %n1, ptr @bw.tp.threads release, align 4
  br label %out
out:
  %m1 = call i32 @pthread_sigmask(i32 2, ptr %saved, ptr null)
  ret i32 %n1
}

; After fork, only the calling thread exists in the child: forget the workers and any open region.
define internal void @bw.tp.child() {
  store atomic i64 0, ptr @bw.tp.gate monotonic, align 8
  store atomic i32 0, ptr @bw.tp.sleepers monotonic, align 4
  store i32 0, ptr @bw.tp.started, align 4
  store atomic i32 0, ptr @bw.tp.busy release, align 4
  ret void
}

@bw.tp.n_pool = private constant [{NAME_SIZE} x i8] c"{NAME}"
@bw.tp.n_set = private constant [27 x i8] c"blockwright.set_num_threads"
@bw.tp.n_get = private constant [23 x i8] c"blockwright.num_threads"
@bw.tp.n_spin = private constant [23 x i8] c"blockwright.set_spin_us"
@bw.tp.k_value = private constant [11 x i8] c"ValueError\00"
@bw.tp.m_set = private constant [73 x i8]
  c"BW710: set_num_threads expects one integer between 0 (automatic) and {MAX_THREADS}\00"
@bw.tp.m_spin = private constant [75 x i8]
  c"BW710: set_spin_us expects one integer, microseconds between 0 and 1000000\00"
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }]
  [{ i32, ptr, ptr } { i32 65535, ptr @bw.tp.init, ptr null }]

; Registers a global function unless the name is taken; returns 0 on success.
define internal i32 @bw.tp.register(ptr %name, i64 %size, ptr %call) {
entry:
  %key = alloca [2 x i64], align 8
  %function = alloca ptr, align 8
  %error = alloca ptr, align 8
  store ptr %name, ptr %key, align 8
  %sp = getelementptr i8, ptr %key, i64 8
  store i64 %size, ptr %sp, align 8
  %rc = call i32 @TVMFFIFunctionCreate(ptr null, ptr %call, ptr null, ptr %function)
  %made = icmp eq i32 %rc, 0
  br i1 %made, label %set, label %failed
set:
  %f = load ptr, ptr %function, align 8
  %rs = call i32 @TVMFFIFunctionSetGlobal(ptr %key, ptr %f, i32 0)
  %d0 = call i32 @TVMFFIObjectDecRef(ptr %f)
  %ok = icmp eq i32 %rs, 0
  br i1 %ok, label %out, label %failed
failed:
  store ptr null, ptr %error, align 8
  call void @TVMFFIErrorMoveFromRaised(ptr %error)
  %e = load ptr, ptr %error, align 8
  %none = icmp eq ptr %e, null
  br i1 %none, label %out, label %release
release:
  %d1 = call i32 @TVMFFIObjectDecRef(ptr %e)
  br label %out
out:
  %result = phi i32 [ 0, %set ], [ -1, %failed ], [ -1, %release ]
  ret i32 %result
}

; The table of the registered pool; null when no pool is registered.
define internal ptr @bw.tp.find() {
entry:
  %key = alloca [2 x i64], align 8
  %function = alloca ptr, align 8
  %result = alloca %bw.Any, align 8
  store ptr @bw.tp.n_pool, ptr %key, align 8
  %sp = getelementptr i8, ptr %key, i64 8
  store i64 {NAME_SIZE}, ptr %sp, align 8
  store ptr null, ptr %function, align 8
  store i64 0, ptr %result, align 8
  %vp = getelementptr i8, ptr %result, i64 8
  store ptr null, ptr %vp, align 8
  %rc = call i32 @TVMFFIFunctionGetGlobal(ptr %key, ptr %function)
  %f = load ptr, ptr %function, align 8
  %none = icmp eq ptr %f, null
  br i1 %none, label %out, label %ask
ask:
  %rk = call i32 @TVMFFIFunctionCall(ptr %f, ptr null, i32 0, ptr %result)
  %dr = call i32 @TVMFFIObjectDecRef(ptr %f)
  br label %out
out:
  %table = load ptr, ptr %vp, align 8
  ret ptr %table
}

; Runs when the library is loaded. The library that registers first owns the process's pool.
define internal void @bw.tp.init() {
entry:
  %there = call ptr @bw.tp.find()
  %absent = icmp eq ptr %there, null
  br i1 %absent, label %offer, label %use
offer:
  %rc = call i32 @bw.tp.register(ptr @bw.tp.n_pool, i64 {NAME_SIZE}, ptr @bw.tp.f_table)
  %won = icmp eq i32 %rc, 0
  br i1 %won, label %own, label %again
own:
  %r0 = call i32 @bw.tp.register(ptr @bw.tp.n_set, i64 27, ptr @bw.tp.f_set)
  %r1 = call i32 @bw.tp.register(ptr @bw.tp.n_get, i64 23, ptr @bw.tp.f_get)
  %r2 = call i32 @bw.tp.register(ptr @bw.tp.n_spin, i64 23, ptr @bw.tp.f_spin)
  %r3 = call i32 @__register_atfork(ptr null, ptr null, ptr @bw.tp.child, ptr null)
  ret void
again:
  %winner = call ptr @bw.tp.find()
  %lost = icmp eq ptr %winner, null
  br i1 %lost, label %out, label %use
use:
  %table = phi ptr [ %there, %entry ], [ %winner, %again ]
  store atomic ptr %table, ptr @bw.tp.current release, align 8
  ret void
out:
  ret void
}

define internal i32 @bw.tp.f_table(ptr %self, ptr %args, i32 %n, ptr %result) {
  store i32 4, ptr %result, align 8
  %vp = getelementptr i8, ptr %result, i64 8
  store ptr @bw.tp.table, ptr %vp, align 8
  ret i32 0
}

define internal i32 @bw.tp.f_get(ptr %self, ptr %args, i32 %n, ptr %result) {
  %threads = call i32 @bw.tp.num_threads()
  %wide = zext i32 %threads to i64
  store i32 1, ptr %result, align 8
  %vp = getelementptr i8, ptr %result, i64 8
  store i64 %wide, ptr %vp, align 8
  ret i32 0
}

; The only argument if it is an integer from 0 to %limit, else -1.
define internal i64 @bw.tp.argument(ptr %args, i32 %n, i64 %limit) {
entry:
  %single = icmp eq i32 %n, 1
  br i1 %single, label %kind, label %bad
kind:
  %type = load i32, ptr %args, align 8
  %integer = icmp eq i32 %type, 1
  br i1 %integer, label %range, label %bad
range:
  %vp = getelementptr i8, ptr %args, i64 8
  %value = load i64, ptr %vp, align 8
  %within = icmp ule i64 %value, %limit
  br i1 %within, label %good, label %bad
good:
  ret i64 %value
bad:
  ret i64 -1
}

define internal i32 @bw.tp.f_set(ptr %self, ptr %args, i32 %n, ptr %result) {
entry:
  %value = call i64 @bw.tp.argument(ptr %args, i32 %n, i64 {MAX_THREADS})
  %bad = icmp slt i64 %value, 0
  br i1 %bad, label %refuse, label %accept
refuse:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @bw.tp.k_value, ptr @bw.tp.m_set)
  ret i32 -1
accept:
  %asked = trunc i64 %value to i32
  %automatic = icmp eq i64 %value, 0
  br i1 %automatic, label %default, label %store
default:
  %d = call i32 @bw.tp.default_threads()
  br label %store
store:
  %threads = phi i32 [ %asked, %accept ], [ %d, %default ]
  store atomic i32 %threads, ptr @bw.tp.threads seq_cst, align 4
  call void @bw.tp.wake(ptr @bw.tp.threads, i32 2147483647)
  ret i32 0
}

define internal i32 @bw.tp.f_spin(ptr %self, ptr %args, i32 %n, ptr %result) {
entry:
  %value = call i64 @bw.tp.argument(ptr %args, i32 %n, i64 1000000)
  %bad = icmp slt i64 %value, 0
  br i1 %bad, label %refuse, label %accept
refuse:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @bw.tp.k_value, ptr @bw.tp.m_spin)
  ret i32 -1
accept:
  %ns = mul i64 %value, 1000
  store atomic i64 %ns, ptr @bw.tp.spin monotonic, align 8
  ret i32 0
}
"""
