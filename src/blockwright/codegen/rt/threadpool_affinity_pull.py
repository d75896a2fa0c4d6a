"""Migrate a descheduled worker to the waiting caller's processor.

A worker whose processor runs another program keeps its chunk, and all others wait: milliseconds for
work of microseconds. The caller has a processor and is idle, so it moves the worker there and
sleeps. After the region the worker returns to its previous processor and affinity mask.
"""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Global
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.codegen.rt.clock import now
from blockwright.codegen.rt.threadpool_affinity_avoid import (
    fits_mask,
    get_mask,
    mask_word,
    set_mask,
)
from blockwright.codegen.rt.threadpool_state import MASK_BYTES, STARTED, THREADS, spin_hint

_SAVED = Global("bw.tp.saved", "i64", count=MASK_BYTES // 8, align=64)
"""Affinity mask of the worker that was moved."""

_LOG_CLOCK_KINDS, _CPU_TIME_OF_THREAD = 3, 6  # encoding of a thread's clock: ~number << 3 | kind
_OBSERVED_HINTS = 64  # about a microsecond


@routine("bw.tp.ran", "i64", "i32")
def cpu_time(e: FunctionEmitter, number: Value) -> Value:
    """CPU time of a thread in nanoseconds."""
    high = e.binary("shl", e.binary("xor", number, -1), _LOG_CLOCK_KINDS)
    return now.call(e, e.binary("or", high, _CPU_TIME_OF_THREAD))


@routine("bw.tp.stuck", "i1", "i32")
def is_descheduled(e: FunctionEmitter, number: Value) -> Value:
    """Whether a thread used no CPU time during about a microsecond."""
    before = cpu_time.call(e, number)
    with e.loop(int_const(0, "i32")) as loop:
        (hints,) = loop.values
        spin_hint(e)
        following = e.binary("add", hints, 1)
        with e.guarded(e.compare("ne", following, _OBSERVED_HINTS)):
            loop.again(following)
        loop.leave()
    return e.compare("eq", before, cpu_time.call(e, number))


@routine("bw.tp.only", "i64", "i32", "i32")
def restrict(e: FunctionEmitter, number: Value, cpu: Value) -> Value:
    """Restrict a thread to one processor; return 0 on success."""
    mask = e.stack(MASK_BYTES, 8)
    e.fill(mask, 0, MASK_BYTES)
    place, bit = mask_word(e, mask, cpu)
    e.store(e.binary("shl", int_const(1), bit), place, 8)
    return set_mask(e, number, mask)


@routine("bw.tp.pull", "i32", attributes="noinline")
def pull(e: FunctionEmitter) -> Value:
    """Move a joined, descheduled worker to this processor; return its index, or 0.

    The caller must hold the busy flag.
    """
    started = STARTED.load(e)
    here = e.call("i32", "sched_getcpu")
    with e.guarded(fits_mask(e, here)), e.loop(int_const(0, "i32")) as loop:
        (last,) = loop.values
        index = e.binary("add", last, 1)
        with e.guarded(e.compare("sgt", index, started)):
            loop.leave()
        thread = THREADS.record(e, e.convert("zext", index, "i64"))
        with e.guarded(e.compare("eq", thread.load("inside", order="acquire"), 0)):
            loop.again(index)
        number = thread.load("number", order="monotonic")
        with e.guarded(e.negated(is_descheduled.call(e, number))):
            loop.again(index)
        copied = get_mask(e, number, _SAVED.address(e.module))
        with e.guarded(e.compare("sle", copied, 0)):
            loop.again(index)
        place, bit = mask_word(e, thread.load("given_mask"), here)
        bits = e.binary("lshr", e.load("i64", place, 8), bit)
        with e.guarded(e.convert("trunc", bits, "i1")):
            moved = e.compare("eq", restrict.call(e, number, here), 0)
            e.ret(e.select(moved, index, int_const(0, "i32")))
        loop.again(index)
    return int_const(0, "i32")


@routine("bw.tp.put_back", "void", "i32", attributes="noinline")
def put_back(e: FunctionEmitter, index: Value) -> None:
    """Move a worker back to the processor where it joined, and restore its affinity mask."""
    thread = THREADS.record(e, e.convert("zext", index, "i64"))
    number = thread.load("number", order="monotonic")
    cpu = thread.load("cpu", order="monotonic")
    with e.guarded(fits_mask(e, cpu)):
        restrict.call(e, number, cpu)
    set_mask(e, number, _SAVED.address(e.module))
