"""The thread pool's parameters, and the memory that its threads share.

Data that different threads write are in separate pairs of cache lines, because processors prefetch
lines in pairs.
"""

from __future__ import annotations

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.structs import Field, Global, StructType
from blockwright.codegen.llvm.values import Value, int_const

POOL_NAME = "blockwright.thread_pool.v1"
MAX_THREADS = 512
DEFAULT_SPIN_US = 50
LOOK_AGAIN_US = 500
"""How long a caller sleeps before it checks again for descheduled workers."""

_LINE = 64
_LINES = 2 * _LINE

# The gate as one 64-bit word: the epoch counts in units of EPOCH.
JOINED = (1 << 30) - 1
CALLER_SLEEPS = 1 << 30
OPEN = 1 << 31
EPOCH = 1 << 32

MASK_BYTES = 128
"""Size of an affinity mask: a bit for each of 1024 processors, in 64-bit words."""

GATE = Global(
    "bw.tp.gate",
    StructType(
        (
            Field("state", "i32", "OPEN, CALLER_SLEEPS and the number of joined threads"),
            Field("epoch", "i32", "number of regions so far"),
        ),
        align=_LINES,
    ),
)
"""Decides who may join the current region. Read and written as one word, and by its halves."""

JOB = Global(
    "bw.tp.job",
    StructType(
        (
            Field("function", "ptr", "i32 (ptr context, i64 begin, i64 end)"),
            Field("context", "ptr"),
            Field("share", "i64", "tasks per share"),
            Field("longer_shares", "i64", "number of shares with one more task"),
            Field("shares", "i32"),
            Field("status", "i32", "first failure; 0 if none"),
            Field("error", "ptr", "error object of the first failure"),
            Field("caller_cpu", "i32", "processor of the caller"),
        ),
        align=_LINES,
    ),
)
"""The current region."""

THREADS = Global(
    "bw.tp.next",
    StructType(
        (
            Field("chunks", "i64", "chunks taken from the thread's share"),
            Field("number", "i32", "the system's thread ID; of workers only, as all that follows"),
            Field("cpu", "i32", "processor where the thread joined"),
            Field("inside", "i32", "1 while the thread has joined"),
            Field("given_mask", "ptr", "affinity mask that the thread was given"),
        ),
        align=_LINE,
    ),
    count=MAX_THREADS,
    align=_LINES,
)
"""State by thread; thread 0 is the caller."""

SLEEPERS = Global("bw.tp.sleepers", StructType((Field("count", "i32"),), align=_LINES))
"""Number of workers that wait for the next epoch."""

BUSY = Global("bw.tp.busy", StructType((Field("flag", "i32"),), align=_LINES))
"""1 while a thread's region is running."""

LIMIT = Global("bw.tp.threads", StructType((Field("threads", "i32"),), align=_LINES))
"""How many threads a call may use; 0 until it is first needed."""

STARTED = Global("bw.tp.started", "i32", initial=0)
"""Number of workers; written by the thread that holds the busy flag."""

SPIN_NS = Global("bw.tp.spin", "i64", initial=DEFAULT_SPIN_US * 1000)

POOL_TABLE = StructType(
    (
        Field("version", "ptr", "1, as an address"),
        Field("parallel_for", "ptr"),
        Field("num_threads", "ptr"),
    )
)
"""Entry points of a pool; libraries of one process exchange a pointer to this struct."""


class SystemCalls(msgspec.Struct, frozen=True):
    """System call numbers of an architecture."""

    futex: int
    sched_getaffinity: int
    sched_setaffinity: int
    gettid: int


SYSTEM_CALLS = {
    "x86_64": SystemCalls(202, 204, 203, 186),
    "aarch64": SystemCalls(98, 123, 122, 178),
}


def system_call(e: FunctionEmitter, name: str, *args: Value) -> Value:
    """Call the system; the result is -1 on failure."""
    number: int = getattr(SYSTEM_CALLS[e.module.target.arch], name)
    return e.call("i64", "syscall", int_const(number), *args, variadic="i64")


def spin_hint(e: FunctionEmitter) -> None:
    """Tell the processor that this thread is spinning."""
    if e.module.target.arch == "aarch64":
        e.intrinsic("aarch64.hint", "void", int_const(1, "i32"))
    else:
        e.intrinsic("x86.sse2.pause", "void")
