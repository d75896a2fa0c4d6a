"""BuildRunnableModule, first half: a graph function becomes a host program.

Before:  main(x: R.Tensor((n, 4))): lv = R.call_tir(cls.f, (x, w)); gv = R.call_tir(cls.g, (lv,))
After:   @T.prim_func main(x, gv): arena = T.allocate(bytes(n)); lv = T.decl_buffer(arena[offset])
             T.call_global("f", x, w, lv, n); T.call_global("g", lv, gv, n)

The host program is a tensor program, so the printer, the interpreter and the code generator serve
it as it is. Shape arithmetic is inline; outputs are the last parameters ("num_outputs"), allocated
by the entry; everything else lives in one arena per call at the planned offsets.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer
from blockwright.passes.context import PassContext
from blockwright.passes.legalize import BOUND_ATTRS
from blockwright.passes.plan_memory import MemoryPlan, is_view, plan_memory
from blockwright.passes.rewrite import graph_functions, tir_args, tir_callee, tir_symbols
from blockwright.script.compute import Program
from blockwright.support import GraphError

_HANDLE = ir.dtype_of("handle")


def address(buffer: ir.Buffer) -> ir.Expr:
    """Pointer to the first element."""
    zeros = tuple(ir.const(0, "int64") for _ in buffer.shape)
    return ir.Call("address_of", (ir.BufferLoad(buffer, zeros),), _HANDLE)


class _Host:
    """Builds the host program of one graph function."""

    def __init__(self, name: str, function: ir.GraphFunction, module: ir.IRModule) -> None:
        self.name = name
        self.function = function
        self.module = module
        self.analyzer: Analyzer = function_analyzer(function)
        self.plan: MemoryPlan = plan_memory(function, module)
        self.buffers: dict[ir.GraphExpr, ir.Buffer] = {}
        self.declared: list[tuple[ir.Buffer, ir.Expr]] = []
        self.steps: list[ir.Stmt] = []
        self.constants: dict[str, Any] = {}
        self._constant_names: dict[ir.Constant, str] = {}
        self.extra: dict[str, ir.PrimFunc] = {}
        arena_type = ir.dtype_of("uint8")
        self.arena = ir.Buffer("arena", arena_type, (self.plan.total,), data_alignment=64)

    def build(self) -> ir.PrimFunc:
        for param in self.function.params:
            self.buffers[param] = self._fresh(param)
        outputs = self._outputs()
        for binding in self.function.bindings:
            self._binding(binding)
        for value, buffer in outputs:
            if self.buffers.get(value) is not buffer:
                self._copy(value, buffer)
        body = ir.seq(self.steps) if self.steps else ir.Evaluate(ir.const(0, "int32"))
        for buffer, source in reversed(self.declared):
            body = ir.DeclBuffer(buffer, source, body)
        if not ir.is_const_int(self.plan.total, 0):
            body = ir.Allocate(self.arena, body)
        return self._function([b for _, b in outputs], body)

    def _function(self, outputs: list[ir.Buffer], body: ir.Stmt) -> ir.PrimFunc:
        ordered = [self.buffers[p] for p in self.function.params] + outputs
        handles = tuple(ir.Var(f"{b.name}_handle", _HANDLE) for b in ordered)
        attrs = {k: v for k, v in self.function.attrs.items() if k in BOUND_ATTRS}
        attrs |= {"global_symbol": self.name, "num_outputs": len(outputs), "tir.is_host": True}
        return ir.PrimFunc(handles, tuple(zip(handles, ordered, strict=True)), body, attrs)

    def _fresh(self, value: ir.GraphExpr, name: str | None = None) -> ir.Buffer:
        info = value.tensor_info
        if info.shape is None or info.dtype is None:
            raise GraphError(f"{getattr(value, 'name', 'a value')} has no known shape or type",
                             code="BW407", help="match_cast it to a shape")  # fmt: skip
        label = name or str(getattr(value, "name", "value"))
        return ir.Buffer(label, info.dtype, info.shape)

    def _outputs(self) -> list[tuple[ir.GraphExpr, ir.Buffer]]:
        """Result values with the buffers that the entry allocates for them."""
        result = self.function.body.body
        values = list(result.fields) if isinstance(result, ir.TupleExpr) else [result]
        outputs: list[tuple[ir.GraphExpr, ir.Buffer]] = []
        taken: set[ir.GraphExpr] = set()
        for position, value in enumerate(values):
            buffer = self._fresh(value, f"out{position}" if len(values) > 1 else "out")
            produced = isinstance(value, ir.GraphVar) and value not in self.function.params
            if produced and value not in self.plan.alias and value not in taken:
                self.buffers[value] = buffer  # computed in place, no copy
                taken.add(value)
            outputs.append((value, buffer))
        return outputs

    def _binding(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        value = binding.value
        if binding.var in self.plan.alias:
            source = self._buffer(self.plan.alias[binding.var])
            self._declare(binding.var, address(source))
            if isinstance(binding, ir.MatchCast):
                self._check_cast(binding, source)
            return
        if binding.var not in self.buffers:
            self._declare_planned(binding.var)
        name = tir_callee(value)
        if name is not None:
            self._call(name, value, self.buffers[binding.var])
        elif isinstance(value, ir.GraphCall) and isinstance(value.op, ir.OpRef):
            self._library(value, self.buffers[binding.var])
        else:
            raise GraphError(f"{binding.var.name}: this expression cannot be compiled: {value!r}",
                             code="BW410")  # fmt: skip

    def _declare(self, var: ir.GraphVar, source: ir.Expr) -> None:
        buffer = self._fresh(var)
        self.buffers[var] = buffer
        self.declared.append((buffer, source))

    def _declare_planned(self, var: ir.GraphVar) -> None:
        """A buffer at its planned place; views of the arena are whole multiples of 64 bytes in."""
        place = self.plan.place.get(var)
        if place is None:
            raise GraphError(f"{var.name} has no planned storage", code="BW407")
        offset = self.plan.storages[place].offset
        assert offset is not None
        start = ir.Call("address_of", (ir.BufferLoad(self.arena, (offset,)),), _HANDLE)
        info = var.tensor_info
        assert info.shape is not None and info.dtype is not None
        buffer = ir.Buffer(var.name, info.dtype, info.shape, data_alignment=64)
        self.buffers[var] = buffer
        self.declared.append((buffer, start))

    def _buffer(self, value: ir.GraphExpr) -> ir.Buffer:
        found = self.buffers.get(value)
        if found is not None:
            return found
        if isinstance(value, ir.Constant):
            name = self._constant_name(value)
            buffer = self._fresh(value, name.replace(".", "_"))
            source = ir.Call("constant_data", (ir.StringImm(name),), _HANDLE)
            self.buffers[value] = buffer
            self.declared.append((buffer, source))
            return buffer
        raise GraphError(f"no memory for {value!r}", code="BW407")

    def _constant_name(self, value: ir.Constant) -> str:
        name = self._constant_names.get(value)
        if name is None:
            name = f"{self.name}.constant{len(self._constant_names)}"
            self._constant_names[value] = name
            self.constants[name] = value.data
        return name

    def _call(self, name: str, value: ir.GraphExpr, out: ir.Buffer) -> None:
        callee: ir.PrimFunc = self.module[name]
        actual = [self._buffer(a) for a in tir_args(value)]
        actual.append(out)
        symbols = self._symbols(callee, actual, tir_symbols(value))
        args = (ir.StringImm(name), *(address(b) for b in actual), *symbols)
        self.steps.append(ir.Evaluate(ir.Call("call_global", args, ir.dtype_of("int32"))))

    def _symbols(
        self, callee: ir.PrimFunc, actual: list[ir.Buffer], given: tuple[ir.Expr, ...]
    ) -> list[ir.Expr]:
        """Scalar arguments: the stated ones, then the callee's shape symbols in their order."""
        bound: dict[ir.Var, ir.Expr] = {}
        scalars = callee.params[len(callee.buffer_map) :]
        bound.update(zip(scalars, given, strict=True))
        order: list[ir.Expr] = list(given)
        for formal, buffer in zip(callee.buffers, actual, strict=True):
            for dim, size in zip(formal.shape, buffer.shape, strict=True):
                if isinstance(dim, ir.Var) and dim not in bound:
                    bound[dim] = size
                    order.append(size)
        return order

    def _library(self, value: ir.GraphCall, out: ir.Buffer) -> None:
        assert isinstance(value.op, ir.OpRef)
        if value.op.name != "call_dps_library" or not isinstance(value.args[0], ir.ExternFunc):
            raise GraphError(f"operator {value.op.name!r} has no tensor program and no library",
                             code="BW410")  # fmt: skip
        buffers = [*(self._buffer(a) for a in tir_args(value)), out]
        views = [ir.Call("tensor", (ir.BufferLoad(b, tuple(ir.const(0, "int64") for _ in b.shape)),),
                         _HANDLE) for b in buffers]  # fmt: skip
        scalars = [ir.as_expr(v) for v in value.attrs.values()]
        args = (ir.StringImm(value.args[0].name), *views, *scalars)
        self.steps.append(ir.Evaluate(ir.Call("call_packed", args, ir.dtype_of("int32"))))

    def _check_cast(self, binding: ir.MatchCast, source: ir.Buffer) -> None:
        """A match_cast of a value whose shape is known becomes an assertion on its dimensions."""
        pattern = binding.pattern
        if not isinstance(pattern, ir.TensorInfo) or pattern.shape is None:
            return
        for expected, actual in zip(pattern.shape, source.shape, strict=True):
            if not self.analyzer.prove_equal(expected, actual):
                message = f"BW704: match_cast of {binding.var.name}: shape differs"
                self.steps.append(ir.AssertStmt(ir.compare(ir.EQ, expected, actual), message))

    def _copy(self, value: ir.GraphExpr, out: ir.Buffer) -> None:
        """The result is a parameter, constant, view or repeated value: copy it out."""
        source = self._buffer(value)
        program = Program(f"{self.name}_copy{len(self.extra)}")
        read = program.param("source", source.shape, source.dtype)
        made = program.compute("out", source.shape, lambda *i: read[i])
        func = program.finish([made], {"tir.is_private": True})
        self.extra[func.name] = func
        symbols = self._symbols(func, [source, out], ())
        args = (ir.StringImm(func.name), address(source), address(out), *symbols)
        self.steps.append(ir.Evaluate(ir.Call("call_global", args, ir.dtype_of("int32"))))


def lower_host(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Host programs for all graph functions; constants and memory plans go to the attributes."""
    functions = dict(module.functions)
    constants: dict[str, Any] = dict(module.attrs.get("constants", {}))
    plans: dict[str, MemoryPlan] = {}
    for name, function in graph_functions(module):
        host = _Host(name, function, module)
        functions[name] = host.build()
        functions.update(host.extra)
        constants.update(host.constants)
        plans[name] = host.plan
    views = [n for n, f in functions.items() if _only_view(n, f, module)]
    for name in views:
        del functions[name]
    ctx.options["memory_plans"] = plans
    return module.replace(functions=functions, attrs={**module.attrs, "constants": constants})


def _only_view(name: str, func: ir.Node, module: ir.IRModule) -> bool:
    """Programs of views are never called: the plan relabels memory instead."""
    if not isinstance(func, ir.PrimFunc) or not func.attrs.get("tir.view"):
        return False
    calls = [b.value for _, f in graph_functions(module) for b in f.bindings
             if isinstance(b, ir.VarBinding) and tir_callee(b.value) == name]  # fmt: skip
    return all(is_view(c, module) for c in calls)
