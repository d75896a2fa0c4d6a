"""Non-temporal stores: loops annotated `nontemporal_stores` get a second form with them.

    if B is line-aligned and large enough:
        for i in …: B[i] = …          # whole vectors with non-temporal stores
        fence                         # at the end of each thread's part
    else:
        for i in …: B[i] = …

Non-temporal stores are weakly ordered: each thread fences its own before it reports completion of
its part. This module also emits the prefetches of annotated loops.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from blockwright.arith import simplify
from blockwright.codegen.llvm import scratch_plan
from blockwright.codegen.llvm.context import FunctionContext, Prefetch, SharedPrefetch
from blockwright.codegen.llvm.values import Value, int_const, nbytes_of
from blockwright.ir import (
    Add,
    Allocate,
    Buffer,
    BufferLoad,
    BufferStore,
    Expr,
    For,
    ForKind,
    Ramp,
    Var,
    build,
    collect,
    const,
    const_int,
    substitute,
    uses_var,
)
from blockwright.ir.annotations import (
    NONTEMPORAL_STORES,
    PREFETCH_READ,
    PREFETCH_SHARED,
    PREFETCH_WRITE,
    REGISTER_PRESSURE,
    cache_hint_problem,
)
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter
    from blockwright.codegen.llvm.stmt import StmtEmitter

LINE = 64
"""Bytes of a cache line, the unit of writes to memory."""

_LEAST = 16
"""Bytes of the smallest vector with a non-temporal store."""


def streamed_buffers(loop: For) -> Iterator[Buffer]:
    """Buffers that a loop writes and does not read, each once."""
    read = {load.buffer for load in collect(loop.body, BufferLoad)}
    own = {node.buffer for node in collect(loop.body, Allocate)}
    stores = (store.buffer for store in collect(loop.body, BufferStore))
    for buffer in dict.fromkeys(stores):
        if buffer not in read and buffer not in own and buffer.scope in ("", "global"):
            yield buffer


def choose(compiler: StmtEmitter, loop: For) -> None:
    """Emit an annotated loop in both forms, with the test that selects one."""
    smallest = _number(loop, NONTEMPORAL_STORES)
    rest = {key: value for key, value in loop.annotations.items() if key != NONTEMPORAL_STORES}
    plain, context = loop.replace(annotations=rest), compiler.context
    streamed = [b for b in streamed_buffers(loop) if b in context.buffers and _large(b, smallest)]
    if not streamed:
        compiler.on_For(plain)
        return
    fits = _fits(compiler, streamed, smallest)
    if fits is None:
        _streaming(compiler, plain, streamed)
        return
    e = compiler.e
    yes, no, join = (e.fresh(n) for n in ("past", "plain", "done"))
    e.branch_if(fits, yes, no)
    e.label(yes)
    _streaming(compiler, plain, streamed)
    e.branch(join)
    e.label(no)
    compiler.expressions.forget()
    compiler.on_For(plain)
    e.branch(join)
    e.label(join)


def _number(loop: For, key: str) -> int:
    value = loop.annotations[key]
    problem = cache_hint_problem(loop, key, value)
    if problem:
        raise BuildError(
            f"loop {loop.loop_var.name}: {problem}",
            code="BW636",
            help="remove the annotation, or annotate a serial or parallel loop with a number",
        )
    return int(value)


def asks_for_registers(loop: For) -> bool:
    return REGISTER_PRESSURE in loop.annotations and _number(loop, REGISTER_PRESSURE) == 1


@contextmanager
def prefetching(context: FunctionContext, loop: For) -> Generator[None]:
    """Set up prefetching in the body of a loop that is annotated for it.

    `context.loops` holds the variables of enclosing loops, outermost first; prefetch distances
    refer to iterations of the innermost enclosing loop.
    """
    outer, context.ahead = context.ahead, None
    shared, written = context.shared, context.written
    context.written = None
    runs = _from_zero(loop) and const_int(loop.extent) != 0
    if PREFETCH_SHARED in loop.annotations and context.loops and runs:
        lengths = {
            n.loop_var: const_int(n.extent) for n in collect(loop.body, For) if _from_zero(n)
        }
        known = {var: length for var, length in lengths.items() if length}
        distance = _number(loop, PREFETCH_SHARED)
        context.shared = SharedPrefetch(
            context.loops[-1], distance, loop.loop_var, loop.extent, known
        )
    if PREFETCH_READ in loop.annotations and context.loops:
        loads = (n for n in collect(loop.body, BufferLoad) if uses_var(n, context.loops[-1]))
        loaded = frozenset(_place(n.buffer, _first(n.indices[-1])) for n in loads)
        context.ahead = Prefetch(context.loops[-1], _number(loop, PREFETCH_READ), loaded)
    if PREFETCH_WRITE in loop.annotations and context.loops:
        context.written = Prefetch(context.loops[-1], _number(loop, PREFETCH_WRITE))
    context.loops.append(loop.loop_var)
    yield
    context.loops.pop()
    context.ahead, context.shared, context.written = outer, shared, written


def _from_zero(loop: For) -> bool:
    return const_int(loop.min) == 0


def prefetch_for_load(context: FunctionContext, buffer: Buffer, index: Expr) -> Sequence[Expr]:
    """Indices to prefetch at a load, one per cache line. Empty when the line is loaded by the
    current iteration or already prefetched."""
    if context.shared is not None:
        share = _share(context, context.shared, buffer, index)
        if share:
            return share
    return _later(context.ahead, buffer, index)


def prefetch_for_store(context: FunctionContext, buffer: Buffer, index: Expr) -> Sequence[Expr]:
    """Indices to prefetch at a store, because later iterations write them."""
    return _later(context.written, buffer, index)


def fetch(c: ExprEmitter, buffer: Buffer, indices: Sequence[Expr]) -> None:
    """Prefetch the lines of elements of a buffer."""
    nbytes = buffer.dtype.nbytes * buffer.dtype.lanes
    for index in indices:
        c.e.prefetch(c.context.memory(buffer).pointer, c.index(index), nbytes)


def _later(ahead: Prefetch | None, buffer: Buffer, index: Expr) -> Sequence[Expr]:
    if ahead is None or not ahead.distance or buffer.scope not in ("", "global"):
        return ()
    if not uses_var(index, ahead.var):
        return ()
    step = const(ahead.distance, ahead.var.dtype)
    later = substitute(index, {ahead.var: build.add(ahead.var, step)})
    place = _place(buffer, later)
    if place in ahead.loaded:
        return ()
    line = (buffer, place[1], place[2] * buffer.dtype.nbytes // LINE)
    if line in ahead.fetched:
        return ()
    ahead.fetched.add(line)
    return (later,)


def _share(
    context: FunctionContext, shared: SharedPrefetch, buffer: Buffer, index: Expr
) -> Sequence[Expr]:
    """The lines that this iteration prefetches: its share of the lines that `index` covers."""
    inner = context.loops[-1]
    length = shared.lengths.get(inner)
    if length is None or buffer.scope not in ("", "global") or (buffer, inner) in shared.fetched:
        return ()
    if uses_var(index, shared.loop) or not uses_var(index, shared.var):
        return ()
    one = const(1, inner.dtype)
    step = const_int(simplify(build.sub(substitute(index, {inner: build.add(inner, one)}), index)))
    if step is None or step <= 0:
        return ()
    shared.fetched.add((buffer, inner))
    walk = [inner, *_walked_on(context.loops, shared, index, step * length)]
    later = build.add(shared.var, const(shared.distance, shared.var.dtype))
    starts: dict[Var, Expr] = {var: const(0, var.dtype) for var in walk}
    begin = substitute(index, {**starts, shared.var: later})
    done: Expr = shared.loop
    for var in reversed(walk):
        done = build.add(build.mul(done, const(shared.lengths[var], var.dtype)), var)
    # With an unknown trip count, one iteration prefetches everything: there may be only one.
    rounded = build.add(shared.count, const(step - 1, shared.count.dtype))
    share = simplify(build.floordiv(rounded, shared.count))
    largest, line = const_int(share) or step, max(1, LINE // buffer.dtype.nbytes)
    first = build.add(begin, build.mul(done, share))
    return [build.add(first, const(at, first.dtype)) for at in range(0, largest, line)]


def _walked_on(
    loops: Sequence[Var], shared: SharedPrefetch, index: Expr, size: int
) -> Iterator[Var]:
    """The loops around the innermost one, inner first, each of which goes on where those inside
    end; `size` is the innermost loop's elements.

    Shares of the whole walk are contiguous. Shares of each inner walk would be strips, and jumps
    between these defeat the hardware's own prefetchers.
    """
    for var in takewhile(lambda loop: loop is not shared.loop, reversed(loops[:-1])):
        length = shared.lengths.get(var)
        moved = substitute(index, {var: build.add(var, const(1, var.dtype))})
        if length is None or const_int(simplify(build.sub(moved, index))) != size:
            return
        yield var
        size *= length


def _first(index: Expr) -> Expr:
    return index.base if isinstance(index, Ramp) else index


def _place(buffer: Buffer, index: Expr) -> tuple[Buffer, str, int]:
    """A place in a buffer: the variable part of the index as canonical text, and the constant part
    in elements."""
    moved = simplify(index)
    still = 0
    if isinstance(moved, Add) and (number := const_int(moved.b)) is not None:
        moved, still = moved.a, number
    return buffer, repr(moved), still


def _large(buffer: Buffer, minimum: int) -> bool:
    """Whether the buffer has at least, or may have, the given number of bytes."""
    size = scratch_plan.constant_bytes(buffer)
    return size is None or size >= minimum


def _fits(compiler: StmtEmitter, buffers: list[Buffer], minimum: int) -> Value | None:
    """Whether all buffers are line-aligned and large enough; None when that is known to hold."""
    e, context = compiler.e, compiler.context
    tests: list[Value] = []
    for buffer in buffers:
        memory = context.memory(buffer)
        if memory.align % LINE:
            place = e.convert("ptrtoint", memory.pointer, "i64")
            rest = e.binary("and", place, int_const(LINE - 1))
            tests.append(e.compare("eq", rest, int_const(0)))
        if scratch_plan.constant_bytes(buffer) is None:
            size = compiler.expressions.value(scratch_plan.byte_count(buffer))
            tests.append(e.compare("sge", size, int_const(minimum)))
    result: Value | None = None
    for test in tests:
        result = test if result is None else e.binary("and", result, test)
    return result


def _streaming(compiler: StmtEmitter, loop: For, buffers: list[Buffer]) -> None:
    context = compiler.context
    before = {buffer: context.memory(buffer) for buffer in buffers}
    outer = context.streamed
    for buffer, memory in before.items():
        aligned = max(memory.align, LINE)
        context.buffers[buffer] = msgspec.structs.replace(memory, align=aligned)
    context.streamed = outer.union(buffers)
    apart = loop.kind is ForKind.PARALLEL and not context.inside_parallel
    if not apart:  # the function of a parallel loop's body has fences of its own
        fence_at_exit(context)
    compiler.on_For(loop)
    if not apart:
        cleanup = context.cleanups.pop()
        if not context.e.terminated:
            cleanup()
    context.streamed = outer
    context.buffers.update(before)


def fence_at_exit(context: FunctionContext) -> None:
    """Add a cleanup that waits, on every exit, for the completion of non-temporal stores."""
    if context.module.target.arch != "x86_64":
        context.cleanups.append(lambda: None)  # on other targets, such stores are ordered normally
        return

    def fence() -> None:
        context.e.intrinsic("x86.sse.sfence", "void")

    context.cleanups.append(fence)


def whole(value: Value, align: int) -> bool:
    """Whether a vector fills whole lines or an aligned power-of-two part of one, so that a
    non-temporal store of it is possible."""
    size = nbytes_of(value.type)
    return size >= _LEAST and size & (size - 1) == 0 and align % min(size, LINE) == 0
