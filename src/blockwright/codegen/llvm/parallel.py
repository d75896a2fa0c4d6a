"""Parallel loops: outline the body into a function that the thread pool runs.

    parallel for i in range(n): body(A, s, i)
    →  context = {A, s};  status = bw_parallel_for(@f.task, context, n)
       @f.task(context, begin, end) = @f.body(A, s, begin, end)

The task function unpacks the context and calls the body function. Pointer parameters of the body
can be marked `noalias`; pointers loaded from a structure cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.codegen.llvm import integers, nontemporal, shared_library, tiles, types
from blockwright.codegen.llvm.context import FunctionContext, Memory
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.function_attributes import function_attributes
from blockwright.codegen.llvm.stmt import StmtEmitter
from blockwright.codegen.llvm.values import Value
from blockwright.ir import Buffer, DType, For, Var, collect


def emit_parallel(outer: StmtEmitter, loop: For) -> None:
    """Replace a parallel loop by a call of the thread pool."""
    context = outer.context
    nodes = (loop.body, loop.min)
    result = [v for node in nodes for v in collect(node, Var) if v in context.variables]
    variables = list(dict.fromkeys(result))
    buffers = [b for b in collect(loop.body, Buffer) if b in context.buffers]
    number = context.parallel_count[0]
    context.parallel_count[0] += 1
    name = f"{context.e.name}.{number}"
    _emit_body(outer, loop, f"{name}.body", variables, buffers)
    _emit_task(context, name, variables, buffers)
    _emit_call(outer, loop, name, variables, buffers)


def _slots(variables: Sequence[Var], buffers: Sequence[Buffer]) -> list[tuple[str, int]]:
    """LLVM type and offset of each captured value (pointers, then variables); the total size."""
    slots: list[tuple[str, int]] = []
    offset = 0
    for dtype in [*(DType("handle", 64) for _ in buffers), *(v.dtype for v in variables)]:
        size = -(-dtype.nbytes * dtype.lanes // 8) * 8
        slots.append((types.memory_type(dtype), offset))
        offset += size
    return [*slots, ("", offset)]


def _emit_body(
    outer: StmtEmitter, loop: For, name: str, variables: list[Var], buffers: list[Buffer]
) -> None:
    context = outer.context
    roots = [context.buffers[b].root for b in buffers]
    noalias = [
        "noalias" if context.options.noalias and root is not None and roots.count(root) == 1 else ""
        for root in roots
    ]
    params = [("ptr", f"b{i}") for i in range(len(buffers))]
    params += [(types.value_type(v.dtype), f"s{i}") for i, v in enumerate(variables)]
    e = FunctionEmitter(
        context.module,
        name,
        "i32",
        [*params, ("i64", "begin"), ("i64", "end")],
        function_attributes(context.module, context.options),
        "internal",
        [*noalias, *[""] * (len(variables) + 2)],
    )
    inner = FunctionContext(
        e,
        context.options,
        context.sorts,
        callees=context.callees,
        parallel_count=context.parallel_count,
        nonnegative=set(context.nonnegative),
        inside_parallel=True,
        streamed=context.streamed,
    )
    for buffer, param in zip(buffers, e.params, strict=False):
        known = context.buffers[buffer]
        inner.buffers[buffer] = Memory(param, known.align, known.root)
    for var, param in zip(variables, e.params[len(buffers) :], strict=False):
        inner.variables[var] = param
    compiler = StmtEmitter(inner, emit_parallel)
    if integers.nonnegative(loop.min, inner.nonnegative, inner.sorts):
        inner.nonnegative.add(loop.loop_var)

    if context.streamed:
        nontemporal.fence_at_exit(inner)

    def tasks() -> None:
        type_ = types.value_type(loop.loop_var.dtype)
        low = compiler.expressions.value(loop.min)
        with e.counted(e.params[-2], e.params[-1], nonempty=True) as task:
            index = e.convert("trunc", task, type_) if type_ != "i64" else task
            if integers.constant_of(loop.min) != 0:
                index = e.binary("add", low, index, "nsw")
            inner.variables[loop.loop_var] = index
            inner.loop_depths.append(len(inner.cleanups))
            jumps = e.loops.pop()  # break and continue must not target this loop
            with nontemporal.prefetching(inner, loop):
                compiler.run(loop.body)
            e.loops.append(jumps)
            inner.loop_depths.pop()

    compiler.function_body(loop.body, tasks)
    e.finish()


def _emit_task(
    context: FunctionContext, name: str, variables: list[Var], buffers: list[Buffer]
) -> None:
    params = [("ptr", "context"), ("i64", "begin"), ("i64", "end")]
    e = FunctionEmitter(context.module, f"{name}.task", "i32", params, "nounwind", "internal")
    args: list[Value] = []
    slots = _slots(variables, buffers)
    kinds = [*(DType("handle", 64) for _ in buffers), *(v.dtype for v in variables)]
    for (type_, offset), dtype in zip(slots, kinds, strict=False):
        result = e.load(type_, e.offset(e.params[0], offset), 8)
        args.append(types.from_memory(e, result, dtype))
    e.ret(e.call_local("i32", f"{name}.body", *args, *e.params[1:]))
    e.finish()


def _emit_call(
    outer: StmtEmitter, loop: For, name: str, variables: list[Var], buffers: list[Buffer]
) -> None:
    e, context = outer.e, outer.context
    shared_library.resolve(outer.expressions, loop.body)
    slots = _slots(variables, buffers)
    record = e.stack(max(slots[-1][1], 8), 16)
    values = [context.buffers[b].pointer for b in buffers]
    values += [context.variables[v] for v in variables]
    for value, (type_, offset) in zip(values, slots, strict=False):
        stored = e.convert("zext", value, type_) if value.type != type_ else value
        e.store(stored, e.offset(record, offset), 8)
    count = outer.expressions.index(loop.extent)
    task = Value("ptr", f'@"{name}.task"')
    status = e.call("i32", "bw_parallel_for", task, record, count)
    tiles.after(context, loop)
    context.check(status)
