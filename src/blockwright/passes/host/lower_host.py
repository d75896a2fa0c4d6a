"""BuildRunnableModule, first half: lower a graph function to a host program.

Before:  main(x: R.Tensor((n, 4))): lv = R.call_tir(cls.f, (x, w)); gv = R.call_tir(cls.g, (lv,))
After:   @T.prim_func main(x, gv): arena = T.allocate(bytes(n))
             T.call_global("f", x, constant("w"), arena + offset, n)
             T.call_global("g", arena + offset, gv, n)

The host program is a tensor program, so the printer, interpreter and code generator handle it
unchanged. Shape arithmetic is inline. Outputs are the last parameters ("num_outputs"); the entry
allocates them unless the caller provides memory. All other values live in one arena per call at
the planned offsets. Values are passed as pointers, not buffers: a model has hundreds, and nested
declarations would make a deep tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer
from blockwright.graph.calling_convention import calling_convention
from blockwright.ir.attributes import IS_HOST, IS_PRIVATE, IS_VIEW, NUM_OUTPUTS
from blockwright.ops.row import dims_text
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.host.plan_memory import ALIGNMENT, ArenaPlan, is_view, plan_memory
from blockwright.passes.legalize import with_scalar_symbols
from blockwright.passes.rewrite import (
    graph_functions,
    symbol_values,
    tir_args,
    tir_callee,
    tir_symbols,
)
from blockwright.script.compute import Program
from blockwright.support import GraphError

_HANDLE = ir.dtype_of("handle")


def address(buffer: ir.Buffer) -> ir.Expr:
    """Pointer to the first element of a buffer."""
    zeros = tuple(ir.const(0, "int64") for _ in buffer.shape)
    return ir.Call("address_of", (ir.BufferLoad(buffer, zeros),), _HANDLE)


class _Host:
    """Builds the host program of one graph function."""

    def __init__(
        self,
        name: str,
        function: ir.GraphFunction,
        module: ir.IRModule,
        checks: Sequence[ir.AssertStmt] = (),
    ) -> None:
        self.name = name
        self.checks = list(checks)  # of sizes, emitted before all other statements
        self.function = function
        self.module = module
        self.analyzer: Analyzer = function_analyzer(function)
        self.plan: ArenaPlan = plan_memory(function, module)
        self.pointers: dict[ir.GraphExpr, ir.Expr] = {}
        self.declared: list[tuple[ir.Buffer, ir.Expr]] = []
        self.steps: list[ir.Stmt] = []
        self.constants: dict[str, Any] = {}
        self.extra: dict[str, ir.PrimFunc] = {}
        arena_type = ir.dtype_of("uint8")
        empty = ir.is_const_int(self.plan.total, 0)  # empty values need an address too
        size = ir.const(ALIGNMENT, "int64") if empty else self.plan.total
        self.arena = ir.Buffer("arena", arena_type, (size,), data_alignment=ALIGNMENT)

    def build(self) -> ir.PrimFunc:
        inputs = [self._parameter(p, p.name) for p in self.function.params]
        outputs = self._outputs()
        for binding in self.function.bindings:
            self._binding(binding)
        for value, buffer in outputs:
            if self.pointers.get(value) is not self.pointers[_Slot(buffer)]:
                self._copy(value, buffer)
        body = ir.seq(self.steps) if self.steps else ir.Evaluate(ir.const(0, "int32"))
        for buffer, source in reversed(self.declared):
            body = ir.DeclBuffer(buffer, source, body)
        if self.plan.storages:
            body = ir.Allocate(self.arena, body)
        body = ir.seq([*self.checks, body])
        return self._function([*inputs, *(b for _, b in outputs)], len(outputs), body)

    def _function(self, buffers: list[ir.Buffer], count: int, body: ir.Stmt) -> ir.PrimFunc:
        handles = tuple(ir.Var(f"{b.name}_handle", _HANDLE) for b in buffers)
        attrs = {k: v for k, v in self.function.attrs.items() if k in ir.BOUND_ATTRS}
        attrs |= {"global_symbol": self.name, NUM_OUTPUTS: count, IS_HOST: True}
        return ir.PrimFunc(handles, tuple(zip(handles, buffers, strict=True)), body, attrs)

    def _buffer_like(self, value: ir.GraphExpr, name: str) -> ir.Buffer:
        info = value.info
        if not isinstance(info, ir.TensorInfo):
            raise GraphError(
                f"{name} of {self.name} is {info!r}: compiled functions accept and return tensors",
                code="BW413",
            )
        if info.shape is None or info.dtype is None:
            raise GraphError(
                f"{name} of {self.name} is {info!r}: parameters and results of "
                "compiled functions have a shape and an element type",
                code="BW407",
                help="annotate a parameter with a shape of symbols, such as "
                'R.Tensor(("n", "m"), "float32"); match_cast a result',
            )
        return ir.Buffer(name, info.dtype, info.shape)

    def _parameter(self, value: ir.GraphExpr, name: str) -> ir.Buffer:
        buffer = self._buffer_like(value, name)
        self.pointers[value] = address(buffer)
        return buffer

    def _outputs(self) -> list[tuple[ir.GraphExpr, ir.Buffer]]:
        """Result values with their output buffers."""
        result = self.function.body.body
        values = self._tuple(result)
        outputs: list[tuple[ir.GraphExpr, ir.Buffer]] = []
        for position, value in enumerate(values):
            buffer = self._buffer_like(value, f"out{position}" if len(values) > 1 else "out")
            pointer = address(buffer)
            self.pointers[_Slot(buffer)] = pointer
            root = self.plan.root(value)
            if root in self.plan.results and root not in self.pointers:
                self.pointers[root] = pointer  # computed in place, without a copy
            outputs.append((value, buffer))
        return outputs

    def _tuple(self, value: ir.GraphExpr) -> list[ir.GraphExpr]:
        """The values of a tuple, or the value itself."""
        if isinstance(value, ir.TupleExpr):
            return list(value.fields)
        if isinstance(value, ir.GraphVar) and value in self.plan.fields:
            return list(self.plan.fields[value])
        return [value]

    def _binding(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        value = binding.value
        if isinstance(binding.var.info, (ir.ShapeInfo, ir.PrimInfo)):
            if isinstance(binding, ir.MatchCast):
                self._check_cast(binding, value)
            return  # its annotation holds the value: no memory needed
        if binding.var in self.plan.alias:
            source = self.plan.alias[binding.var]
            self.pointers[binding.var] = self._pointer(source)
            if isinstance(binding, ir.MatchCast):
                self._check_cast(binding, source)
            return
        if isinstance(value, (ir.TupleExpr, ir.GraphVar)) and binding.var in self.plan.fields:
            return  # a tuple of existing values
        outs = self._tuple(binding.var)
        for out in outs:
            if out not in self.pointers and isinstance(out, ir.GraphVar):
                self.pointers[out] = self._planned(out)
        name = tir_callee(value)
        if name is not None:
            self._call(name, self.module[name], [*tir_args(value), *outs], tir_symbols(value))
        elif isinstance(value, ir.GraphCall) and isinstance(value.op, ir.OpRef):
            self._library(value, outs)
        else:
            raise GraphError(
                f"{binding.var.name}: this expression cannot be compiled: {value!r}",
                code="BW410",
                help="inline the bindings of a graph function at its call"
                if isinstance(value, ir.GraphCall)
                else None,
            )

    def _planned(self, var: ir.GraphVar) -> ir.Expr:
        """Address of a value in the arena."""
        place = self.plan.place.get(var)
        offset = None if place is None else self.plan.storages[place].offset
        if offset is None:
            raise GraphError(f"{var.name} has no planned storage", code="BW414")
        return ir.Call("address_of", (ir.BufferLoad(self.arena, (offset,)),), _HANDLE)

    def _pointer(self, value: ir.GraphExpr) -> ir.Expr:
        result = self.pointers.get(value)
        if result is None and isinstance(value, ir.Constant):
            name = f"{self.name}.constant{len(self.constants)}"
            self.constants[name] = value.data
            result = ir.Call("constant_data", (ir.StringImm(name),), _HANDLE)
            self.pointers[value] = result
        if result is None:
            raise GraphError(f"no memory for {value!r}", code="BW414")
        return result

    def _call(
        self,
        name: str,
        callee: ir.PrimFunc,
        values: list[ir.GraphExpr],
        given: tuple[ir.Expr, ...],
    ) -> None:
        """Emit a call: pointers of all operands, given scalars, then shape symbols in order."""
        pointers = [self._pointer(v) for v in values]
        convention = calling_convention(callee)
        bound = symbol_values(callee, [_shape(v) for v in values], given)
        order = [self._narrowed(v, bound[v]) for v in (*convention.scalars, *convention.symbols)]
        args = (ir.StringImm(name), *pointers, *order)
        self.steps.append(ir.Evaluate(ir.Call("call_global", args, ir.dtype_of("int32"))))

    def _narrowed(self, symbol: ir.Var, value: ir.Expr) -> ir.Expr:
        """Convert a size to the type of the callee's parameter, with a range check if needed."""
        kind, given = symbol.dtype, value.dtype
        if given is kind:
            return value
        low, high = self.analyzer.const_bounds(value)
        message = f"BW708: {symbol.name} does not fit {kind}"
        ends = (
            (ir.GE, kind.min_value, low is not None and low >= kind.min_value),
            (ir.LE, kind.max_value, high is not None and high <= kind.max_value),
        )
        for holds, end, proved in ends:
            if not proved and given.min_value <= end <= given.max_value:
                checked = ir.compare(holds, value, ir.const(end, given))
                self.steps.append(ir.AssertStmt(checked, message))
        return ir.cast_to(value, kind)

    def _library(self, value: ir.GraphCall, outs: list[ir.GraphExpr]) -> None:
        """Call an external function with DLTensor views of the operands and scalar attributes."""
        assert isinstance(value.op, ir.OpRef)
        if value.op.name != "call_dps_library" or not isinstance(value.args[0], ir.ExternFunc):
            raise GraphError(
                f"operator {value.op.name!r} has no tensor program and no library",
                code="BW410",
                help=_OTHERWISE.get(value.op.name),
            )
        views: list[ir.Expr] = []
        for operand in (*tir_args(value), *outs):
            buffer = self._buffer_like(operand, f"view{len(self.declared)}")
            self.declared.append((buffer, self._pointer(operand)))
            zeros = tuple(ir.const(0, "int64") for _ in buffer.shape)
            views.append(ir.Call("tensor", (ir.BufferLoad(buffer, zeros),), _HANDLE))
        scalars = [_scalar_argument(v) for v in value.attrs.values()]
        args = (ir.StringImm(value.args[0].name), *views, *scalars)
        self.steps.append(ir.Evaluate(ir.Call("call_packed", args, ir.dtype_of("int32"))))

    def _check_cast(self, binding: ir.MatchCast, source: ir.GraphExpr) -> None:
        """Emit assertions for the dimensions of a match_cast that are not proved equal.

        All sizes are known when the function begins, and the checks come before everything else:
        the value may be computed in memory of the size that the pattern states, such as that of a
        result.

        Types and ranks need no check: deduction knows them for every value that can be compiled.
        """
        expected, actual = _sizes(binding.pattern), _sizes(source.info)
        if expected is None:
            return
        if actual is None:
            raise GraphError(
                f"match_cast of {binding.var.name}: the shape of the value is unknown",
                code="BW407",
            )
        for axis, (wanted, size) in enumerate(zip(expected, actual, strict=True)):
            if not self.analyzer.prove_equal(wanted, size):
                self.checks.append(_cast_assertion(binding, axis, wanted, size))

    def _copy(self, value: ir.GraphExpr, out: ir.Buffer) -> None:
        """Copy a result that is a parameter, constant, view or repeated value to its buffer."""
        program = Program(f"{self.name}_copy{len(self.extra)}")
        read = program.param("source", out.shape, out.dtype)
        result = program.compute("out", out.shape, lambda *i: read[i])
        func, symbols = with_scalar_symbols(program.finish([result], {IS_PRIVATE: True}))
        self.extra[func.name] = func
        slot = _Slot(out, info=value.info)
        self.pointers[slot] = self.pointers[_Slot(out)]
        self._call(func.name, func, [value, slot], tuple(symbols))


class _Slot(ir.GraphExpr, frozen=True, eq=False):
    """Represents a result buffer as a graph value; slots of one buffer are equal."""

    buffer: ir.Buffer

    def __hash__(self) -> int:
        return hash(self.buffer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slot) and other.buffer is self.buffer


def _scalar_argument(value: Any) -> ir.Expr:
    """Convert an attribute to a packed argument: floats as float64, integers as int64."""
    if isinstance(value, str):
        return ir.StringImm(value)
    if isinstance(value, float):
        return ir.const(value, "float64")
    return ir.as_expr(value, ir.dtype_of("int64"))


def _cast_assertion(cast: ir.MatchCast, axis: int, wanted: ir.Expr, size: ir.Expr) -> ir.AssertStmt:
    """Assert that a size equals the one that a match_cast states."""
    condition = ir.is_const_int(wanted, 1) and size.dtype.is_bool
    holds = size if condition else ir.compare(ir.EQ, wanted, size)
    if cast.message:
        return ir.AssertStmt(holds, cast.message, cast.values)
    said: list[str] = []
    values: list[ir.Expr] = []
    for part in (size, wanted):
        text = dims_text(part).replace("%", "%%")
        if part.dtype.is_int and not isinstance(part, ir.IntImm):
            text += " = %d"
            values.append(part)
        said.append(text)
    message = (
        f"BW704: match_cast of {cast.var.name}: dimension {axis} is {said[0]}, which is not "
        f"{said[1]}\nhelp: pass arguments of sizes that agree"
    )
    return ir.AssertStmt(holds, message, tuple(values))


_OTHERWISE = {
    "call_tir_inplace": "use call_tir with a program that writes to a separate result",
    "call_packed": "use call_dps_packed, which receives the memory of its result",
    "call_pure_packed": "use call_dps_packed, which receives the memory of its result",
}


def _sizes(info: ir.Info | None) -> tuple[ir.Expr, ...] | None:
    """The sizes in the annotation of a tensor, shape or scalar."""
    if isinstance(info, ir.TensorInfo):
        return info.shape
    if isinstance(info, ir.ShapeInfo):
        return info.values
    return (info.value,) if isinstance(info, ir.PrimInfo) and info.value is not None else None


def _shape(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


@graph_pass
def lower_host(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Lower all graph functions; store constants as attributes and memory plans as an option."""
    functions = dict(module.functions)
    constants: dict[str, Any] = dict(module.attrs.get("constants", {}))
    plans: dict[str, ArenaPlan] = {}
    for name, function in graph_functions(module):
        host = _Host(name, function, module, ctx.size_checks.get(name, ()))
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
    """Whether a program is a view and never called: the memory plan aliases it instead."""
    if not isinstance(func, ir.PrimFunc) or not func.attrs.get(IS_VIEW):
        return False
    calls = [
        b.value
        for _, f in graph_functions(module)
        for b in f.bindings
        if isinstance(b, ir.VarBinding) and tir_callee(b.value) == name
    ]
    return all(is_view(c, module) for c in calls)
