"""Waiting in the thread pool: spin for a bounded time, sleep on a futex, wake sleepers."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.clock import MONOTONIC, now, timespec
from blockwright.codegen.rt.threadpool_state import SPIN_NS, spin_hint, system_call

_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = int_const(128), int_const(129)
_HINTS_PER_CLOCK = 64


@routine("bw.tp.wait", "void", "ptr", "i32")
def wait(e: FunctionEmitter, word: Value, value: Value) -> None:
    """Sleep on a futex until woken; return at once if the word does not hold `value`."""
    system_call(e, "futex", word, _FUTEX_WAIT_PRIVATE, value, NULL)


@routine("bw.tp.wait_for", "void", "ptr", "i32", "i64")
def wait_for(e: FunctionEmitter, word: Value, value: Value, ns: Value) -> None:
    """Sleep as in `wait`, for at most `ns` nanoseconds."""
    system_call(e, "futex", word, _FUTEX_WAIT_PRIVATE, value, timespec(e, ns))


@routine("bw.tp.wake", "void", "ptr", "i32", attributes="noinline")
def wake(e: FunctionEmitter, word: Value, count: Value) -> None:
    """Wake up to `count` threads that sleep on a futex."""
    system_call(e, "futex", word, _FUTEX_WAKE_PRIVATE, count)


@routine("bw.tp.poll", "i32", "ptr", "i32", "i32")
def poll(e: FunctionEmitter, word: Value, mask: Value, value: Value) -> None:
    """Spin until (*word & mask) != value or the spin time is over; return the last word read.

    The clock is read once per 64 hints, so that a change is seen within a few nanoseconds.
    """
    limit = SPIN_NS.load(e, order="monotonic")
    no_time = e.compare("eq", limit, 0)
    with e.loop(int_const(0, "i32"), int_const(0)) as loop:
        hints, deadline = loop.values
        seen = e.load("i32", word, 4, order="acquire")
        changed = e.compare("ne", e.binary("and", seen, mask), value)
        with e.guarded(e.binary("or", changed, no_time)):
            e.ret(seen)
        with e.guarded(e.compare("ne", hints, _HINTS_PER_CLOCK)):
            spin_hint(e)
            loop.again(e.binary("add", hints, 1), deadline)
        time = now.call(e, MONOTONIC)
        first = e.compare("eq", deadline, 0)
        end = e.select(first, e.binary("add", time, limit), deadline)
        with e.guarded(e.compare("sgt", time, end)):
            e.ret(seen)
        loop.again(int_const(0, "i32"), end)
