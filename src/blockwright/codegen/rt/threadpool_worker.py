"""The worker threads of the pool: start them, and their main loop."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.threadpool_affinity_avoid import copy_mask, leave, read_mask
from blockwright.codegen.rt.threadpool_state import (
    CALLER_SLEEPS,
    EPOCH,
    GATE,
    JOB,
    JOINED,
    LIMIT,
    MASK_BYTES,
    OPEN,
    SLEEPERS,
    STARTED,
    THREADS,
    system_call,
)
from blockwright.codegen.rt.threadpool_wait import poll, wait, wake
from blockwright.codegen.rt.threadpool_work import work

_SIG_SETMASK = int_const(2, "i32")
_SYNCHRONOUS = (4, 5, 6, 7, 8, 11)
"""Signals that a thread raises itself: ILL, TRAP, ABRT, BUS, FPE, SEGV."""


@routine("bw.tp.start", "i32", "i32", attributes="noinline")
def start(e: FunctionEmitter, wanted: Value) -> Value:
    """Start threads until `wanted` (including the caller) exist; return how many do.

    The caller must hold the busy flag. If the system cannot create more threads, the pool keeps
    those it has.
    """
    blocked, saved, handle = (e.stack(n, 8) for n in (MASK_BYTES, MASK_BYTES, 8))
    e.fill(blocked, -1, MASK_BYTES)
    signals = -1 - sum(1 << number - 1 for number in _SYNCHRONOUS)
    e.store(int_const(signals), blocked, 8)
    e.call("i32", "pthread_sigmask", _SIG_SETMASK, blocked, saved)
    gate = e.load("i64", GATE.address(e.module), 8, order="monotonic")
    epoch = e.binary("and", gate, -EPOCH)
    with e.loop(STARTED.load(e)) as loop:
        (started,) = loop.values
        index = e.binary("add", started, 1)
        with e.guarded(e.compare("sge", index, wanted)):
            loop.leave()
        bits = e.binary("or", epoch, e.convert("zext", index, "i64"))
        argument = e.convert("inttoptr", bits, "ptr")
        main = worker.address(e.module)
        status = e.call("i32", "pthread_create", handle, NULL, main, argument)
        with e.guarded(e.compare("ne", status, 0)):
            LIMIT.record(e).store("threads", index, order="release")
            loop.leave()
        e.call("i32", "pthread_detach", e.load("i64", handle, 8))
        STARTED.store(e, index)
        loop.again(index)
    e.call("i32", "pthread_sigmask", _SIG_SETMASK, saved, NULL)
    return index


@routine("bw.tp.worker", "ptr", "ptr")
def worker(e: FunctionEmitter, argument: Value) -> None:
    """Main loop of a worker; `argument` holds the epoch of its creation (upper half) and index."""
    bits = e.convert("ptrtoint", argument, "i64")
    thread = e.binary("and", bits, (1 << 32) - 1)
    index = e.convert("trunc", thread, "i32")
    birth = e.convert("trunc", e.binary("lshr", bits, 32), "i32")
    name = e.module.string("bw-worker")
    e.call("i32", "pthread_setname_np", e.call("i64", "pthread_self"), name)
    own = THREADS.record(e, thread)
    given, chosen = (e.stack(MASK_BYTES, 64) for _ in range(2))
    read_mask.call(e, given)
    copy_mask(e, chosen, given)
    own.store("given_mask", given)
    number = e.convert("trunc", system_call(e, "gettid"), "i32")
    own.store("number", number, order="monotonic")
    limit = LIMIT.record(e)
    with e.loop(birth) as loop:
        (seen,) = loop.values
        threads = limit.load("threads", order="acquire")
        with e.guarded(e.compare("sge", index, threads)):
            wait.call(e, limit.place("threads"), threads)
            loop.again(seen)
        word = GATE.record(e).place("epoch")
        with e.guarded(e.compare("eq", poll.call(e, word, -1, seen), seen)):
            count = SLEEPERS.record(e).place("count")
            e.update("add", count, int_const(1, "i32"), "seq_cst")
            wait.call(e, word, seen)
            e.update("sub", count, int_const(1, "i32"), "seq_cst")
            loop.again(seen)
        loop.again(_join(e, thread, index, (given, chosen)))


def _join(e: FunctionEmitter, thread: Value, index: Value, masks: tuple[Value, Value]) -> Value:
    """Take part in the current region if it is open and needs this thread; return its epoch."""
    gate = GATE.address(e.module)
    with e.loop() as loop:
        seen = e.load("i64", gate, 8, order="monotonic")
        epoch = e.convert("trunc", e.binary("lshr", seen, 32), "i32")
        is_open = e.compare("ne", e.binary("and", seen, OPEN), 0)
        allowed = LIMIT.record(e).load("threads", order="monotonic")
        needed = e.compare("slt", index, allowed)
        with e.guarded(e.negated(e.binary("and", is_open, needed))):
            loop.leave()
        here = e.call("i32", "sched_getcpu")
        caller = JOB.record(e).load("caller_cpu", order="monotonic")
        with e.guarded(e.compare("eq", here, caller)), e.guarded(leave.call(e, here, *masks)):
            loop.again()
        joined = e.binary("add", seen, 1)
        _, success = e.compare_exchange(gate, seen, joined, "acq_rel monotonic")
        with e.guarded(success):
            _run_region(e, thread)
            loop.leave()
        loop.again()
    return epoch


def _run_region(e: FunctionEmitter, thread: Value) -> None:
    """Work on the region that this thread has joined, then leave it; the last one wakes the
    caller."""
    own = THREADS.record(e, thread)
    own.store("cpu", e.call("i32", "sched_getcpu"), order="monotonic")
    own.store("inside", 1, order="release")
    work.call(e, thread)
    own.store("inside", 0, order="release")
    gate = GATE.address(e.module)
    old = e.update("sub", gate, int_const(1), "acq_rel")
    state = e.binary("and", old, CALLER_SLEEPS | JOINED)
    with e.guarded(e.compare("eq", state, CALLER_SLEEPS + 1)):
        wake.call(e, gate, 1)
