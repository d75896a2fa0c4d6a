"""The processor quota of this process: the limits of its control groups and their ancestors."""

from __future__ import annotations

from functools import reduce

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import FALSE, NULL, TRUE, Value, int_const
from blockwright.codegen.rt.threadpool_state import MAX_THREADS

_UNLIMITED = int_const(MAX_THREADS)
_LINE_BYTES, _CONTROLLERS_BYTES, _FILE_NAME_BYTES = 512, 128, 600
_CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")

# Formats of sscanf for lines of /proc/self/cgroup, with sizes below those of the buffers.
_LINE_V1, _LINE_V2 = "%*d:%100[^:]:%400[^\n]%n", "0::%400[^\n]%n"

_CPU_MAX_V2 = "/sys/fs/cgroup%s/cpu.max"
_QUOTA_V1, _PERIOD_V1 = (f"/sys/fs/cgroup/cpu%s/cpu.cfs_{what}_us" for what in ("quota", "period"))


@routine("bw.tp.quota", "i64", attributes="noinline")
def quota(e: FunctionEmitter) -> Value:
    """The smallest processor quota, rounded up, of this process's control groups."""
    line = e.stack(_LINE_BYTES, 1)
    controllers, path, end = e.stack(_CONTROLLERS_BYTES, 1), e.stack(_LINE_BYTES, 1), e.stack(4, 4)
    strings = e.module.string
    file = e.call("ptr", "fopen", strings("/proc/self/cgroup"), strings("re"))
    with e.guarded(e.compare("eq", file, NULL)):
        e.ret(_UNLIMITED)
    with e.loop(_UNLIMITED) as loop:
        (best,) = loop.values
        text = e.call("ptr", "fgets", line, int_const(_LINE_BYTES, "i32"), file)
        with e.guarded(e.compare("eq", text, NULL)):
            loop.leave()

        def other_line() -> Value:
            """False for a version 1 group that limits processors; skips other lines."""
            fields = _scan(e, line, _LINE_V1, controllers, path, end)
            with e.guarded(e.compare("slt", fields, 2)):
                loop.again(best)
            differs = [e.call("i32", "strcmp", controllers, strings(c)) for c in _CONTROLLERS]
            product = reduce(lambda a, b: e.binary("mul", a, b), differs)
            with e.guarded(e.compare("ne", product, 0)):
                loop.again(best)
            return FALSE

        is_version_2 = e.compare("sge", _scan(e, line, _LINE_V2, path, end), 1)
        version_2 = e.choose(is_version_2, lambda: TRUE, other_line)
        found = smallest_quota.call(e, path, version_2)
        loop.again(e.intrinsic("smin.i64", "i64", best, found))
    e.call("i32", "fclose", file)
    return best


def _scan(e: FunctionEmitter, line: Value, pattern: str, *to: Value) -> Value:
    return e.call("i32", "sscanf", line, e.module.string(pattern), *to, variadic="ptr, ptr")


@routine("bw.tp.walk", "i64", "ptr", "i1")
def smallest_quota(e: FunctionEmitter, path: Value, version_2: Value) -> Value:
    """The smallest quota of a group and its ancestors; shortens `path` in the process."""
    with e.loop(_UNLIMITED) as loop:
        (before,) = loop.values
        own = group_quota.call(e, path, version_2)
        best = e.intrinsic("smin.i64", "i64", before, own)
        slash = e.call("ptr", "strrchr", path, int_const(ord("/"), "i32"))
        with e.guarded(e.compare("eq", slash, NULL)):
            loop.leave()
        e.store(int_const(0, "i8"), slash, 1)
        loop.again(best)
    return best


@routine("bw.tp.group_quota", "i64", "ptr", "i1")
def group_quota(e: FunctionEmitter, path: Value, version_2: Value) -> Value:
    """The quota of one group, rounded up to whole processors."""
    name, quota, period = e.stack(_FILE_NAME_BYTES, 1), e.stack(8, 8), e.stack(8, 8)
    strings = e.module.string

    def read(file: Value, values: Value, *to: Value) -> Value:
        size = int_const(_FILE_NAME_BYTES)
        e.call("i32", "snprintf", name, size, file, path, variadic="ptr, i64, ptr")
        return numbers.call(e, name, values, *to)

    file = e.select(version_2, strings(_CPU_MAX_V2), strings(_QUOTA_V1))
    values = e.select(version_2, strings("%ld %ld"), strings("%ld"))
    first = read(file, values, quota, period)

    def version_1() -> Value:
        with e.guarded(e.compare("ne", first, 1)):
            e.ret(_UNLIMITED)
        second = read(strings(_PERIOD_V1), strings("%ld"), period, period)
        return e.compare("eq", second, 1)

    known = e.choose(version_2, lambda: e.compare("eq", first, 2), version_1)
    with e.guarded(known):
        q, p = e.load("i64", quota, 8), e.load("i64", period, 8)
        limited = e.binary("and", e.compare("sgt", q, 0), e.compare("sgt", p, 0))
        with e.guarded(limited):
            e.ret(e.binary("sdiv", e.binary("add", q, e.binary("sub", p, 1)), p))
    return _UNLIMITED


@routine("bw.tp.numbers", "i32", "ptr", "ptr", "ptr", "ptr")
def numbers(e: FunctionEmitter, name: Value, pattern: Value, a: Value, b: Value) -> Value:
    """Read up to two numbers from a file; return how many were read."""
    file = e.call("ptr", "fopen", name, e.module.string("re"))
    with e.guarded(e.compare("eq", file, NULL)):
        e.ret(int_const(0, "i32"))
    count = e.call("i32", "fscanf", file, pattern, a, b, variadic="ptr, ptr")
    e.call("i32", "fclose", file)
    return count
