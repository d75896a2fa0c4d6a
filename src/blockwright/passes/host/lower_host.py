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
the memory of results, at the planned offsets (of sizes known only at run time: see `levels`).
Values are passed as pointers, not buffers: nested declarations of hundreds would make a deep tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer
from blockwright.graph.call_graph import (
    callees,
    closure_targets,
    directly_called,
    recursive_functions,
)
from blockwright.graph.loops import is_loop
from blockwright.graph.updates import overwritten_arguments
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.copies import copy_call
from blockwright.passes.host.cast_checks import cast_checks, depth_check, narrowed
from blockwright.passes.host.constant_table import ConstantTable
from blockwright.passes.host.in_place import marked
from blockwright.passes.host.levels import (
    Level,
    arena,
    lent_checks,
    loaded,
    nested,
    result_memory,
    symbol_checks,
    unknown_result,
)
from blockwright.passes.host.liveness import is_only_view
from blockwright.passes.host.loop_steps import loop_steps
from blockwright.passes.host.objects import ObjectSteps, is_object_call, other_kind, scalar_argument
from blockwright.passes.host.plan_memory import ArenaPlan
from blockwright.passes.host.plan_storage import current_plan
from blockwright.passes.host.run_time_sizes import Load
from blockwright.passes.host.signature import (
    HostResults,
    HostSignature,
    ResultSlot,
    address,
    is_boxed,
    leaves,
    result_tree,
)
from blockwright.passes.host.size_order import exact_bytes
from blockwright.passes.host.updated_results import updated_results
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
        # checks are emitted before all other statements that know the same symbols
        self.checks: list[ir.Stmt] = [*signature.checks, *checks]
        self.function = signature.function
        self.module = module
        self.analyzer: Analyzer = function_analyzer(self.function)
        self.plan = plan
        self.sizes = plan.sizes
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
        self.memory: dict[ir.GraphExpr, ir.Buffer] = {}  # bytes of tensors that hold other values
        self.constants = constants
        self.extra: dict[str, ir.PrimFunc] = {}
        self.arenas = {0: arena("arena", self.plan.total)}
        self.arenas |= {k: arena(f"arena{k}", size) for k, size in self.plan.late.items()}
        self.levels: list[Level] = []
        self._begin(())
        self.results, self.outputs = self._outputs()

    def _begin(self, lets: Sequence[tuple[ir.Var, ir.Expr]]) -> None:
        """Begin a level: what follows knows the variables."""
        self.levels.append(Level(tuple(lets)))
        self.steps, self.declared = self.levels[-1].steps, self.levels[-1].declared

    def _fresh(self, name: str) -> str:
        return f"{name}{sum(len(level.declared) for level in self.levels)}"

    def build(self) -> ir.PrimFunc:
        for binding in self.function.bindings:
            self._binding(binding)
        for value, place in self.outputs:
            if isinstance(place, ir.Var):
                if self._pointer(value) is not place:
                    self.objects.copy(place, self._pointer(value))
            elif self.pointers.get(value) is not self.pointers[ResultSlot(place)]:
                self._copy(value, place)
        used = {place.level for place in self.plan.place.values() if place.result is None}
        for number, level in enumerate(self.levels):
            level.checks += [c for c in self.checks if self.sizes.level(c) == number]
            if number in used:
                level.arena = self.arenas[number]
        first = depth_check(self.signature.title, self.signature.depth)
        body = ir.seq([*first, self.objects.around(nested(self.levels))])
        private = self.signature.depth is not None or "global_symbol" not in self.function.attrs
        return self.signature.program(body, private)

    def entry(self, name: str) -> ir.PrimFunc:
        """The program that callers outside call if this one is recursive: it passes depth 0."""
        around = HostSignature(name, self.function, recursive=False)
        around.add_outputs([value for value, _ in self.outputs])
        call = around.forwarded(self.signature)
        return around.program(call, "global_symbol" not in self.function.attrs)

    def _outputs(self) -> tuple[HostResults, list[tuple[ir.GraphExpr, ir.Buffer | ir.Var]]]:
        """Result values with their buffers or slots, without parameters updated in place."""
        result = self.function.body.body
        values = leaves(result, self.plan.fields)
        updated = updated_results(self.function, self.plan, values) if self.public else {}
        updated = {k: self.signature.argument_position(param) for k, param in updated.items()}
        fresh = [value for k, value in enumerate(values) if k not in updated]
        late = [k for k, v in enumerate(fresh) if self.sizes.level(*(_sizes(v) or ()))]
        self.signature.add_outputs(fresh, late)
        outputs: list[tuple[ir.GraphExpr, ir.Buffer | ir.Var]] = []
        buffers = iter(self.signature.outputs)
        for position, value in enumerate(fresh):
            slots = self.signature.slots
            place = slots[position] if position in slots else next(buffers)
            pointer = place if isinstance(place, ir.Var) else address(place)
            if isinstance(place, ir.Buffer):
                if place in self.signature.late:
                    pointer = ir.Var(f"{place.name}_data", _HANDLE)
                self.pointers[ResultSlot(place)] = pointer
            root = self.plan.root(value)
            if root in self.plan.results and root not in self.pointers:
                self.pointers[root] = pointer  # computed in place, without a copy
            outputs.append((value, place))
        tree, _ = result_tree(result.info)
        every = tuple(self.signature.outputs)
        return HostResults(tree, tuple(updated.items()), every), outputs

    def _binding(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        value = binding.value
        if isinstance(binding.var.info, (ir.ShapeInfo, ir.PrimInfo)):
            if binding.var in self.sizes.loads:
                self._load(self.sizes.loads[binding.var])
            elif isinstance(binding, ir.MatchCast):
                self._check_cast(binding, value)
            elif isinstance(value, ir.GraphCall) and is_object_call(value):
                self.objects.call(value, binding.var, self.signatures)
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
        if not isinstance(value, (ir.GraphCall, ir.If)) and binding.var in self.plan.fields:
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
            self.call_function(value, outs)
        elif isinstance(value, ir.GraphCall) and is_loop(value):
            loop_steps(self, value, outs)
        elif isinstance(value, ir.GraphCall) and is_object_call(value):
            self.objects.call(value, binding.var, self.signatures)
        elif isinstance(value, ir.GraphCall) and isinstance(value.op, ir.OpRef):
            self._library(value, outs)
        else:
            raise GraphError(
                f"{binding.var.name}: this expression cannot be compiled: {value!r}", code="BW410"
            )

    def _load(self, load: Load) -> None:
        """Begin the level that knows symbols loaded from a tensor; late results of it too."""
        buffer = self.signature.buffer_like(load.source, f"sizes{len(self.levels)}")
        self.declared.append((buffer, self._pointer(load.source)))
        self._begin([(symbol, loaded(buffer, at)) for symbol, at in load.symbols.items()])
        level, number = self.levels[-1], len(self.levels) - 1
        for symbol in load.symbols:
            level.checks += symbol_checks(symbol, self.sizes.bounds(symbol), load.limits)
        for out in self.signature.outputs:
            if out in self.signature.late and self.sizes.level(*out.shape) == number:
                self._late_result(out, level)

    def _late_result(self, out: ir.Buffer, level: Level) -> None:
        """Allocate a result, or compare the memory lent for it with the size."""
        handle, pointer = self.signature.outputs[out], self.pointers[ResultSlot(out)]
        assert isinstance(pointer, ir.Var)
        position = list(self.signature.outputs).index(out)
        label = f"result {position + 1} `{out.name}` of {self.name}"
        level.checks += lent_checks(handle, label, out.shape)
        level.results.append((pointer, result_memory(handle, out)))

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
            saved, self.steps = self.steps, list[ir.Stmt]()
            self.call_function(branch_call(branch), outs)
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
        return self.flag(value)

    def flag(self, value: ir.GraphExpr) -> ir.Expr:
        """The element of a tensor of one bool."""
        buffer = self.signature.buffer_like(value, self._fresh("flag"))
        self.declared.append((buffer, self._pointer(value)))
        return ir.BufferLoad(buffer, ())

    def call_function(self, call: ir.GraphCall, outs: list[ir.GraphExpr]) -> None:
        """Call another host program; a recursive one also takes its depth."""
        name = called_function(call, self.module)
        assert name is not None
        callee = self.signatures[name]
        pairs = zip(callee.function.params, call.args, strict=True)
        tensors = [arg for param, arg in pairs if param in callee.buffers]
        scalars = list(callee.scalars_of(call.args, self._pointer))
        checks = callee.range_checks(call.args, self._pointer)
        self.steps += [c for c in checks if not self.analyzer.prove(c.condition)]
        if callee.depth is not None:
            scalars.append(self._inner_depth())
        if any(is_boxed(out.info) != (k in callee.slots) for k, out in enumerate(outs)):
            raise other_kind(self.signature.title)
        scalars += [self._pointer(outs[position]) for position in callee.slots]
        fresh = [out for k, out in enumerate(outs) if k not in callee.slots]
        self._call(callee.name, callee.program(_NOTHING, True), [*tensors, *fresh], tuple(scalars))

    def _planned(self, var: ir.GraphVar) -> ir.Expr:
        """Address of a value in the arena, or in the memory of a result; a slot of an object."""
        if is_boxed(var.info):
            return self.objects.slot(var.name)
        place = self.plan.place.get(var)
        if place is None:
            raise GraphError(f"{var.name} has no planned storage", code="BW414")
        inside = place.result
        memory = self.arenas[place.level] if inside is None else self.bytes_of(inside)
        return ir.Call("address_of", (ir.BufferLoad(memory, (place.offset,)),), _HANDLE)

    def bytes_of(self, value: ir.GraphExpr) -> ir.Buffer:
        """The memory of a tensor as bytes."""
        if value not in self.memory:
            size = self.analyzer.simplify(exact_bytes(value.tensor_info))
            name = value.name if isinstance(value, (ir.GraphVar, ir.Constant)) else ""
            memory = ir.Buffer(f"{name or 'value'}_memory", ir.dtype_of("uint8"), (size,))
            self.declared.append((memory, self._pointer(value)))
            self.memory[value] = memory
        return self.memory[value]

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
        numbers = (*convention.scalars, *convention.symbols)
        order = [narrowed(v, bound[v], self.analyzer, self.steps) for v in numbers]
        args = (ir.StringImm(name), *pointers, *order)
        self.steps.append(ir.Evaluate(ir.Call("call_global", args, ir.dtype_of("int32"))))

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
        buffer = self.signature.buffer_like(operand, self._fresh("view"))
        self.declared.append((buffer, self._pointer(operand)))
        return ir.tensor_of(buffer)

    def _inner_depth(self) -> ir.Expr:
        """The number of active calls in a function that this one calls."""
        mine = self.signature.depth
        return ir.const(0, "int32") if mine is None else mine + ir.const(1, mine.dtype)

    def _check_cast(self, binding: ir.MatchCast, source: ir.GraphExpr) -> None:
        """Check a match_cast before all that knows its sizes: the value may be computed in memory
        of the size that the pattern states, such as that of a result. An object is checked here."""
        if is_boxed(source.info) and not isinstance(binding.pattern, ir.ObjectInfo):
            self.objects.check(self._pointer(source), binding.pattern, binding.var.name)
            return
        self.checks += cast_checks(binding, source.info, self.analyzer)

    def _copy(self, value: ir.GraphExpr, out: ir.Buffer) -> None:
        """Copy a result that is a parameter, constant, view or repeated value to its buffer."""
        slot = ResultSlot(out, info=value.info)
        self.pointers[slot] = self.pointers[ResultSlot(out)]
        self.copy_value(value, slot)

    def copy_value(self, value: ir.GraphExpr, out: ir.GraphExpr) -> None:
        """Copy the elements of a tensor to the memory of another one of its size."""
        copy = copy_call(value, value.tensor_info, self._add_copy)
        self._call(self._copy_name, self.extra[self._copy_name], [value, out], tir_symbols(copy))

    def _add_copy(self, _base: str, func: ir.PrimFunc) -> str:
        name = self._copy_name = f"{self.name}_copy{len(self.extra)}"
        attrs = {**func.attrs, "global_symbol": name, IS_PRIVATE: True}
        self.extra[name] = func.replace(attrs=attrs)
        return name


def _sizes(value: ir.GraphExpr) -> tuple[ir.Expr, ...] | None:
    """The sizes of a result, which may be of any kind here; None if they are not known."""
    return value.info.shape if isinstance(value.info, ir.TensorInfo) else None


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
    for name in recursive | directly_called(module):  # whose callers know of no late results
        if signatures[name].late:
            raise unknown_result(signatures[name].title)
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
