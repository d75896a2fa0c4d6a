"""Registration of the pool with the FFI: one pool per process, and the functions that set it.

The library that is loaded first registers its pool. Later libraries use that one.
"""

from __future__ import annotations

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import Routine, routine
from blockwright.codegen.llvm.structs import Global
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import (
    FAILURE,
    byte_array,
    global_function,
    raise_text,
    release,
    take_error,
)
from blockwright.codegen.rt.threadpool_limits import default_threads, num_threads
from blockwright.codegen.rt.threadpool_region import parallel_for
from blockwright.codegen.rt.threadpool_state import (
    BUSY,
    GATE,
    LIMIT,
    MAX_THREADS,
    POOL_NAME,
    POOL_TABLE,
    SLEEPERS,
    SPIN_NS,
    STARTED,
)
from blockwright.codegen.rt.threadpool_wait import wake

_SUCCESS = int_const(0, "i32")
_ALL = (1 << 31) - 1
_MAX_SPIN_US = 1_000_000

_PACKED = ("i32", "ptr", "ptr", "i32", "ptr")
"""Signature of a packed function: (self, arguments, their number, result) → status."""


def own_table(module: ModuleEmitter) -> Value:
    """The constant `POOL_TABLE` of this library's pool."""
    entries = (parallel_for.address(module), num_threads.address(module))
    assert [f.name for f in POOL_TABLE.fields[1:]] == ["parallel_for", "num_threads"]
    values = ", ".join(["ptr inttoptr (i64 1 to ptr)", *(entry.typed for entry in entries)])
    count = len(POOL_TABLE.fields)
    module.add_global_once(
        "@bw.tp.table", f"@bw.tp.table = internal constant [{count} x ptr] [{values}], align 8"
    )
    return Value("ptr", "@bw.tp.table")


def current_table(module: ModuleEmitter) -> Global:
    """The variable that points to the table of the pool in use; at first, this library's."""
    return Global("bw.tp.current", "ptr", initial=own_table(module).text)


def entry_point(e: FunctionEmitter, name: str) -> Value:
    """An entry point of the pool in use."""
    table = current_table(e.module).load(e, order="monotonic")
    return POOL_TABLE.at(e, table).load(name)


@routine("bw.tp.init", "void")
def initialize(e: FunctionEmitter) -> None:
    """Find the process's pool when the library is loaded; register this library's if none is."""
    there = find.call(e)
    with e.guarded(e.compare("eq", there, NULL)):
        status = _register(e, POOL_NAME, get_table)
        with e.guarded(e.compare("eq", status, 0)):
            _register(e, "blockwright.set_num_threads", set_num_threads)
            _register(e, "blockwright.num_threads", get_num_threads)
            _register(e, "blockwright.set_spin_us", set_spin_us)
            child = reset_child.address(e.module)
            e.call("i32", "__register_atfork", NULL, NULL, child, NULL)
            e.ret()
        winner = find.call(e)
        with e.guarded(e.compare("ne", winner, NULL)):
            current_table(e.module).store(e, winner, order="release")
        e.ret()
    current_table(e.module).store(e, there, order="release")


@routine("bw.tp.child", "void")
def reset_child(e: FunctionEmitter) -> None:
    """Forget the workers and any open region: after fork, the child has only the calling thread."""
    e.store(int_const(0), GATE.address(e.module), 8, order="monotonic")
    SLEEPERS.record(e).store("count", 0, order="monotonic")
    STARTED.store(e, 0)
    BUSY.record(e).store("flag", 0, order="release")


def _register(e: FunctionEmitter, name: str, function: Routine) -> Value:
    """Register a packed function under a global name; see `register`."""
    size = len(name.encode())
    return register.call(e, e.module.string(name), size, function.address(e.module))


@routine("bw.tp.register", "i32", "ptr", "i64", "ptr")
def register(e: FunctionEmitter, name: Value, size: Value, call: Value) -> Value:
    """Register a global function unless the name is taken; return 0 on success."""
    key, slot = byte_array(e, name, size), e.stack(8, 8)
    status = e.call("i32", "TVMFFIFunctionCreate", NULL, call, NULL, slot)
    with e.guarded(e.compare("eq", status, 0)):
        function = e.load("ptr", slot, 8)
        status = e.call("i32", "TVMFFIFunctionSetGlobal", key, function, int_const(0, "i32"))
        release(e, function)
        with e.guarded(e.compare("eq", status, 0)):
            e.ret(_SUCCESS)
    error = take_error(e)
    with e.guarded(e.compare("ne", error, NULL)):
        release(e, error)
    return FAILURE


@routine("bw.tp.find", "ptr")
def find(e: FunctionEmitter) -> Value:
    """The table of the registered pool; null when no pool is registered."""
    result = ffi.ANY.allocate(e)
    result.store("type", int_const(ffi.NONE))
    result.store("value", NULL)
    function = global_function(e, POOL_NAME)
    with e.guarded(e.compare("ne", function, NULL)):
        e.call("i32", "TVMFFIFunctionCall", function, NULL, int_const(0, "i32"), result.address)
        release(e, function)
    return result.load("value", type_="ptr")


@routine("bw.tp.f_table", *_PACKED)
def get_table(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
    """The packed function `POOL_NAME`: returns the table of this library's pool."""
    answer = ffi.ANY.at(e, result)
    answer.store("type", ffi.OPAQUE_PTR)
    answer.store("value", own_table(e.module))
    return _SUCCESS


@routine("bw.tp.f_get", *_PACKED)
def get_num_threads(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
    """The packed function `blockwright.num_threads`."""
    answer = ffi.ANY.at(e, result)
    threads = e.convert("zext", num_threads.call(e), "i64")
    answer.store("type", ffi.INT)
    answer.store("value", threads)
    return _SUCCESS


@routine("bw.tp.argument", "i64", "ptr", "i32", "i64")
def argument(e: FunctionEmitter, args: Value, n: Value, limit: Value) -> Value:
    """The only argument if it is an integer from 0 to `limit`, else -1."""
    only = ffi.ANY.at(e, args)
    with e.guarded(e.compare("eq", n, 1)), e.guarded(e.compare("eq", only.load("type"), ffi.INT)):
        value = only.load("value")
        with e.guarded(e.compare("ule", value, limit)):
            e.ret(value)
    return int_const(-1)


def _integer_argument(e: FunctionEmitter, args: Value, n: Value, limit: int, rule: str) -> Value:
    """The only argument, an integer from 0 to `limit`; otherwise the function raises BW710."""
    value = argument.call(e, args, n, limit)
    with e.guarded(e.compare("slt", value, 0)):
        raise_text(e, "ValueError", f"BW710: {rule}")
        e.ret(FAILURE)
    return value


@routine("bw.tp.f_set", *_PACKED)
def set_num_threads(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
    """The packed function `blockwright.set_num_threads`; 0 sets the default."""
    rule = f"set_num_threads expects one integer between 0 (automatic) and {MAX_THREADS}"
    value = _integer_argument(e, args, n, MAX_THREADS, rule)
    threads = e.choose(
        e.compare("eq", value, 0),
        lambda: default_threads.call(e),
        lambda: e.convert("trunc", value, "i32"),
    )
    limit = LIMIT.record(e)
    limit.store("threads", threads, order="seq_cst")
    wake.call(e, limit.place("threads"), _ALL)
    return _SUCCESS


@routine("bw.tp.f_spin", *_PACKED)
def set_spin_us(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
    """The packed function `blockwright.set_spin_us`: sets how long idle threads spin."""
    rule = f"set_spin_us expects one integer, microseconds between 0 and {_MAX_SPIN_US}"
    value = _integer_argument(e, args, n, _MAX_SPIN_US, rule)
    SPIN_NS.store(e, e.binary("mul", value, 1000), order="monotonic")
    return _SUCCESS
