"""The default thread count, as LLVM text: environment, processor affinity, control-group quota.

`blockwright.runtime.threads` implements the same rule for processes without a loaded library.
"""

from __future__ import annotations

LIMITS_IR = r"""
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

; The thread count: the setting, else the environment, else processors within the quota.
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

; The smallest processor quota (rounded up) of this process's control groups and their ancestors.
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

; The smallest quota of a group and its ancestors; shortens %path in the process.
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

; Reads up to two numbers from a file; returns how many were read.
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
"""
