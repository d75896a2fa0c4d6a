"""BuildRunnableModule: lower a graph function to a host program.

Before::

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        a = R.call_tir(cls.exp, (x,), R.Tensor((n,), "float32"))
        b = R.call_tir(cls.exp, (a,), R.Tensor((n,), "float32"))
        return b

    @T.prim_func(private=True)
    def exp(x_handle: T.handle, y_handle: T.handle):
        n = T.int64()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for i in range(n):
            with T.block("y"):
                v = T.axis.spatial(n, i)
                y[v] = T.exp(x[v])

After::

    I.module_attrs({"constants": {}})
    @T.prim_func
    def main(x_handle: T.handle, out_handle: T.handle):
        T.func_attr({"num_outputs": 1, "tir.is_host": True})
        n = T.int64()
        x = T.match_buffer(x_handle, (n,), "float32")
        out = T.match_buffer(out_handle, (n,), "float32")
        b_memory = T.decl_buffer((n * 4,), "uint8", data=T.address_of(out[0]))
        T.call_global("exp", T.address_of(x[0]), T.address_of(b_memory[0]), n)
        T.call_global("exp", T.address_of(b_memory[0]), T.address_of(out[0]), n)

    @T.prim_func(private=True)
    def exp(x_handle: T.handle, y_handle: T.handle):
        T.func_attr({"tir.in_place": {"1": 0}})
        n = T.int64()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for i in range(n):
            with T.block("y"):
                v = T.axis.spatial(n, i)
                y[v] = T.exp(x[v])

Here b overwrites a, so the plan computes both in the memory of the result, and the kernel is marked
for it: its parameter 1 may be in the memory of parameter 0.

The host program is a tensor program, so the printer, interpreter and code generator handle it
unchanged. Shape arithmetic is inline. Outputs are the last parameters ("num_outputs"); the entry
allocates them unless the caller provides memory. Other values live in one arena per call, or in
the memory of results, at the planned offsets. Values are passed as pointers, not buffers: a model
has hundreds, and nested declarations would make a deep tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer
from blockwright.graph.calling_convention import calling_convention
from blockwright.graph.updates import overwritten_arguments
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.copies import copy_call
from blockwright.passes.functions.call_graph import callees, closure_targets, recursive_functions
from blockwright.passes.host.cast_checks import cast_checks
from blockwright.passes.host.constant_table import ConstantTable
from blockwright.passes.host.in_place import marked
from blockwright.passes.host.liveness import is_only_view
from blockwright.passes.host.objects import ObjectSteps, is_object_call, scalar_argument
from blockwright.passes.host.plan_memory import ArenaPlan
from blockwright.passes.host.plan_storage import current_plan
from blockwright.passes.host.signature import (
    HostResults,
    HostSignature,
    address,
    is_object,
    leaves,
    result_tree,
)
from blockwright.passes.host.size_order import ALIGNMENT, exact_bytes
from blockwright.passes.rewrite import (
    branch_call,
    called_function,
    graph_functions,
    symbol_values,
    tir_args,
    tir_callee,
    tir_symbols,
)
from blockwright.support import GraphError

MAX_DEPTH = 1000
"""Calls of a recursive function that may be active at once; each uses stack of the thread."""

_HANDLE = ir.dtype_of("handle")
_NOTHING = ir.Evaluate(ir.const(0, "int32"))


class _Host:
    """Builds the host program of one graph function.

    Arguments:
        signatures: of all graph functions of the module.
        public: whether callers outside the module call it, and none inside.
        constants: of the module.
        plan: where the values of the function are.
    """

    def __init__(
        self,
        signature: HostSignature,
        module: ir.IRModule,
        signatures: Mapping[str, HostSignature],
        public: bool,
        constants: ConstantTable,
        plan: ArenaPlan,
        checks: Sequence[ir.Stmt] = (),
    ) -> None:
        self.signature, self.signatures, self.public = signature, signatures, public
        self.name = signature.name
        # checks of sizes are emitted before all other statements
        self.checks: list[ir.Stmt] = [*signature.checks, *checks]
        self.function = signature.function
        self.module = module
        self.analyzer: Analyzer = function_analyzer(self.function)
        self.plan = plan
        self.pointers: dict[ir.GraphExpr, ir.Expr] = {
            param: address(buffer) for param, buffer in signature.buffers.items()
        }
        self.pointers |= signature.objects
        self.objects = ObjectSteps(
            lambda step: self.steps.append(step),
            self._pointer,
            self._view,
            self.plan.fields,
            self._inner_depth(),
        )
        self.memory: dict[ir.GraphVar, ir.Buffer] = {}  # bytes of results that hold other values
        self.declared: list[tuple[ir.Buffer, ir.Expr]] = []
        self.steps: list[ir.Stmt] = []
        self.constants = constants
        self.extra: dict[str, ir.PrimFunc] = {}
        self.results, self.outputs = self._outputs()
        arena_type = ir.dtype_of("uint8")
        empty = ir.is_const_int(self.plan.total, 0)  # empty values need an address too
        size = ir.const(ALIGNMENT, "int64") if empty else self.plan.total
        self.arena = ir.Buffer("arena", arena_type, (size,), data_alignment=ALIGNMENT)

    def build(self) -> ir.PrimFunc:
        for binding in self.function.bindings:
            self._binding(binding)
        for value, place in self.outputs:
            if isinstance(place, ir.Var):
                if self._pointer(value) is not place:
                    self.objects.copy(place, self._pointer(value))
            elif self.pointers.get(value) is not self.pointers[_Slot(place)]:
                self._copy(value, place)
        body = ir.seq(self.steps) if self.steps else ir.Evaluate(ir.const(0, "int32"))
        for buffer, source in reversed(self.declared):
            body = ir.DeclBuffer(buffer, source, body)
        if any(place.result is None for place in self.plan.place.values()):
            body = ir.Allocate(self.arena, body)
        body = self.objects.around(body)
        body = ir.seq([*self._depth_check(), *self.checks, body])
        private = self.signature.depth is not None or "global_symbol" not in self.function.attrs
        return self.signature.program(body, private)

    def entry(self, name: str) -> ir.PrimFunc:
        """The program that callers outside call if this one is recursive: it passes depth 0."""
        around = HostSignature(name, self.function, recursive=False)
        around.add_outputs([value for value, _ in self.outputs])
        call = around.forwarded(self.signature)
        return around.program(call, "global_symbol" not in self.function.attrs)

    def _depth_check(self) -> list[ir.Stmt]:
        depth = self.signature.depth
        if depth is None:
            return []
        message = (
            f"BW723: {self.function.name} calls itself more than {MAX_DEPTH} times deep\n"
            "help: make sure that the recursion ends, or use a loop in a tensor program"
        )
        return [ir.AssertStmt(depth < ir.const(MAX_DEPTH, depth.dtype), message, ())]

    def _outputs(self) -> tuple[HostResults, list[tuple[ir.GraphExpr, ir.Buffer | ir.Var]]]:
        """Result values with their buffers or slots, without parameters updated in place."""
        result = self.function.body.body
        values = leaves(result, self.plan.fields)
        updated = self._updated(values)
        fresh = [value for k, value in enumerate(values) if k not in updated]
        self.signature.add_outputs(fresh)
        outputs: list[tuple[ir.GraphExpr, ir.Buffer | ir.Var]] = []
        buffers = iter(self.signature.outputs)
        for position, value in enumerate(fresh):
            slots = self.signature.slots
            place = slots[position] if position in slots else next(buffers)
            pointer = place if isinstance(place, ir.Var) else address(place)
            if isinstance(place, ir.Buffer):
                self.pointers[_Slot(place)] = pointer
            root = self.plan.root(value)
            if root in self.plan.results and root not in self.pointers:
                self.pointers[root] = pointer  # computed in place, without a copy
            outputs.append((value, place))
        tree, _ = result_tree(result.info)
        return HostResults(tree, tuple(updated.items())), outputs

    def _updated(self, values: Sequence[ir.GraphExpr]) -> dict[int, int]:
        """Results that are parameters updated in place: position → position of the parameter."""
        written = {
            self.plan.root(tir_args(b.value)[index])
            for b in self.function.bindings
            if isinstance(b, ir.VarBinding)
            for index in overwritten_arguments(b.value).values()
        }
        result: dict[int, int] = {}
        for position, value in enumerate(values):
            root = self.plan.root(value)
            if not self.public or root not in written or root not in self.function.params:
                continue
            if ir.structural_equal(_shape(value), _shape(root)):
                result[position] = self._argument_position(root)
        return result

    def _argument_position(self, param: ir.GraphExpr) -> int:
        """The position of a tensor parameter among the arguments of the host program."""
        buffer = next(b for p, b in self.signature.buffers.items() if p is param)
        return [v.name for v in self.signature.params].index(f"{buffer.name}_handle")

    def _binding(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        value = binding.value
        if isinstance(binding.var.info, (ir.ShapeInfo, ir.PrimInfo)):
            if isinstance(binding, ir.MatchCast):
                self._check_cast(binding, value)
            return  # its annotation holds the value: no memory needed
        update = bool(overwritten_arguments(value))
        if isinstance(binding, ir.MatchCast) and binding.var not in self.plan.alias:
            if binding.var not in self.pointers:
                self.pointers[binding.var] = self._planned(binding.var)
            self.objects.load(binding.var, self._pointer(value), binding.var.name)
            return
        if binding.var in self.plan.alias and not update:
            source = self.plan.alias[binding.var]
            self.pointers[binding.var] = self._pointer(source)
            if isinstance(binding, ir.MatchCast):
                self._check_cast(binding, source)
            return
        named = (ir.TupleExpr, ir.GraphVar, ir.TupleGetItem)
        if isinstance(value, named) and binding.var in self.plan.fields:
            return  # a tuple of existing values
        outs = leaves(binding.var, self.plan.fields)
        for out in outs:
            if out not in self.pointers and isinstance(out, ir.GraphVar):
                aliased = self.plan.alias.get(out)
                known = self._planned(out) if aliased is None else self._pointer(aliased)
                self.pointers[out] = known
        name = tir_callee(value)
        if update:
            self._update(value, outs)
        elif name is not None:
            self._call(name, self.module[name], [*tir_args(value), *outs], tir_symbols(value))
        elif isinstance(value, ir.If):
            self._branch(value, outs)
        elif called_function(value, self.module) is not None:
            assert isinstance(value, ir.GraphCall)
            self._function_call(value, outs)
        elif isinstance(value, ir.GraphCall) and is_object_call(value):
            self.objects.call(value, binding.var, self.signatures)
        elif isinstance(value, ir.GraphCall) and isinstance(value.op, ir.OpRef):
            self._library(value, outs)
        else:
            raise GraphError(
                f"{binding.var.name}: this expression cannot be compiled: {value!r}", code="BW410"
            )

    def _update(self, value: ir.GraphExpr, outs: list[ir.GraphExpr]) -> None:
        """Call a program that overwrites arguments; only its other results are passed."""
        assert isinstance(value, ir.GraphCall)
        assert isinstance(value.args[0], ir.GlobalVar)
        fresh = [out for k, out in enumerate(outs) if k not in overwritten_arguments(value)]
        name = value.args[0].name
        self._call(name, self.module[name], [*tir_args(value), *fresh], tir_symbols(value))

    def _branch(self, value: ir.If, outs: list[ir.GraphExpr]) -> None:
        """Emit a branch between two calls, which write the same results."""
        condition = self._condition(value.condition)
        parts: list[ir.Stmt] = []
        for branch in (value.then_branch, value.else_branch):
            saved, self.steps = self.steps, []
            self._function_call(branch_call(branch), outs)
            parts.append(ir.seq(self.steps))
            self.steps = saved
        self.steps.append(ir.IfThenElse(condition, *parts))

    def _condition(self, value: ir.GraphExpr) -> ir.Expr:
        """The condition of a branch: a size expression, or the element of a tensor."""
        if isinstance(value.info, ir.PrimInfo):
            if value.info.value is None:
                raise GraphError(
                    "the condition of an `if` has no known value",
                    code="BW410",
                    help="use a tensor of one bool, or an expression of symbols",
                )
            return value.info.value
        buffer = self.signature.buffer_like(value, f"flag{len(self.declared)}")
        self.declared.append((buffer, self._pointer(value)))
        return ir.BufferLoad(buffer, ())

    def _function_call(self, call: ir.GraphCall, outs: list[ir.GraphExpr]) -> None:
        """Call another host program; a recursive one also takes its depth."""
        name = called_function(call, self.module)
        assert name is not None
        callee = self.signatures[name]
        pairs = zip(callee.function.params, call.args, strict=True)
        tensors = [arg for param, arg in pairs if param in callee.buffers]
        scalars = list(callee.scalars_of(call.args, self._pointer))
        if callee.depth is not None:
            scalars.append(self._inner_depth())
        scalars += [self._pointer(outs[position]) for position in callee.slots]
        fresh = [out for k, out in enumerate(outs) if k not in callee.slots]
        self._call(callee.name, callee.program(_NOTHING, True), [*tensors, *fresh], tuple(scalars))

    def _planned(self, var: ir.GraphVar) -> ir.Expr:
        """Address of a value in the arena, or in the memory of a result; a slot of an object."""
        if is_object(var.info):
            return self.objects.slot(var.name)
        place = self.plan.place.get(var)
        if place is None:
            raise GraphError(f"{var.name} has no planned storage", code="BW414")
        memory = self.arena if place.result is None else self._bytes_of(place.result)
        return ir.Call("address_of", (ir.BufferLoad(memory, (place.offset,)),), _HANDLE)

    def _bytes_of(self, result: ir.GraphVar) -> ir.Buffer:
        """The memory of a result as bytes."""
        if result not in self.memory:
            size = self.analyzer.simplify(exact_bytes(result.tensor_info))
            memory = ir.Buffer(f"{result.name}_memory", self.arena.dtype, (size,))
            self.declared.append((memory, self.pointers[result]))
            self.memory[result] = memory
        return self.memory[result]

    def _pointer(self, value: ir.GraphExpr) -> ir.Expr:
        result = self.pointers.get(value)
        if result is None and isinstance(value, ir.Constant):
            name = self.constants.name_of(value.data, self.name)
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
            )
        views: list[ir.Expr] = []
        for operand in (*tir_args(value), *outs):
            views.append(self._view(operand))
        scalars = [scalar_argument(v) for v in value.attrs.values()]
        args = (ir.StringImm(value.args[0].name), *views, *scalars)
        self.steps.append(ir.Evaluate(ir.Call("call_packed", args, ir.dtype_of("int32"))))

    def _view(self, operand: ir.GraphExpr) -> ir.Expr:
        """A tensor as an argument of a packed function."""
        buffer = self.signature.buffer_like(operand, f"view{len(self.declared)}")
        self.declared.append((buffer, self._pointer(operand)))
        zeros = tuple(ir.const(0, "int64") for _ in buffer.shape)
        return ir.Call("tensor", (ir.BufferLoad(buffer, zeros),), _HANDLE)

    def _inner_depth(self) -> ir.Expr:
        """The number of active calls in a function that this one calls."""
        mine = self.signature.depth
        return ir.const(0, "int32") if mine is None else mine + ir.const(1, mine.dtype)

    def _check_cast(self, binding: ir.MatchCast, source: ir.GraphExpr) -> None:
        """Check a match_cast before everything else.

        All sizes are known when the function begins, and the value may be computed in memory of the
        size that the pattern states, such as that of a result.
        """
        self.checks += cast_checks(binding, source.info, self.analyzer)

    def _copy(self, value: ir.GraphExpr, out: ir.Buffer) -> None:
        """Copy a result that is a parameter, constant, view or repeated value to its buffer."""
        slot = _Slot(out, info=value.info)
        self.pointers[slot] = self.pointers[_Slot(out)]
        copy = copy_call(value, value.tensor_info, self._add_copy)
        self._call(self._copy_name, self.extra[self._copy_name], [value, slot], tir_symbols(copy))

    def _add_copy(self, _base: str, func: ir.PrimFunc) -> str:
        name = self._copy_name = f"{self.name}_copy{len(self.extra)}"
        attrs = {**func.attrs, "global_symbol": name, IS_PRIVATE: True}
        self.extra[name] = func.replace(attrs=attrs)
        return name


class _Slot(ir.GraphExpr, frozen=True, eq=False):
    """Represents a result buffer as a graph value; slots of one buffer are equal."""

    buffer: ir.Buffer

    def __hash__(self) -> int:
        return hash(self.buffer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slot) and other.buffer is self.buffer


def _shape(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


@graph_pass
def lower_host(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Lower all graph functions; store constants as attributes and memory plans as an option."""
    functions = dict(module.functions)
    constants = ConstantTable(module.attrs.get("constants", {}))
    plans: dict[str, ArenaPlan] = {}
    results: dict[str, HostResults] = {}
    recursive = recursive_functions(module, dynamic=True)
    called = {name for _, f in graph_functions(module) for name in callees(f, module)}
    signatures = {
        name: HostSignature(name, f, name in recursive) for name, f in graph_functions(module)
    }
    for name in closure_targets(module):
        signatures[name].closure = True
    hosts = {
        name: _Host(
            each,
            module,
            signatures,
            name not in called,
            constants,
            current_plan(each.function, module, ctx.memory_plans.get(name)),
            ctx.size_checks.get(name, ()),
        )
        for name, each in signatures.items()
    }
    for name, host in hosts.items():
        functions[host.signature.name] = host.build()
        if name in recursive and "global_symbol" in host.function.attrs:
            functions[name] = host.entry(name)
        elif name in recursive:
            del functions[name]
        functions.update(host.extra)
        plans[name], results[name] = host.plan, host.results
        for kernel, places in host.plan.in_place.items():
            called_kernel = functions[kernel]
            assert isinstance(called_kernel, ir.PrimFunc)
            functions[kernel] = marked(called_kernel, places)
    views = [n for n, f in functions.items() if is_only_view(n, f, module)]
    for name in views:
        del functions[name]
    ctx.options["memory_plans"], ctx.options["host_results"] = plans, results
    return module.replace(
        functions=functions, attrs={**module.attrs, "constants": constants.arrays}
    )
