"""The thread count of the pool: the setting, else the environment, else the processors that this
process may use.

`blockwright.runtime.threads` implements the same rule for processes without a loaded library.
"""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.threadpool_quota import quota
from blockwright.codegen.rt.threadpool_state import LIMIT, MAX_THREADS, system_call

_CPUS_BYTES = 1024  # an affinity mask of 8192 processors


@routine("bw.tp.num_threads", "i32")
def num_threads(e: FunctionEmitter) -> Value:
    """How many threads a call may use; determines the default when first called."""
    limit = LIMIT.record(e)
    known = limit.load("threads", order="monotonic")
    with e.guarded(e.compare("sgt", known, 0)):
        e.ret(known)
    default, none = default_threads.call(e), int_const(0, "i32")
    old, ours = e.compare_exchange(limit.place("threads"), none, default, "acq_rel acquire")
    return e.select(ours, default, old)


@routine("bw.tp.default_threads", "i32", attributes="noinline")
def default_threads(e: FunctionEmitter) -> Value:
    """The environment's thread count if valid, else the processors within the quota."""
    end, cpus = e.stack(8, 8), e.stack(_CPUS_BYTES, 8)
    text = e.call("ptr", "getenv", e.module.string("BLOCKWRIGHT_NUM_THREADS"))
    with e.guarded(e.compare("ne", text, NULL)):
        value = e.call("i64", "strtol", text, end, int_const(10, "i32"))
        rest = e.load("i8", e.load("ptr", end, 8), 1)
        whole = e.compare("eq", rest, 0)
        low, high = e.compare("sge", value, 1), e.compare("sle", value, MAX_THREADS)
        with e.guarded(e.binary("and", whole, e.binary("and", low, high))):
            e.ret(e.convert("trunc", value, "i32"))
    size = system_call(e, "sched_getaffinity", int_const(0), int_const(_CPUS_BYTES), cpus)
    known = e.compare("sgt", size, 0)
    available = e.choose(known, lambda: _bit_count(e, cpus, size), lambda: int_const(1))
    smallest = e.intrinsic("smin.i64", "i64", available, quota.call(e))
    capped = e.intrinsic("smin.i64", "i64", smallest, int_const(MAX_THREADS))
    result = e.intrinsic("smax.i64", "i64", capped, int_const(1))
    return e.convert("trunc", result, "i32")


def _bit_count(e: FunctionEmitter, words: Value, size: Value) -> Value:
    """The number of bits that are set in `size` bytes of 64-bit words."""
    with e.loop(int_const(0), int_const(0)) as loop:
        offset, before = loop.values
        word = e.load("i64", e.offset(words, offset), 8)
        total = e.binary("add", before, e.intrinsic("ctpop.i64", "i64", word))
        following = e.binary("add", offset, 8)
        with e.guarded(e.compare("slt", following, size)):
            loop.again(following, total)
        loop.leave()
    return total
