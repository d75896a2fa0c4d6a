"""Parallel regions as the calling thread sees them: open one, take part, wait for the workers."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import release
from blockwright.codegen.rt.threadpool_affinity_pull import pull, put_back
from blockwright.codegen.rt.threadpool_limits import num_threads
from blockwright.codegen.rt.threadpool_state import (
    BUSY,
    CALLER_SLEEPS,
    EPOCH,
    GATE,
    JOB,
    JOINED,
    LOOK_AGAIN_US,
    OPEN,
    SLEEPERS,
    STARTED,
    THREADS,
)
from blockwright.codegen.rt.threadpool_wait import poll, wait_for, wake
from blockwright.codegen.rt.threadpool_work import work
from blockwright.codegen.rt.threadpool_worker import start

_NONE = int_const(0, "i32")


@routine("bw.tp.parallel_for", "i32", "ptr", "ptr", "i64")
def parallel_for(e: FunctionEmitter, function: Value, context: Value, tasks: Value) -> Value:
    """Run tasks 0..tasks-1; return the first nonzero result of `function`."""
    with e.guarded(e.compare("sle", tasks, 0)):
        e.ret(_NONE)
    inline = e.fresh("inline")
    several = e.fresh("several")
    e.branch_if(e.compare("eq", tasks, 1), inline, several)
    e.label(several)
    wanted = num_threads.call(e)
    free = e.fresh("free")
    e.branch_if(e.compare("eq", wanted, 1), inline, free)
    e.label(free)
    busy = BUSY.record(e).place("flag")
    _, locked = e.compare_exchange(busy, _NONE, int_const(1, "i32"), "acquire monotonic")
    with e.guarded(locked):
        e.ret(_run_region(e, (function, context, tasks), wanted))
    e.branch(inline)
    e.label(inline)
    return e.call_pointer("i32", function, context, int_const(0), tasks)


def _run_region(e: FunctionEmitter, call: tuple[Value, Value, Value], wanted: Value) -> Value:
    """Run a region with up to `wanted` threads; the caller must hold the busy flag."""
    threads = e.binary("add", STARTED.load(e), 1)
    enough = e.compare("sge", threads, wanted)
    available = e.choose(enough, lambda: wanted, lambda: start.call(e, wanted))
    shares = e.intrinsic("umin.i64", "i64", e.convert("zext", available, "i64"), call[2])
    publish.call(e, *call, shares)
    work.call(e, 0)
    old = e.update("sub", GATE.address(e.module), int_const(OPEN), "acq_rel")
    with e.guarded(e.compare("ne", e.binary("and", old, JOINED), 0)):
        join.call(e)
    job = JOB.record(e)
    status, error = job.load("status"), job.load("error")
    BUSY.record(e).store("flag", 0, order="release")
    with e.guarded(e.compare("ne", error, NULL)):
        e.call("void", "TVMFFIErrorSetRaised", error)
        release(e, error)
    return status


@routine("bw.tp.publish", "void", "ptr", "ptr", "i64", "i64")
def publish(
    e: FunctionEmitter, function: Value, context: Value, tasks: Value, shares: Value
) -> None:
    """Write the region, open the gate with a new epoch, and wake sleeping workers."""
    share = e.binary("udiv", tasks, shares)
    longer = e.binary("sub", tasks, e.binary("mul", share, shares))
    count = e.convert("trunc", shares, "i32")
    with e.loop(int_const(0)) as loop:
        (index,) = loop.values
        THREADS.record(e, index).store("chunks", 0)
        following = e.binary("add", index, 1)
        with e.guarded(e.compare("ne", following, shares)):
            loop.again(following)
        loop.leave()
    job = JOB.record(e)
    for name, value in (
        ("function", function),
        ("context", context),
        ("share", share),
        ("longer_shares", longer),
        ("shares", count),
        ("status", 0),
        ("error", NULL),
    ):
        job.store(name, value)
    job.store("caller_cpu", e.call("i32", "sched_getcpu"), order="monotonic")
    gate = GATE.address(e.module)
    seen = e.load("i64", gate, 8, order="monotonic")
    epoch = e.binary("and", e.binary("add", seen, EPOCH), -EPOCH)
    e.update("xchg", gate, e.binary("or", epoch, OPEN), "seq_cst")
    sleepers = SLEEPERS.record(e).load("count", order="seq_cst")
    with e.guarded(e.compare("ne", sleepers, 0)):
        wake.call(e, GATE.record(e).place("epoch"), e.binary("add", count, -1))


@routine("bw.tp.join", "void", attributes="noinline")
def join(e: FunctionEmitter) -> None:
    """Wait until all joined threads have left: spin for the bounded time, then sleep.

    Before it sleeps, and each time it looks again, the caller migrates one descheduled worker to
    its processor.
    """
    with e.guarded(e.compare("eq", spin_until_left.call(e), 0)):
        e.ret()
    gate = GATE.address(e.module)
    with e.loop(_NONE) as loop:
        (moved,) = loop.values
        nobody = e.compare("eq", moved, 0)
        helper = e.choose(nobody, lambda: pull.call(e), lambda: moved)
        old = e.update("or", gate, int_const(CALLER_SLEEPS), "acq_rel")
        state = e.binary("or", e.convert("trunc", old, "i32"), CALLER_SLEEPS)
        with e.guarded(e.compare("eq", e.binary("and", state, JOINED), 0)):
            loop.leave()
        wait_for.call(e, gate, state, LOOK_AGAIN_US * 1000)
        seen = e.load("i64", gate, 8, order="acquire")
        with e.guarded(e.compare("eq", e.binary("and", seen, JOINED), 0)):
            loop.leave()
        loop.again(helper)
    with e.guarded(e.compare("ne", helper, 0)):
        put_back.call(e, helper)


@routine("bw.tp.drained", "i32")
def spin_until_left(e: FunctionEmitter) -> None:
    """Spin until no thread is joined; return how many still are when the spin time is over."""
    gate = GATE.record(e).place("state")
    with e.loop() as loop:
        joined = e.binary("and", e.load("i32", gate, 4, order="acquire"), JOINED)
        with e.guarded(e.compare("eq", joined, 0)):
            e.ret(_NONE)
        left = e.binary("and", poll.call(e, gate, JOINED, joined), JOINED)
        with e.guarded(e.compare("eq", left, joined)):
            e.ret(left)
        loop.again()
