"""Emit statements as LLVM code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from blockwright.codegen.byte_sizes import byte_size
from blockwright.codegen.llvm import (
    access,
    ffi,
    integers,
    nontemporal,
    nontemporal_unaligned,
    scratch_plan,
    tiles,
)
from blockwright.codegen.llvm.context import FunctionContext, Memory
from blockwright.codegen.llvm.emitter import LoopTargets
from blockwright.codegen.llvm.expr import ExprEmitter
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    LetStmt,
    Node,
    SeqStmt,
    Stmt,
    While,
    build,
    walk,
)
from blockwright.ir.annotations import LLVM_UNROLL
from blockwright.support import BuildError, coded_message

ParallelEmit = Callable[["StmtEmitter", For], None]
_DIGITS = 20  # of an int64, including the sign


class StmtEmitter:
    """Emits statements into a context's function."""

    table: ClassVar[dict[str, Callable[[Any, Any], None]]] = {}

    def __init__(self, context: FunctionContext, parallel: ParallelEmit) -> None:
        self.context, self.e = context, context.e
        self.expressions = ExprEmitter(context)
        self.parallel = parallel
        self._stack: set[Buffer] = set()
        self._block: dict[Buffer, Value] = {}

    # ---------------------------------------------------------------- function bodies
    def function_body(self, body: Stmt, inner: Callable[[], None] | None = None) -> None:
        """Emit a function body: acquire memory of known size first and release it on every exit."""
        self._stack = scratch_plan.stack_plan(body)
        slots = scratch_plan.block_plan(body, self._stack, set(self.context.variables))
        if slots:
            self._take_block(slots)
        tiles.configure(self.context, body)
        if inner is None:
            self.run(body)
        else:
            inner()
        if not self.e.terminated:
            self.context.leave(int_const(0, "i32"))

    def _take_block(self, slots: list[scratch_plan.Slot]) -> None:
        ends: dict[Buffer, Value] = {}
        starts: dict[Buffer, Value] = {}
        total: Value | None = None
        for slot in slots:
            start = int_const(0) if slot.after is None else ends[slot.after]
            size = byte_size(self.expressions, slot.buffer)
            end = self._sum(start, size)
            starts[slot.buffer], ends[slot.buffer] = start, end
            total = end if total is None else self._larger(total, end)
        assert total is not None
        block = self._acquire(total)
        for buffer, start in starts.items():
            self._block[buffer] = self.e.offset(block, start)

    def _sum(self, a: Value, b: Value) -> Value:
        known = _number(a), _number(b)
        if known[0] is not None and known[1] is not None:
            return int_const(known[0] + known[1])
        return self.e.binary("add", a, b)

    def _larger(self, a: Value, b: Value) -> Value:
        known = _number(a), _number(b)
        if known[0] is not None and known[1] is not None:
            return int_const(max(known[0], known[1]))
        return self.e.overloaded("smax", a, b)

    def _acquire(self, nbytes: Value) -> Value:
        """Acquire scratch memory, released by a cleanup; return an error if there is none."""
        block = self.e.call("ptr", "bw_scratch_acquire", nbytes)
        missing = self.e.compare("eq", block, Value("ptr", "null"))
        with self.e.guarded(missing, likely=False):
            text = "BW720: no memory for temporary buffers\nhelp: use smaller inputs"
            self.raise_error("MemoryError", text)
        self.context.cleanups.append(lambda: void(self.e.call("void", "bw_scratch_release", block)))
        return block

    def raise_error(
        self, kind: str, text: str, numbers: Sequence[Value] = (), unsigned: Sequence[bool] = ()
    ) -> None:
        """Raise through the FFI and return; with 64-bit `numbers`, the text is a printf format."""
        strings = self.context.module
        if numbers:
            places = iter("%llu" if flag else "%lld" for flag in unsigned)
            format = strings.string(
                re.sub("%[%d]", lambda m: m[0] if m[0] == "%%" else next(places), text)
            )
            size = len(text.encode()) + _DIGITS * len(numbers) + 1
            message = self.e.stack(size, 16)
            self.e.call(
                "i32",
                "snprintf",
                message,
                int_const(size),
                format,
                *numbers,
                variadic="ptr, i64, ptr",
            )
        else:
            message = strings.string(text)
        self.e.call("i32", "bw_raise", strings.string(kind), message)
        self.context.leave(int_const(-1, "i32"))

    # ---------------------------------------------------------------- statements
    def run(self, stmt: Stmt) -> None:
        """Emit one statement, unless the current block is already terminated by a jump."""
        if self.e.terminated:
            return
        self.expressions.forget()
        method = self.table.get(type(stmt).__name__)
        if method is None:
            raise BuildError(
                f"cannot generate code for {type(stmt).__name__}",
                code="BW601",
                help="lower the function before building it",
            )
        method(self, stmt)

    def on_SeqStmt(self, stmt: SeqStmt) -> None:
        for part in stmt.seq:
            self.run(part)

    def on_BufferStore(self, stmt: BufferStore) -> None:
        emit = tiles.store if tiles.is_tile_store(stmt) else access.store
        emit(self.expressions, stmt)
        tiles.after(self.context, stmt)

    def on_Evaluate(self, stmt: Evaluate) -> None:
        if not isinstance(stmt.value, IntImm):
            self.expressions.value(stmt.value)
            tiles.after(self.context, stmt.value)

    def on_LetStmt(self, stmt: LetStmt) -> None:
        self.context.variables[stmt.var] = self.expressions.value(stmt.value)
        tiles.after(self.context, stmt.value)
        known, sorts = self.context.nonnegative, self.context.sorts
        if stmt.var.dtype.is_int and integers.nonnegative(stmt.value, known, sorts):
            self.context.nonnegative.add(stmt.var)
        self.run(stmt.body)

    def on_AttrStmt(self, stmt: AttrStmt) -> None:
        self.run(stmt.body)

    def on_IfThenElse(self, stmt: IfThenElse) -> None:
        condition = self.expressions.value(stmt.condition)
        yes, no, join = (self.e.fresh(n) for n in ("if", "else", "fi"))
        self.e.branch_if(condition, yes, join if stmt.else_case is None else no)
        self.e.label(yes)
        self.run(stmt.then_case)
        self.e.branch(join)
        if stmt.else_case is not None:
            self.e.label(no)
            self.run(stmt.else_case)
            self.e.branch(join)
        self.e.label(join)

    def on_AssertStmt(self, stmt: AssertStmt) -> None:
        holds = self.expressions.value(stmt.condition)
        failed = self.e.binary("xor", holds, int_const(1, "i1"))
        with self.e.guarded(failed, likely=False):
            coded = coded_message(stmt.message)
            code = coded[0] if coded else "BW712"
            text = stmt.message if coded else f"{code}: assertion failed: {stmt.message}"
            numbers = [self.expressions.index(value) for value in stmt.values]
            unsigned = [value.dtype.kind == "uint" for value in stmt.values]
            self.raise_error(ffi.error_kind(code), text, numbers, unsigned)

    # ---------------------------------------------------------------- loops
    def on_For(self, stmt: For) -> None:
        if nontemporal.NONTEMPORAL_STORES in stmt.annotations:
            nontemporal.choose(self, stmt)
            return
        if stmt.kind is ForKind.PARALLEL and not self.context.inside_parallel:
            self.parallel(self, stmt)
            return
        if stmt.kind not in (ForKind.SERIAL, ForKind.PARALLEL):
            raise BuildError(
                f"cannot generate code for a {stmt.kind.value} loop",
                code="BW601",
                help="lower the function before building it",
            )
        count = integers.constant_of(stmt.extent)
        if count is not None and count <= 0:
            return
        low = self.expressions.value(stmt.min)
        if integers.nonnegative(stmt.min, self.context.nonnegative, self.context.sorts):
            self.context.nonnegative.add(stmt.loop_var)
        tiles.lost_in(self.context, stmt.body)
        if count == 1 and not _jumps(stmt.body):
            self.context.variables[stmt.loop_var] = low
            self.run(stmt.body)
            return
        high = self.expressions.value(build.add(stmt.min, stmt.extent))
        times = _copies(stmt)
        rows = nontemporal_unaligned.begin(self.expressions, stmt)
        if nontemporal.asks_for_registers(stmt):
            self.e.empty_registers()
        with self.e.counted(low, high, nonempty=count is not None, unroll=times) as index:
            self.context.variables[stmt.loop_var] = index
            self.context.loop_depths.append(len(self.context.cleanups))
            with (
                nontemporal.prefetching(self.context, stmt),
                nontemporal_unaligned.moving(self.context, rows, index, low),
            ):
                self.run(stmt.body)
            self.context.loop_depths.pop()
        nontemporal_unaligned.end(self.expressions, stmt, rows, low, high)

    def on_While(self, stmt: While) -> None:
        tiles.lost_in(self.context, stmt)
        head, body, done = (self.e.fresh(n) for n in ("while", "body", "done"))
        self.e.branch(head)
        self.e.label(head)
        self.expressions.forget()
        self.e.branch_if(self.expressions.value(stmt.condition), body, done)
        self.e.label(body)
        self.e.loops.append(LoopTargets(head, done))
        self.context.loop_depths.append(len(self.context.cleanups))
        self.run(stmt.body)
        self.context.loop_depths.pop()
        self.e.loops.pop()
        self.e.branch(head)
        self.e.label(done)

    # ---------------------------------------------------------------- storage
    def on_Allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        if tiles.in_tiles(buffer):
            tiles.allocate(self.context, stmt)
            self.run(stmt.body)
            tiles.release(self.context, buffer)
            return
        if buffer in self._stack:
            size = scratch_plan.constant_bytes(buffer) or 0
            pointer = self.e.stack(max(size, 1))
        elif buffer in self._block:
            pointer = self._block[buffer]
        else:
            self._allocate_now(stmt)
            return
        self.context.buffers[buffer] = Memory(pointer, scratch_plan.ALIGNMENT, buffer)
        self.run(stmt.body)

    def _allocate_now(self, stmt: Allocate) -> None:
        """Acquire memory whose size is only known here."""
        pointer = self._acquire(byte_size(self.expressions, stmt.buffer))
        self.context.buffers[stmt.buffer] = Memory(pointer, scratch_plan.ALIGNMENT, stmt.buffer)
        self.run(stmt.body)
        cleanup = self.context.cleanups.pop()
        if not self.e.terminated:
            cleanup()

    def on_DeclBuffer(self, stmt: DeclBuffer) -> None:
        self.context.buffers[stmt.buffer] = self._view(stmt)
        self.run(stmt.body)

    def _view(self, stmt: DeclBuffer) -> Memory:
        source, buffer = stmt.source, stmt.buffer
        pointer = self.expressions.value(source)
        if isinstance(source, Call) and source.op == "address_of":
            place = source.args[0]
            assert isinstance(place, BufferLoad)
            memory = self.context.memory(place.buffer)
            nbytes = place.buffer.dtype.nbytes * place.buffer.dtype.lanes
            align = self.context.alignment(memory, access.flatten_index(place), nbytes)
            return Memory(pointer, align, memory.root)
        if isinstance(source, Call) and source.op == "constant_data":
            return Memory(pointer, scratch_plan.ALIGNMENT, buffer)
        return Memory(pointer, buffer.dtype.nbytes, None)


def void(_: Value) -> None:
    """Discard a value, because cleanups return None."""


def _copies(loop: For) -> int | None:
    """The unroll count for LLVM; None for no annotation or for a word such as "disable".

    Raises BuildError BW636 for any other value.
    """
    asked = loop.annotations.get(LLVM_UNROLL)
    if asked is None or isinstance(asked, str):
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise BuildError(
            f"loop {loop.loop_var.name}: {LLVM_UNROLL!r} must be a number of iterations, not "
            f"{asked!r}",
            code="BW636",
            help="annotate the number of copies, such as 4, or unroll the loop",
        )
    return asked


def _number(value: Value) -> int | None:
    return int(value.text) if value.text.lstrip("-").isdigit() else None


def _jumps(body: Node) -> bool:
    return any(isinstance(n, Call) and n.op in ("break", "continue") for n in walk(body))


StmtEmitter.table = {
    name.removeprefix("on_"): method
    for name, method in vars(StmtEmitter).items()
    if name.startswith("on_")
}
