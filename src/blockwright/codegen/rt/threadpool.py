"""The fork/join thread pool, an LLVM module that is linked into every library.

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

import functools

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import Value
from blockwright.codegen.rt.threadpool_registry import entry_point, initialize
from blockwright.target import Target


@functools.lru_cache(maxsize=8)
def threadpool_ir(target: Target) -> str:
    """The pool as one LLVM module; compile it position-independent and link it into a library."""
    module = ModuleEmitter(target, external="")
    bw_parallel_for.define(module)
    bw_num_threads.define(module)
    module.initializer(initialize.address(module))
    return module.render()


@routine("bw_parallel_for", "i32", "ptr", "ptr", "i64", linkage="")
def bw_parallel_for(e: FunctionEmitter, function: Value, context: Value, tasks: Value) -> Value:
    """Run tasks in the process's pool."""
    return e.call_pointer("i32", entry_point(e, "parallel_for"), function, context, tasks)


@routine("bw_num_threads", "i32", linkage="")
def bw_num_threads(e: FunctionEmitter) -> Value:
    """How many threads a call may use."""
    return e.call_pointer("i32", entry_point(e, "num_threads"))
