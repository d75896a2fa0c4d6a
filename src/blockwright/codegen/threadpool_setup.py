"""The slow parts of the thread pool, as LLVM text: thread start, limits, registration, settings."""

from __future__ import annotations

SETUP_IR = r"""
%bw.Any = type { i32, i32, i64 }
declare ptr @getenv(ptr)
declare i64 @strtol(ptr, ptr, i32)
declare ptr @fopen(ptr, ptr)
declare i32 @fclose(ptr)
declare ptr @fgets(ptr, i32, ptr)
declare i32 @fscanf(ptr, ptr, ...)
declare i32 @sscanf(ptr, ptr, ...)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare i32 @strcmp(ptr, ptr)
declare ptr @strrchr(ptr, i32)
declare i32 @__register_atfork(ptr, ptr, ptr, ptr)
declare i32 @TVMFFIFunctionGetGlobal(ptr, ptr)
declare i32 @TVMFFIFunctionSetGlobal(ptr, ptr, i32)
declare i32 @TVMFFIFunctionCreate(ptr, ptr, ptr, ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

@bw.tp.env = private constant [24 x i8] c"BLOCKWRIGHT_NUM_THREADS\00"
@bw.tp.read = private constant [3 x i8] c"re\00"
@bw.tp.groups = private constant [18 x i8] c"/proc/self/cgroup\00"
@bw.tp.line2 = private constant [14 x i8] c"0::%400[^\0A]%n\00"
@bw.tp.line1 = private constant [24 x i8] c"%*d:%100[^:]:%400[^\0A]%n\00"
@bw.tp.cpu_a = private constant [4 x i8] c"cpu\00"
@bw.tp.cpu_b = private constant [12 x i8] c"cpu,cpuacct\00"
@bw.tp.cpu_c = private constant [12 x i8] c"cpuacct,cpu\00"
@bw.tp.file2 = private constant [25 x i8] c"/sys/fs/cgroup%s/cpu.max\00"
@bw.tp.file1 = private constant [38 x i8] c"/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us\00"
@bw.tp.file1p = private constant [39 x i8] c"/sys/fs/cgroup/cpu%s/cpu.cfs_period_us\00"
@bw.tp.pair = private constant [8 x i8] c"%ld %ld\00"
@bw.tp.one = private constant [4 x i8] c"%ld\00"

; Starts threads until %wanted (the caller included) exist; returns how many do. Only the holder of
; the busy flag gets here. When the system refuses, the pool settles for what it has.
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
  ; all but those a thread raises against itself: ILL, TRAP, ABRT, BUS, FPE, SEGV
  store i64 -1273, ptr %mask, align 8
  %m0 = call i32 @pthread_sigmask(i32 2, ptr %mask, ptr %saved)
  %gate = load atomic i64, ptr @bw.tp.job monotonic, align 8
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

; How many threads to use: as set, else from the environment, else processors and quota.
define internal i32 @bw.tp.num_threads() {
entry:
  %set = load atomic i32, ptr @bw.tp.threads monotonic, align 4
  %known = icmp sgt i32 %set, 0
  br i1 %known, label %out, label %find
find:
  %default = call i32 @bw.tp.default_threads()
  %swap = cmpxchg ptr @bw.tp.threads, i32 0, i32 %default acq_rel acquire, align 4
  %old = extractvalue { i32, i1 } %swap, 0
  %ours = extractvalue { i32, i1 } %swap, 1
  %chosen = select i1 %ours, i32 %default, i32 %old
  br label %out
out:
  %n = phi i32 [ %set, %entry ], [ %chosen, %find ]
  ret i32 %n
}

define internal i32 @bw.tp.default_threads() noinline {
entry:
  %end = alloca ptr, align 8
  %cpus = alloca [128 x i64], align 8
  %env = call ptr @getenv(ptr @bw.tp.env)
  %unset = icmp eq ptr %env, null
  br i1 %unset, label %affinity, label %parse
parse:
  %value = call i64 @strtol(ptr %env, ptr %end, i32 10)
  %stop = load ptr, ptr %end, align 8
  %rest = load i8, ptr %stop, align 1
  %whole = icmp eq i8 %rest, 0
  %low = icmp sge i64 %value, 1
  %high = icmp sle i64 %value, {MAX_THREADS}
  %range = and i1 %low, %high
  %valid = and i1 %whole, %range
  br i1 %valid, label %given, label %affinity
given:
  %given32 = trunc i64 %value to i32
  ret i32 %given32
affinity:
  %bytes = call i64 (i64, ...) @syscall(i64 {GETAFFINITY}, i64 0, i64 1024, ptr %cpus)
  %got = icmp sgt i64 %bytes, 0
  br i1 %got, label %count, label %limit
count:
  %offset = phi i64 [ 0, %affinity ], [ %offset1, %count ]
  %sum = phi i64 [ 0, %affinity ], [ %sum1, %count ]
  %wp = getelementptr i8, ptr %cpus, i64 %offset
  %word = load i64, ptr %wp, align 8
  %bits = call i64 @llvm.ctpop.i64(i64 %word)
  %sum1 = add i64 %sum, %bits
  %offset1 = add i64 %offset, 8
  %more = icmp slt i64 %offset1, %bytes
  br i1 %more, label %count, label %limit
limit:
  %avail = phi i64 [ 1, %affinity ], [ %sum1, %count ]
  %quota = call i64 @bw.tp.quota()
  %both = call i64 @llvm.smin.i64(i64 %avail, i64 %quota)
  %capped = call i64 @llvm.smin.i64(i64 %both, i64 {MAX_THREADS})
  %atleast = call i64 @llvm.smax.i64(i64 %capped, i64 1)
  %result = trunc i64 %atleast to i32
  ret i32 %result
}

; The smallest processor quota (rounded up) of this process' control groups and their parents.
define internal i64 @bw.tp.quota() noinline {
entry:
  %line = alloca [512 x i8], align 1
  %names = alloca [128 x i8], align 1
  %path = alloca [512 x i8], align 1
  %end = alloca i32, align 4
  %file = call ptr @fopen(ptr @bw.tp.groups, ptr @bw.tp.read)
  %missing = icmp eq ptr %file, null
  br i1 %missing, label %none, label %next
none:
  ret i64 {MAX_THREADS}
next:
  %best = phi i64 [ {MAX_THREADS}, %entry ], [ %best, %other ], [ %best1, %walk ]
  %text = call ptr @fgets(ptr %line, i32 512, ptr %file)
  %eof = icmp eq ptr %text, null
  br i1 %eof, label %close, label %two
close:
  %closed = call i32 @fclose(ptr %file)
  ret i64 %best
two:
  %n2 = call i32 (ptr, ptr, ...) @sscanf(ptr %line, ptr @bw.tp.line2, ptr %path, ptr %end)
  %is2 = icmp sge i32 %n2, 1
  br i1 %is2, label %walk, label %one
one:
  %n1 = call i32 (ptr, ptr, ...)
    @sscanf(ptr %line, ptr @bw.tp.line1, ptr %names, ptr %path, ptr %end)
  %is1 = icmp sge i32 %n1, 2
  br i1 %is1, label %cpu, label %other
cpu:
  %ca = call i32 @strcmp(ptr %names, ptr @bw.tp.cpu_a)
  %cb = call i32 @strcmp(ptr %names, ptr @bw.tp.cpu_b)
  %cc = call i32 @strcmp(ptr %names, ptr @bw.tp.cpu_c)
  %ab = mul i32 %ca, %cb
  %abc = mul i32 %ab, %cc
  %match = icmp eq i32 %abc, 0
  br i1 %match, label %walk, label %other
other:
  br label %next
walk:
  %version = phi i1 [ true, %two ], [ false, %cpu ]
  %q = call i64 @bw.tp.walk(ptr %path, i1 %version)
  %best1 = call i64 @llvm.smin.i64(i64 %best, i64 %q)
  br label %next
}

; The smallest quota from one group up to the root; shortens %path as it goes.
define internal i64 @bw.tp.walk(ptr %path, i1 %v2) {
entry:
  br label %loop
loop:
  %best = phi i64 [ {MAX_THREADS}, %entry ], [ %best1, %up ]
  %q = call i64 @bw.tp.group_quota(ptr %path, i1 %v2)
  %best1 = call i64 @llvm.smin.i64(i64 %best, i64 %q)
  %slash = call ptr @strrchr(ptr %path, i32 47)
  %root = icmp eq ptr %slash, null
  br i1 %root, label %out, label %up
up:
  store i8 0, ptr %slash, align 1
  br label %loop
out:
  ret i64 %best1
}

define internal i64 @bw.tp.group_quota(ptr %path, i1 %v2) {
entry:
  %name = alloca [600 x i8], align 1
  %quota = alloca i64, align 8
  %period = alloca i64, align 8
  %format = select i1 %v2, ptr @bw.tp.file2, ptr @bw.tp.file1
  %l0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %name, i64 600, ptr %format, ptr %path)
  %values = select i1 %v2, ptr @bw.tp.pair, ptr @bw.tp.one
  %n0 = call i32 @bw.tp.numbers(ptr %name, ptr %values, ptr %quota, ptr %period)
  br i1 %v2, label %pair, label %single
pair:
  %both = icmp eq i32 %n0, 2
  br i1 %both, label %have, label %none
single:
  %first = icmp eq i32 %n0, 1
  br i1 %first, label %second, label %none
second:
  %l1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %name, i64 600, ptr @bw.tp.file1p, ptr %path)
  %n1 = call i32 @bw.tp.numbers(ptr %name, ptr @bw.tp.one, ptr %period, ptr %period)
  %got = icmp eq i32 %n1, 1
  br i1 %got, label %have, label %none
have:
  %q = load i64, ptr %quota, align 8
  %p = load i64, ptr %period, align 8
  %qok = icmp sgt i64 %q, 0
  %pok = icmp sgt i64 %p, 0
  %ok = and i1 %qok, %pok
  br i1 %ok, label %divide, label %none
divide:
  %pm = sub i64 %p, 1
  %qp = add i64 %q, %pm
  %n = sdiv i64 %qp, %p
  ret i64 %n
none:
  ret i64 {MAX_THREADS}
}

; Reads up to two numbers from a file; returns how many it found.
define internal i32 @bw.tp.numbers(ptr %name, ptr %format, ptr %a, ptr %b) {
entry:
  %file = call ptr @fopen(ptr %name, ptr @bw.tp.read)
  %missing = icmp eq ptr %file, null
  br i1 %missing, label %none, label %scan
none:
  ret i32 0
scan:
  %n = call i32 (ptr, ptr, ...) @fscanf(ptr %file, ptr %format, ptr %a, ptr %b)
  %closed = call i32 @fclose(ptr %file)
  ret i32 %n
}

; In a child after fork only the calling thread exists: forget the workers and any open region.
define internal void @bw.tp.child() {
  store atomic i64 0, ptr @bw.tp.job monotonic, align 8
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

; Registers a global function, without replacing one that exists; returns 0 when it did.
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

; The table of the registered pool, or null when there is none yet.
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

; Runs when the library is loaded. Whoever registers first owns the process' pool.
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

; The only argument when it is an integer from 0 to %limit, else -1.
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
