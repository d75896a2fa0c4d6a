"""Work sharing in the thread pool: each thread runs its share in chunks, then steals others'."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import release, take_error
from blockwright.codegen.rt.threadpool_state import JOB, THREADS

_LOG_CHUNKS = 3  # a share has up to eight chunks


@routine("bw.tp.work", "void", "i64")
def work(e: FunctionEmitter, thread: Value) -> None:
    """Run chunks: first those of this thread's own share, then the remaining ones of others."""
    job = JOB.record(e)
    task = job.load("function"), job.load("context")
    share, longer = job.load("share"), job.load("longer_shares")
    shares = e.convert("zext", job.load("shares"), "i64")
    home = e.select(e.compare("ult", thread, shares), thread, int_const(0))
    with e.loop(int_const(0)) as loop:
        (distance,) = loop.values
        unwrapped = e.binary("add", home, distance)
        wrapped = e.binary("sub", unwrapped, shares)
        owner = e.select(e.compare("uge", unwrapped, shares), wrapped, unwrapped)
        before = e.intrinsic("umin.i64", "i64", owner, longer)
        first = e.binary("add", e.binary("mul", owner, share), before)
        one_more = e.convert("zext", e.compare("ult", owner, longer), "i64")
        _run_share(e, task, owner, first, e.binary("add", share, one_more))
        following = e.binary("add", distance, 1)
        with e.guarded(e.compare("ne", following, shares)):
            loop.again(following)
        loop.leave()


def _run_share(
    e: FunctionEmitter, task: tuple[Value, Value], owner: Value, first: Value, size: Value
) -> None:
    """Run the remaining chunks of a thread's share, tasks [first, first + size).

    Returns from the function when a task fails or has failed.
    """
    function, context = task
    chunk = e.binary("lshr", e.binary("add", size, (1 << _LOG_CHUNKS) - 1), _LOG_CHUNKS)
    taken = THREADS.record(e, owner).place("chunks")
    with e.loop() as loop:
        seen = e.load("i64", taken, 8, order="monotonic")
        with e.guarded(e.compare("uge", e.binary("mul", seen, chunk), size)):
            loop.leave()
        status = JOB.record(e).load("status", order="monotonic")
        with e.guarded(e.compare("ne", status, 0)):
            e.ret()
        mine = e.update("add", taken, int_const(1), "monotonic")
        begin = e.binary("mul", mine, chunk)
        with e.guarded(e.compare("uge", begin, size)):
            loop.leave()
        end = e.intrinsic("umin.i64", "i64", e.binary("add", begin, chunk), size)
        low, high = (e.binary("add", first, x) for x in (begin, end))
        status = e.call_pointer("i32", function, context, low, high)
        with e.guarded(e.compare("ne", status, 0)):
            fail.call(e, status)
            e.ret()
        loop.again()


@routine("bw.tp.fail", "void", "i32", attributes="noinline")
def fail(e: FunctionEmitter, status: Value) -> None:
    """Record the first failure of a region and take its error object from this thread."""
    error = take_error(e)
    job = JOB.record(e)
    none = int_const(0, "i32")
    _, first = e.compare_exchange(job.place("status"), none, status, "acq_rel monotonic")
    with e.guarded(first):
        job.store("error", error)
        e.ret()
    with e.guarded(e.compare("ne", error, NULL)):
        release(e, error)
