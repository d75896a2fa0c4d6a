"""Functions that all compiled functions of a library share: results, errors, clock, signals."""

from __future__ import annotations

import functools

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.codegen.rt.clock import MONOTONIC, MONOTONIC_COARSE, now
from blockwright.codegen.rt.ffi_calls import bw_raise, global_function, release
from blockwright.codegen.rt.memory_count import (
    bw_memory_given,
    bw_memory_taken,
    bw_memory_watch,
)
from blockwright.codegen.rt.result_allocator import bw_results_idle, bw_tensor_alloc
from blockwright.target import Target

_POLL_NS = 50_000_000

_SUCCESS = int_const(0, "i32")


@functools.lru_cache(maxsize=8)
def runtime_ir(target: Target) -> str:
    """A module of functions in C's calling convention, one copy per library.

    - `i32 @bw_tensor_alloc(ptr shape, i32 ndim, i32 dtype, ptr out)`: allocates a row-major tensor
      in host memory with data aligned to 64 bytes, owned by the FFI object written to `out`.
      Returns 0, or raises BW720 (kind MemoryError) and returns -1. Elements are uninitialized. The
      most recently released tensor of 4 MiB or more is cached for the next one of its size.
    - `void @bw_return_tensor(ptr result, ptr object)`: returns a tensor object to the caller.
    - `i32 @bw_return_tuple(ptr result, ptr values, i32 count)`: returns an array of packed values;
      the array holds its own references, and those in `values` are released.
    - `i32 @bw_raise(ptr kind, ptr message)`: raises and returns -1.
    - `void @bw_results_idle(i32 idle)`, exported: while it is 1, no result memory is cached
      (`blockwright.runtime.reclaim`).
    - `void @bw_memory_taken(i64 bytes)`, `void @bw_memory_given(i64 bytes)`, and exported
      `void @bw_memory_watch(ptr record)`: see `memory_count`.
    - `i64 @bw_clock()`: monotonic clock in nanoseconds.
    - `i32 @bw_poll(ptr due)`: lets the caller's signal handlers run between the kernels of a long
      call. `due` is initially 0. Returns 0, or -1 when a handler raised; that exception stays in
      the caller's interpreter, and the raised error kind refers to it.
    """
    module = ModuleEmitter(target, external="")
    for function in (bw_clock, bw_poll, bw_raise, bw_return_tensor, bw_return_tuple):
        function.define(module)
    bw_tensor_alloc.define(module)
    bw_results_idle.define(module)
    for function in (bw_memory_taken, bw_memory_given, bw_memory_watch):
        function.define(module)
    return module.render()


@routine("bw_clock", "i64", linkage="hidden")
def bw_clock(e: FunctionEmitter) -> Value:
    """Monotonic clock in nanoseconds."""
    return now.call(e, MONOTONIC)


@routine("bw_poll", "i32", "ptr", linkage="hidden")
def bw_poll(e: FunctionEmitter, due: Value) -> Value:
    """Run the interpreter's signal handlers if that is due; return -1 if one raised.

    A check takes the interpreter lock, which another thread may hold for milliseconds. It is done
    once per 50 ms by the coarse clock, which takes a few nanoseconds to read.
    """
    time, when = now.call(e, MONOTONIC_COARSE), e.load("i64", due, 8)
    with e.guarded(e.compare("slt", time, when)):
        e.ret(_SUCCESS)
    e.store(e.binary("add", time, _POLL_NS), due, 8)
    with e.guarded(e.compare("eq", when, 0)):
        e.ret(_SUCCESS)
    status = e.call("i32", "TVMFFIEnvCheckSignals")
    with e.guarded(e.compare("eq", status, 0)):
        e.ret(_SUCCESS)
    strings = (e.module.string(t) for t in ("EnvErrorAlreadySet", "a signal handler raised"))
    return bw_raise.call(e, *strings)


@routine("bw_return_tensor", "void", "ptr", "ptr", linkage="hidden")
def bw_return_tensor(e: FunctionEmitter, result: Value, item: Value) -> None:
    """Return a tensor object to the caller."""
    answer = ffi.ANY.at(e, result)
    answer.store("type", int_const(ffi.TENSOR))
    answer.store("value", item)


@routine("bw_return_tuple", "i32", "ptr", "ptr", "i32", linkage="hidden")
def bw_return_tuple(e: FunctionEmitter, result: Value, values: Value, count: Value) -> Value:
    """Return an array of packed values, and release the references that they hold."""
    create = global_function(e, "ffi.Array")
    status = e.call("i32", "TVMFFIFunctionCall", create, values, count, result)
    release(e, create)
    end = e.convert("zext", count, "i64")
    with e.loop(int_const(0)) as loop:
        (index,) = loop.values
        with e.guarded(e.compare("uge", index, end)):
            loop.leave()
        value = ffi.ANY.at(e, e.offset(values, index, ffi.ANY.size))
        with e.guarded(e.compare("sge", value.load("type"), ffi.FIRST_OBJECT)):
            release(e, value.load("value", type_="ptr"))
        loop.again(e.binary("add", index, 1))
    return status
