"""The fork/join thread pool, as LLVM text that is linked into every library.

`i32 @bw_parallel_for(ptr fn, ptr ctx, i64 num_tasks)` runs tasks 0..num_tasks-1 by calls of
`i32 fn(ptr ctx, i64 begin, i64 end)` and returns the first nonzero result, after which remaining
tasks are skipped; an error raised through the FFI moves to the calling thread.
`i32 @bw_num_threads()` returns how many threads a call may use.

- Each thread owns a contiguous share of the tasks, in up to eight chunks. A thread that has
  finished its share steals chunks of others. The caller takes part, and waits only for threads that
  have joined, so a worker that is not scheduled yet delays nothing. A joined worker that is
  descheduled in favor of another program is migrated to the waiting caller's processor. A worker
  that is about to join on the caller's processor moves to another one first.
- A call with one task, within a parallel region, or while another thread's region is running, runs
  in the calling thread. Calls do not queue: concurrent callers already keep the processors busy.
- Idle threads spin for a bounded time (50 us unless set), then sleep on a futex.
- There is one pool per process. The library loaded first registers its pool with the FFI under a
  versioned name, in its initializer, which the loader runs under its lock. Later libraries use it.
- Threads start at the first parallel call and block signals, so that the main thread gets them. A
  forked child starts its own threads.

The state of a region is one 64-bit word, the gate. Its upper half is the epoch; its lower half is
an open bit, a bit that says the caller sleeps, and the number of joined threads. A thread joins by
a compare-exchange on the open gate, so a late thread never accesses a finished region.
"""

from __future__ import annotations

import msgspec

from blockwright.codegen.rt.threadpool_affinity_avoid import APART_IR
from blockwright.codegen.rt.threadpool_affinity_pull import PULL_IR
from blockwright.codegen.rt.threadpool_core import CORE_IR
from blockwright.codegen.rt.threadpool_limits import LIMITS_IR
from blockwright.codegen.rt.threadpool_setup import SETUP_IR

POOL_NAME = "blockwright.thread_pool.v1"
MAX_THREADS = 512
DEFAULT_SPIN_US = 50
LOOK_AGAIN_US = 500
"""How long a caller sleeps before it checks again for descheduled workers."""


class PoolTarget(msgspec.Struct, frozen=True):
    """The pool's parameters of an architecture: system call numbers and the spin hint."""

    futex: int
    getaffinity: int
    setaffinity: int
    gettid: int
    pause: str
    pause_declaration: str


TARGETS = {
    "x86-64": PoolTarget(
        202,
        204,
        203,
        186,
        "call void @llvm.x86.sse2.pause()",
        "declare void @llvm.x86.sse2.pause()",
    ),
    "aarch64": PoolTarget(
        98,
        123,
        122,
        178,
        "call void @llvm.aarch64.hint(i32 1)",
        "declare void @llvm.aarch64.hint(i32)",
    ),
}


def threadpool_ir(architecture: str = "x86-64") -> str:
    """The pool as one LLVM module; compile it position-independent and link it into a library.

    Arguments: `architecture` is "x86-64" or "aarch64".
    """
    target = TARGETS[architecture]
    text = CORE_IR + APART_IR + PULL_IR + LIMITS_IR + SETUP_IR
    for mark, value in (
        ("{PAUSE}", target.pause),
        ("{PAUSE_DECLARATION}", target.pause_declaration),
        ("{FUTEX}", str(target.futex)),
        ("{GETAFFINITY}", str(target.getaffinity)),
        ("{SETAFFINITY}", str(target.setaffinity)),
        ("{GETTID}", str(target.gettid)),
        ("{MAX_THREADS}", str(MAX_THREADS)),
        ("{SPIN_NS}", str(DEFAULT_SPIN_US * 1000)),
        ("{NAME_SIZE}", str(len(POOL_NAME))),
        ("{NAME}", POOL_NAME),
        ("{AGAIN_NS}", str(LOOK_AGAIN_US * 1000)),
    ):
        text = text.replace(mark, value)
    return text
