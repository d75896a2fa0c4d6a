"""Read a clock of the system in nanoseconds."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.codegen.llvm.values import Value

MONOTONIC, MONOTONIC_COARSE = 1, 6

_TIMESPEC = StructType((Field("seconds", "i64"), Field("nanoseconds", "i64")))


@routine("bw.rt.now", "i64", "i32")
def now(e: FunctionEmitter, clock: Value) -> Value:
    """The time of a clock; 0 if it does not exist, such as the CPU time of a thread that ended."""
    time = timespec(e, 0)
    e.call("i32", "clock_gettime", clock, time)
    read = _TIMESPEC.at(e, time)
    seconds, rest = read.load("seconds"), read.load("nanoseconds")
    return e.binary("add", e.binary("mul", seconds, 1_000_000_000), rest)


def timespec(e: FunctionEmitter, nanoseconds: Value | int) -> Value:
    """The address of a time of less than a second."""
    time = _TIMESPEC.allocate(e)
    time.store("seconds", 0)
    time.store("nanoseconds", nanoseconds)
    return time.address
