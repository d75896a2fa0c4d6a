"""The core of the thread pool, as LLVM text: the region and its gate, work sharing, waiting.

See `blockwright.codegen.rt.threadpool` for the design.
"""

from __future__ import annotations

CORE_IR = r"""
; The current region. Offsets in the job: 0 fn, 8 ctx, 16 tasks per share, 24 number of shares with
; an additional task, 32 number of shares (i32), 36 first failure (i32), 40 its error object, 48 the
; processor of the caller (i32).
@bw.tp.gate = internal global [16 x i64] zeroinitializer, align 128
@bw.tp.job = internal global [16 x i64] zeroinitializer, align 128
; One line per thread: 0 chunks taken from its share; for workers also 8 the thread ID (i32), 12 the
; processor where it joined (i32), 16 whether it has joined (i32), 24 a pointer to its given
; affinity mask.
@bw.tp.next = internal global [{MAX_THREADS} x [8 x i64]] zeroinitializer, align 128
@bw.tp.sleepers = internal global [32 x i32] zeroinitializer, align 128
@bw.tp.busy = internal global [32 x i32] zeroinitializer, align 128
@bw.tp.threads = internal global [32 x i32] zeroinitializer, align 128
@bw.tp.started = internal global i32 0, align 4
@bw.tp.spin = internal global i64 {SPIN_NS}, align 8

; Version and entry points of this library's own pool, and a pointer to the pool in use.
@bw.tp.table = internal constant [3 x ptr] [
  ptr inttoptr (i64 1 to ptr), ptr @bw.tp.parallel_for, ptr @bw.tp.num_threads], align 8
@bw.tp.current = internal global ptr @bw.tp.table, align 8

declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getcpu()
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i64 @pthread_self()
declare i32 @pthread_setname_np(i64, ptr)
declare void @TVMFFIErrorMoveFromRaised(ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
{PAUSE_DECLARATION}
@bw.tp.worker_name = private constant [10 x i8] c"bw-worker\00"

define i32 @bw_parallel_for(ptr %fn, ptr %ctx, i64 %num_tasks) {
  %table = load atomic ptr, ptr @bw.tp.current monotonic, align 8
  %entry = getelementptr i8, ptr %table, i64 8
  %pool = load ptr, ptr %entry, align 8
  %rc = tail call i32 %pool(ptr %fn, ptr %ctx, i64 %num_tasks)
  ret i32 %rc
}

define i32 @bw_num_threads() {
  %table = load atomic ptr, ptr @bw.tp.current monotonic, align 8
  %entry = getelementptr i8, ptr %table, i64 16
  %pool = load ptr, ptr %entry, align 8
  %n = tail call i32 %pool()
  ret i32 %n
}

define internal i64 @bw.tp.now() {
  %ts = alloca [2 x i64], align 8
  %rc = call i32 @clock_gettime(i32 1, ptr %ts)
  %s = load i64, ptr %ts, align 8
  %np = getelementptr i8, ptr %ts, i64 8
  %n = load i64, ptr %np, align 8
  %sn = mul i64 %s, 1000000000
  %t = add i64 %sn, %n
  ret i64 %t
}

; Private futex wait: returns when woken, or at once if the word does not hold %value.
define internal void @bw.tp.wait(ptr %word, i32 %value) {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i64 128, i32 %value, ptr null)
  ret void
}

; As bw.tp.wait, for at most %ns nanoseconds.
define internal void @bw.tp.wait_for(ptr %word, i32 %value, i64 %ns) {
  %ts = alloca [2 x i64], align 8
  store i64 0, ptr %ts, align 8
  %np = getelementptr i8, ptr %ts, i64 8
  store i64 %ns, ptr %np, align 8
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i64 128, i32 %value, ptr %ts)
  ret void
}

define internal void @bw.tp.wake(ptr %word, i32 %count) noinline {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i64 129, i32 %count)
  ret void
}

; Spins until (*word & mask) != value or the spin time is over; returns the last word read. The
; clock is read once per 64 hints, so that a change is seen within a few nanoseconds.
define internal i32 @bw.tp.poll(ptr %word, i32 %mask, i32 %value) {
entry:
  %limit = load atomic i64, ptr @bw.tp.spin monotonic, align 8
  %none = icmp eq i64 %limit, 0
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %hint ], [ 0, %clock ]
  %end = phi i64 [ 0, %entry ], [ %end, %hint ], [ %end1, %clock ]
  %w = load atomic i32, ptr %word acquire, align 4
  %m = and i32 %w, %mask
  %changed = icmp ne i32 %m, %value
  %stop = or i1 %changed, %none
  br i1 %stop, label %out, label %again
again:
  %full = icmp eq i32 %i, 64
  br i1 %full, label %clock, label %hint
hint:
  {PAUSE}
  %i1 = add i32 %i, 1
  br label %loop
clock:
  %now = call i64 @bw.tp.now()
  %first = icmp eq i64 %end, 0
  %deadline = add i64 %now, %limit
  %end1 = select i1 %first, i64 %deadline, i64 %end
  %over = icmp sgt i64 %now, %end1
  br i1 %over, label %out, label %loop
out:
  ret i32 %w
}

; Records the first failure of a region and takes its error object from this thread.
define internal void @bw.tp.fail(i32 %rc) noinline {
  %error = alloca ptr, align 8
  store ptr null, ptr %error, align 8
  call void @TVMFFIErrorMoveFromRaised(ptr %error)
  %e = load ptr, ptr %error, align 8
  %rcp = getelementptr i8, ptr @bw.tp.job, i64 36
  %swap = cmpxchg ptr %rcp, i32 0, i32 %rc acq_rel monotonic, align 4
  %first = extractvalue { i32, i1 } %swap, 1
  br i1 %first, label %keep, label %drop
keep:
  %ep = getelementptr i8, ptr @bw.tp.job, i64 40
  store ptr %e, ptr %ep, align 8
  ret void
drop:
  %none = icmp eq ptr %e, null
  br i1 %none, label %out, label %release
release:
  %r = call i32 @TVMFFIObjectDecRef(ptr %e)
  br label %out
out:
  ret void
}

; Runs chunks: first those of this thread's own share, then the remaining ones of other shares.
define internal void @bw.tp.work(i64 %thread) {
entry:
  %fnp = getelementptr i8, ptr @bw.tp.job, i64 0
  %fn = load ptr, ptr %fnp, align 8
  %ctxp = getelementptr i8, ptr @bw.tp.job, i64 8
  %ctx = load ptr, ptr %ctxp, align 8
  %basep = getelementptr i8, ptr @bw.tp.job, i64 16
  %base = load i64, ptr %basep, align 8
  %remp = getelementptr i8, ptr @bw.tp.job, i64 24
  %rem = load i64, ptr %remp, align 8
  %partsp = getelementptr i8, ptr @bw.tp.job, i64 32
  %parts32 = load i32, ptr %partsp, align 8
  %parts = zext i32 %parts32 to i64
  %rcp = getelementptr i8, ptr @bw.tp.job, i64 36
  %inside = icmp ult i64 %thread, %parts
  %home = select i1 %inside, i64 %thread, i64 0
  br label %share
share:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %raw = add i64 %home, %k
  %wrapped = sub i64 %raw, %parts
  %past = icmp uge i64 %raw, %parts
  %s = select i1 %past, i64 %wrapped, i64 %raw
  %before = call i64 @llvm.umin.i64(i64 %s, i64 %rem)
  %even = mul i64 %s, %base
  %low = add i64 %even, %before
  %more = icmp ult i64 %s, %rem
  %extra = zext i1 %more to i64
  %size = add i64 %base, %extra
  %round = add i64 %size, 7
  %chunk = lshr i64 %round, 3
  %counter = getelementptr [8 x i64], ptr @bw.tp.next, i64 %s
  br label %look
look:
  %seen = load atomic i64, ptr %counter monotonic, align 8
  %seenoff = mul i64 %seen, %chunk
  %empty = icmp uge i64 %seenoff, %size
  br i1 %empty, label %next, label %check
check:
  %rc0 = load atomic i32, ptr %rcp monotonic, align 4
  %failed = icmp ne i32 %rc0, 0
  br i1 %failed, label %out, label %take
take:
  %mine = atomicrmw add ptr %counter, i64 1 monotonic, align 8
  %off = mul i64 %mine, %chunk
  %late = icmp uge i64 %off, %size
  br i1 %late, label %next, label %run
run:
  %offend = add i64 %off, %chunk
  %offcut = call i64 @llvm.umin.i64(i64 %offend, i64 %size)
  %begin = add i64 %low, %off
  %end = add i64 %low, %offcut
  %rc = call i32 %fn(ptr %ctx, i64 %begin, i64 %end)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %look, label %bad
bad:
  call void @bw.tp.fail(i32 %rc)
  br label %out
next:
  %k1 = add i64 %k, 1
  %done = icmp eq i64 %k1, %parts
  br i1 %done, label %out, label %share
out:
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @llvm.smin.i32(i32, i32)

; A worker thread. Its argument holds the epoch of its creation (upper half) and its index.
define internal ptr @bw.tp.worker(ptr %arg) {
entry:
  %bits = ptrtoint ptr %arg to i64
  %thread = and i64 %bits, 4294967295
  %thread32 = trunc i64 %thread to i32
  %birth64 = lshr i64 %bits, 32
  %birth = trunc i64 %birth64 to i32
  %self = call i64 @pthread_self()
  %named = call i32 @pthread_setname_np(i64 %self, ptr @bw.tp.worker_name)
  %epochp = getelementptr i8, ptr @bw.tp.gate, i64 4
  %line = getelementptr [8 x i64], ptr @bw.tp.next, i64 %thread
  %numberp = getelementptr i8, ptr %line, i64 8
  %cpup = getelementptr i8, ptr %line, i64 12
  %insidep = getelementptr i8, ptr %line, i64 16
  %callerp = getelementptr i8, ptr @bw.tp.job, i64 48
  %given = alloca [16 x i64], align 64
  %chosen = alloca [16 x i64], align 64
  call void @bw.tp.born(ptr %given, ptr %chosen)
  %setp = getelementptr i8, ptr %line, i64 24
  store ptr %given, ptr %setp, align 8
  %number64 = call i64 (i64, ...) @syscall(i64 {GETTID})
  %number = trunc i64 %number64 to i32
  store atomic i32 %number, ptr %numberp monotonic, align 8
  br label %loop
loop:
  %seen = phi i32 [ %birth, %entry ], [ %seen, %surplus ], [ %seen, %sleep ], [ %e, %leave ],
                 [ %e, %closed ], [ %e, %notify ]
  %threads = load atomic i32, ptr @bw.tp.threads acquire, align 4
  %needed = icmp slt i32 %thread32, %threads
  br i1 %needed, label %idle, label %surplus
surplus:
  call void @bw.tp.wait(ptr @bw.tp.threads, i32 %threads)
  br label %loop
idle:
  %epoch = call i32 @bw.tp.poll(ptr %epochp, i32 -1, i32 %seen)
  %same = icmp eq i32 %epoch, %seen
  br i1 %same, label %sleep, label %join
sleep:
  %s0 = atomicrmw add ptr @bw.tp.sleepers, i32 1 seq_cst, align 4
  call void @bw.tp.wait(ptr %epochp, i32 %seen)
  %s1 = atomicrmw sub ptr @bw.tp.sleepers, i32 1 seq_cst, align 4
  br label %loop
join:
  %gate = load atomic i64, ptr @bw.tp.gate monotonic, align 8
  %e64 = lshr i64 %gate, 32
  %e = trunc i64 %e64 to i32
  %openbit = and i64 %gate, 2147483648
  %open = icmp ne i64 %openbit, 0
  %allowed = load atomic i32, ptr @bw.tp.threads monotonic, align 4
  %wanted = icmp slt i32 %thread32, %allowed
  %may = and i1 %open, %wanted
  br i1 %may, label %where, label %closed
closed:
  br label %loop
where:
  %here = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr %callerp monotonic, align 8
  %together = icmp eq i32 %here, %caller
  br i1 %together, label %apart, label %enter
apart:
  %left = call i1 @bw.tp.leave(i32 %here, ptr %given, ptr %chosen)
  br i1 %left, label %join, label %enter
enter:
  %gate1 = add i64 %gate, 1
  %swap = cmpxchg ptr @bw.tp.gate, i64 %gate, i64 %gate1 acq_rel monotonic, align 8
  %in = extractvalue { i64, i1 } %swap, 1
  br i1 %in, label %run, label %join
run:
  %cpu = call i32 @sched_getcpu()
  store atomic i32 %cpu, ptr %cpup monotonic, align 4
  store atomic i32 1, ptr %insidep release, align 8
  call void @bw.tp.work(i64 %thread)
  store atomic i32 0, ptr %insidep release, align 8
  %old = atomicrmw sub ptr @bw.tp.gate, i64 1 acq_rel, align 8
  %tail = and i64 %old, 2147483647
  %last = icmp eq i64 %tail, 1073741825
  br i1 %last, label %notify, label %leave
leave:
  br label %loop
notify:
  call void @bw.tp.wake(ptr @bw.tp.gate, i32 1)
  br label %loop
}

define internal i32 @bw.tp.parallel_for(ptr %fn, ptr %ctx, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %count, label %nothing
nothing:
  ret i32 0
count:
  %single = icmp eq i64 %n, 1
  br i1 %single, label %inline, label %ask
ask:
  %wanted = call i32 @bw.tp.num_threads()
  %alone = icmp eq i32 %wanted, 1
  br i1 %alone, label %inline, label %lock
lock:
  %swap = cmpxchg ptr @bw.tp.busy, i32 0, i32 1 acquire monotonic, align 4
  %got = extractvalue { i32, i1 } %swap, 1
  br i1 %got, label %ready, label %inline
inline:
  %irc = tail call i32 %fn(ptr %ctx, i64 0, i64 %n)
  ret i32 %irc
ready:
  %started = load i32, ptr @bw.tp.started, align 4
  %have = add i32 %started, 1
  %enough = icmp sge i32 %have, %wanted
  br i1 %enough, label %fork, label %start
start:
  %now = call i32 @bw.tp.start(i32 %wanted)
  br label %fork
fork:
  %avail = phi i32 [ %wanted, %ready ], [ %now, %start ]
  %avail64 = zext i32 %avail to i64
  %parts = call i64 @llvm.umin.i64(i64 %avail64, i64 %n)
  call void @bw.tp.publish(ptr %fn, ptr %ctx, i64 %n, i64 %parts)
  call void @bw.tp.work(i64 0)
  %old = atomicrmw sub ptr @bw.tp.gate, i64 2147483648 acq_rel, align 8
  %active = and i64 %old, 1073741823
  %joined = icmp ne i64 %active, 0
  br i1 %joined, label %wait, label %finish
wait:
  call void @bw.tp.join()
  br label %finish
finish:
  %rcp = getelementptr i8, ptr @bw.tp.job, i64 36
  %rc = load i32, ptr %rcp, align 4
  %ep = getelementptr i8, ptr @bw.tp.job, i64 40
  %error = load ptr, ptr %ep, align 8
  store atomic i32 0, ptr @bw.tp.busy release, align 4
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %out, label %raise
raise:
  call void @TVMFFIErrorSetRaised(ptr %error)
  %dr = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %out
out:
  ret i32 %rc
}

; Writes the region, opens the gate with a new epoch, and wakes sleeping workers.
define internal void @bw.tp.publish(ptr %fn, ptr %ctx, i64 %n, i64 %parts) {
entry:
  %base = udiv i64 %n, %parts
  %even = mul i64 %base, %parts
  %rem = sub i64 %n, %even
  %parts32 = trunc i64 %parts to i32
  br label %reset
reset:
  %i = phi i64 [ 0, %entry ], [ %i1, %reset ]
  %counter = getelementptr [8 x i64], ptr @bw.tp.next, i64 %i
  store i64 0, ptr %counter, align 8
  %i1 = add i64 %i, 1
  %all = icmp eq i64 %i1, %parts
  br i1 %all, label %open, label %reset
open:
  %fnp = getelementptr i8, ptr @bw.tp.job, i64 0
  store ptr %fn, ptr %fnp, align 8
  %ctxp = getelementptr i8, ptr @bw.tp.job, i64 8
  store ptr %ctx, ptr %ctxp, align 8
  %basep = getelementptr i8, ptr @bw.tp.job, i64 16
  store i64 %base, ptr %basep, align 8
  %remp = getelementptr i8, ptr @bw.tp.job, i64 24
  store i64 %rem, ptr %remp, align 8
  %partsp = getelementptr i8, ptr @bw.tp.job, i64 32
  store i32 %parts32, ptr %partsp, align 8
  %rcp = getelementptr i8, ptr @bw.tp.job, i64 36
  store i32 0, ptr %rcp, align 4
  %ep = getelementptr i8, ptr @bw.tp.job, i64 40
  store ptr null, ptr %ep, align 8
  %cpu = call i32 @sched_getcpu()
  %cpup = getelementptr i8, ptr @bw.tp.job, i64 48
  store atomic i32 %cpu, ptr %cpup monotonic, align 8
  %gate = load atomic i64, ptr @bw.tp.gate monotonic, align 8
  %bump = add i64 %gate, 4294967296
  %epoch = and i64 %bump, -4294967296
  %opened = or i64 %epoch, 2147483648
  %previous = atomicrmw xchg ptr @bw.tp.gate, i64 %opened seq_cst, align 8
  %sleepers = load atomic i32, ptr @bw.tp.sleepers seq_cst, align 4
  %nobody = icmp eq i32 %sleepers, 0
  br i1 %nobody, label %out, label %wake
wake:
  %epochp = getelementptr i8, ptr @bw.tp.gate, i64 4
  %helpers = add i32 %parts32, -1
  call void @bw.tp.wake(ptr %epochp, i32 %helpers)
  br label %out
out:
  ret void
}

; Waits until all joined threads have left: spins for the bounded time, then sleeps.
define internal void @bw.tp.join() noinline {
entry:
  br label %loop
loop:
  %left = call i32 @bw.tp.drained()
  %done = icmp eq i32 %left, 0
  br i1 %done, label %out, label %late
late:
  %pulled = phi i32 [ 0, %loop ], [ %helped, %block ]
  %already = icmp ne i32 %pulled, 0
  br i1 %already, label %sleep, label %try
try:
  %found = call i32 @bw.tp.pull()
  br label %sleep
sleep:
  %helped = phi i32 [ %pulled, %late ], [ %found, %try ]
  %old = atomicrmw or ptr @bw.tp.gate, i64 1073741824 acq_rel, align 8
  %low = trunc i64 %old to i32
  %value = or i32 %low, 1073741824
  %active = and i32 %value, 1073741823
  %none = icmp eq i32 %active, 0
  br i1 %none, label %over, label %block
block:
  call void @bw.tp.wait_for(ptr @bw.tp.gate, i32 %value, i64 {AGAIN_NS})
  %gate = load atomic i64, ptr @bw.tp.gate acquire, align 8
  %now = and i64 %gate, 1073741823
  %gone = icmp eq i64 %now, 0
  br i1 %gone, label %over, label %late
over:
  %some = icmp ne i32 %helped, 0
  br i1 %some, label %back, label %out
back:
  call void @bw.tp.put_back(i32 %helped)
  br label %out
out:
  ret void
}

; Spins until no thread is joined; returns how many still are when the spin time is over.
define internal i32 @bw.tp.drained() {
entry:
  br label %again
again:
  %w = load atomic i32, ptr @bw.tp.gate acquire, align 4
  %active = and i32 %w, 1073741823
  %none = icmp eq i32 %active, 0
  br i1 %none, label %out, label %poll
poll:
  %seen = call i32 @bw.tp.poll(ptr @bw.tp.gate, i32 1073741823, i32 %active)
  %left = and i32 %seen, 1073741823
  %changed = icmp ne i32 %left, %active
  br i1 %changed, label %again, label %out
out:
  %result = phi i32 [ 0, %again ], [ %left, %poll ]
  ret i32 %result
}
"""
