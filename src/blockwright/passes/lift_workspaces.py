"""LiftWorkspaces: let the memory plan of the graph provide the temporary buffers of kernels.

Before::

    @R.function
    def main(x: R.Tensor(("n", 64), "float32")):
        n = T.int64()
        y = R.call_tir(cls.kernel, (x,), R.Tensor((n,), "float32"))
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def kernel(x_handle: T.handle, y_handle: T.handle):
        T.func_attr({"tir.is_scheduled": True})
        n = T.int64()
        x = T.match_buffer(x_handle, (n, 64), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        partial = T.alloc_buffer((4, n), "float32")
        for k0, i, k1 in T.grid(4, n, 16):
            with T.block("partial"):
                vk0, vi, vk1 = T.axis.remap("SSR", [k0, i, k1])
                with T.init():
                    partial[vk0, vi] = T.float32(0)
                partial[vk0, vi] = partial[vk0, vi] + x[vi, vk0 * 16 + vk1]
        for i, k0 in T.grid(n, 4):
            with T.block("y"):
                vi, vk0 = T.axis.remap("SR", [i, k0])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + partial[vk0, vi]

After::

    @R.function
    def main(x: R.Tensor(("n", 64), "float32")):
        n = T.int64()
        y_all = R.call_tir(
            cls.kernel, (x,), [R.Tensor((n,), "float32"), R.Tensor((4, n), "float32")]
        )
        y = y_all[0]
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def kernel(x_handle: T.handle, y_handle: T.handle, partial_handle: T.handle):
        T.func_attr({"tir.is_scheduled": True, "tir.workspaces": 1})
        n = T.int64()
        x = T.match_buffer(x_handle, (n, 64), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        partial = T.match_buffer(partial_handle, (4, n), "float32")
        for k0, i, k1 in T.grid(4, n, 16):
            with T.block("partial"):
                vk0, vi, vk1 = T.axis.remap("SSR", [k0, i, k1])
                with T.init():
                    partial[vk0, vi] = T.float32(0)
                partial[vk0, vi] = partial[vk0, vi] + x[vi, vk0 * 16 + vk1]
        for i, k0 in T.grid(n, 4):
            with T.block("y"):
                vi, vk0 = T.axis.remap("SR", [i, k0])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + partial[vk0, vi]

A workspace is one more result that nobody uses: it is alive during the call only, so it shares
memory with other values, and the plan counts it. A buffer is lifted if it lives through several
statements of the kernel and is too large for its stack frame. Buffers of a single nest remain: they
are private to tasks, or lowering makes them smaller than declared.
"""

from __future__ import annotations

import math

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention
from blockwright.graph.tir_calls import buffer_info
from blockwright.ir.attributes import IS_PRIVATE, IS_SCHEDULED, NUM_OUTPUTS, WORKSPACES
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import (
    call_tir,
    flat_function,
    graph_functions,
    symbol_values,
    tir_args,
    tir_callee,
    tir_symbols,
)

_SMALL = 4096
"""Bytes up to which code generation places a buffer in the stack frame."""


@graph_pass
def lift_workspaces(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Turn temporary buffers of called kernels into results that the memory plan places."""
    functions = dict(module.functions)
    lifted: dict[str, tuple[ir.Buffer, ...]] = {}
    for _, graph in graph_functions(module):
        for binding in graph.bindings:
            name = called_by(binding)
            if name is None or name in lifted:
                continue
            func: ir.PrimFunc = module[name]
            lifted[name] = workspaces = workspaces_of(func)
            if workspaces:
                functions[name] = with_workspaces(func, workspaces)
                texts = [f"{b.name}{list(b.shape)!r} {b.dtype}" for b in workspaces]
                ctx.decisions.setdefault("lift_workspaces", []).append(
                    f"{name}: the memory plan provides {', '.join(texts)}"
                )
    for name, graph in graph_functions(module):
        if any(lifted.get(called_by(b) or "") for b in graph.bindings):
            functions[name] = _rewritten(graph, functions, lifted)
    return module.replace(functions=functions)


def called_by(binding: ir.Binding) -> str | None:
    """Name of the tensor program that a binding calls."""
    return tir_callee(binding.value) if isinstance(binding, ir.VarBinding) else None


def workspaces_of(func: ir.PrimFunc) -> tuple[ir.Buffer, ...]:
    """Temporary buffers of a kernel that can be parameters: of a size that its callers know."""
    if not func.attrs.get(IS_PRIVATE) or not func.attrs.get(IS_SCHEDULED):
        return ()
    body = func.root.body
    convention = calling_convention(func)
    known = {*convention.scalars, *convention.symbols}
    used = [set(ir.collect(s, ir.Buffer)) for s in body.seq] if isinstance(body, ir.SeqStmt) else []
    return tuple(
        buffer
        for buffer in func.root.alloc_buffers
        if sum(buffer in buffers for buffers in used) > 1
        and buffer.scope == "global"
        and not buffer.strides
        and buffer.offset is None
        and _is_large(buffer)
        and {v for extent in buffer.shape for v in ir.free_vars(extent)} <= known
    )


def _is_large(buffer: ir.Buffer) -> bool:
    sizes = [ir.const_int(extent) for extent in buffer.shape]
    known = [size for size in sizes if size is not None]
    return len(known) < len(sizes) or math.prod(known) * buffer.dtype.nbytes > _SMALL


def with_workspaces(func: ir.PrimFunc, workspaces: tuple[ir.Buffer, ...]) -> ir.PrimFunc:
    """The kernel with temporary buffers as its last parameters."""
    root = func.root
    kept = tuple(b for b in root.alloc_buffers if b not in workspaces)
    handles = tuple(ir.Var(f"{b.name}_handle", ir.dtype_of("handle")) for b in workspaces)
    attrs = {**func.attrs, WORKSPACES: len(workspaces)}
    if NUM_OUTPUTS in attrs:
        attrs[NUM_OUTPUTS] = int(attrs[NUM_OUTPUTS]) + len(workspaces)
    return func.replace(
        params=(*_buffers_first(func), *handles, *_scalars(func)),
        buffer_map=(*func.buffer_map, *zip(handles, workspaces, strict=True)),
        body=func.body.replace(block=root.replace(alloc_buffers=kept)),
        attrs=attrs,
    )


def _buffers_first(func: ir.PrimFunc) -> tuple[ir.Var, ...]:
    mapped = dict(func.buffer_map)
    return tuple(p for p in func.params if p in mapped)


def _scalars(func: ir.PrimFunc) -> tuple[ir.Var, ...]:
    mapped = dict(func.buffer_map)
    return tuple(p for p in func.params if p not in mapped)


def _rewritten(
    graph: ir.GraphFunction,
    functions: dict[str, ir.Node],
    lifted: dict[str, tuple[ir.Buffer, ...]],
) -> ir.GraphFunction:
    bindings: list[ir.Binding] = []
    for binding in graph.bindings:
        name = called_by(binding)
        if name is None or not lifted[name]:
            bindings.append(binding)
            continue
        assert isinstance(binding, ir.VarBinding)
        func = functions[name]
        assert isinstance(func, ir.PrimFunc)
        bindings += _call_with(binding, name, func, lifted[name])
    return flat_function(graph, bindings)


def _call_with(
    binding: ir.VarBinding, name: str, func: ir.PrimFunc, workspaces: tuple[ir.Buffer, ...]
) -> list[ir.Binding]:
    """The call with its workspaces among its results, and the bindings of the others."""
    value = binding.value
    assert isinstance(value, ir.GraphCall)
    args, symbols = tir_args(value), tir_symbols(value)
    shapes = [_shape(info) for info in (*(a.info for a in args), *value.out_info)]
    # A workspace stands for itself: its shape binds nothing that others do not.
    bound = symbol_values(func, [*shapes, *(b.shape for b in workspaces)], symbols)
    infos = [
        ir.TensorInfo(tuple(ir.substitute(d, bound) for d in _shape(buffer_info(b))), b.dtype)
        for b in workspaces
    ]
    call = call_tir(name, args, [*value.out_info, *infos], symbols)
    every = ir.GraphVar(f"{binding.var.name}_all", True, info=call.info)
    items = [ir.TupleGetItem(every, index, info=info) for index, info in enumerate(value.out_info)]
    result: list[ir.Binding] = [ir.VarBinding(every, call)]
    if len(items) == 1:
        return [*result, ir.VarBinding(binding.var, items[0])]
    fields = [
        ir.GraphVar(f"{binding.var.name}_{index}", True, info=item.info)
        for index, item in enumerate(items)
    ]
    result += [ir.VarBinding(f, item) for f, item in zip(fields, items, strict=True)]
    whole = ir.TupleExpr(tuple(fields), info=binding.var.info)
    return [*result, ir.VarBinding(binding.var, whole)]


def _shape(info: ir.Info | None) -> tuple[ir.Expr, ...]:
    assert isinstance(info, ir.TensorInfo)
    assert info.shape is not None
    return info.shape
