"""Well-formedness checks of graph functions: scoping, single binding, valid annotations."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

from blockwright import ir
from blockwright.analysis.sizes import divides_by_zero
from blockwright.graph.call_graph import function_name
from blockwright.graph.check_annotations import Deduced
from blockwright.graph.deduce import STATED
from blockwright.graph.devices import declared_devices, device_problem
from blockwright.graph.loads import LOADS
from blockwright.graph.loops import LOOPS
from blockwright.graph.relate import SIZES, impossible_size, info_text
from blockwright.graph.updates import update_problems
from blockwright.ops.device import DESTINATION
from blockwright.ops.row import dims_text
from blockwright.ops.table import OPERATORS
from blockwright.support import Diagnostic, ValidationError
from blockwright.support.stack import deep

_GRAPH_OPS = STATED | LOADS | LOOPS | {"shape_of"}


def expressions_in(attribute: Any) -> list[ir.Expr]:
    """Tensor-level expressions in a call attribute or in its elements."""
    items: list[Any] = [attribute]
    if isinstance(attribute, (list, tuple)):
        items = list(cast("Iterable[Any]", attribute))
    return [item for item in items if isinstance(item, ir.Expr)]


class _Checker:
    def __init__(self, module: ir.IRModule | None, kind: str | None = None) -> None:
        self.module, self.kind = module, kind
        self.devices = declared_devices(module)
        self.bound: set[ir.GraphVar] = set()  # in any scope: a variable is bound only once
        self.visible: set[ir.GraphVar] = set()
        self.symbols: set[ir.Var] = set()
        self._seen: set[ir.Info] = set()
        self.problems: list[Diagnostic] = []

    def problem(self, code: str, message: str, node: ir.Node, help: str | None = None) -> None:
        self.problems.append(Diagnostic(code, message, node.span, help))

    @contextmanager
    def scope(self) -> Generator[None]:
        """A scope: variables and symbols bound inside are not visible after it."""
        before = set(self.visible), set(self.symbols)
        try:
            yield
        finally:
            self.visible, self.symbols = before

    def attributes(self, function: ir.GraphFunction) -> None:
        """Check the values of function attributes."""
        for code, text, help in ir.attribute_problems(function.attrs):
            name = function_name(function, self.module)
            self.problem(code, f"{name}: {text}", function, help)

    def function(self, function: ir.GraphFunction) -> None:
        with self.scope():
            around = set(self.symbols)
            for param in function.params:
                self.define(param)
                if param.info is None:
                    self.problem("BW221", f"parameter {param.name} has no annotation", param)
                self.symbols.update(ir.parameter_symbols(param.info))
            called = [p.name for p in function.params]
            for name in sorted({n for n in called if called.count(n) > 1}):
                self.problem(
                    "BW253",
                    f"two parameters are called {name}",
                    function,
                    "arguments can be passed by name; rename one",
                )
            names = [s.name for s in self.symbols]
            own = {s.name for s in self.symbols if s not in around}
            for name in sorted({n for n in own if names.count(n) > 1}):
                self.problem(
                    "BW222",
                    f"two different symbols are both called {name}",
                    function,
                    "bounds are declared by name; rename one",
                )
            for param in function.params:
                self.info(param.info, param)
            self.sequence(function.body)
            self.info(function.ret_info, function)

    def sequence(self, body: ir.SeqExpr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                self.binding(binding, block.dataflow)
        self.value(body.body)

    def binding(self, binding: ir.Binding, dataflow: bool) -> None:
        if isinstance(binding, ir.VarBinding):
            self.value(binding.value)
            self.info(binding.var.info, binding)
            if dataflow and isinstance(binding.value, ir.If):
                self.problem("BW223", "control flow inside a dataflow block", binding)
            self.define(binding.var)
        elif isinstance(binding, ir.MatchCast):
            self.value(binding.value)
            self.symbols.update(ir.symbolic_vars(binding.pattern))
            self.info(binding.pattern, binding)
            self.expressions(binding.values, binding)
            problem = ir.message_problem(binding.message, binding.values)
            if problem is not None:
                name = binding.var.name
                self.problem(problem[0], f"match_cast of {name}: {problem[1]}", binding, problem[2])
            self.info(binding.var.info, binding)
            self.define(binding.var)

    def define(self, variable: ir.GraphVar) -> None:
        if variable in self.bound:
            self.problem("BW224", f"{variable.name} is bound twice", variable)
        self.bound.add(variable)
        self.visible.add(variable)

    def info(self, info: ir.Info | None, node: ir.Node) -> None:
        """Check an annotation: sizes are nonnegative integers of bound symbols; valid device."""
        if isinstance(info, ir.TupleInfo):
            for field in info.fields:
                self.info(field, node)
        if info is None or info in self._seen:
            return
        self.device(info, node)
        ndim = -1
        dims: tuple[ir.Expr, ...] | None = None
        if isinstance(info, ir.TensorInfo):
            dims, ndim = info.shape, info.ndim
        elif isinstance(info, ir.ShapeInfo):
            dims, ndim = info.values, info.ndim
        elif isinstance(info, ir.PrimInfo) and info.value is not None:
            self.expressions((info.value,), node)
        if ndim < -1 or (dims is not None and ndim not in (-1, len(dims))):
            self.problem("BW250", f"{info_text(info)} states ndim={ndim}", node)
        kind = info.dtype if isinstance(info, ir.TensorInfo) else None
        if kind is not None and (kind.is_handle or not kind.is_scalar):
            self.problem("BW251", f"{info_text(info)}: elements of a tensor must be numbers", node)
        for symbol in dict.fromkeys(s for dim in dims or () for s in ir.free_vars(dim)):
            if symbol.dtype not in SIZES:
                text = f"size {symbol.name} is {symbol.dtype}: sizes are int64 or int32"
                self.problem(
                    "BW250", f"{info_text(info)}: {text}", node, f"write {symbol.name} = T.int64()"
                )
        why = impossible_size(info)
        if why is not None:
            self.problem("BW250", f"{info_text(info)}: {why}", node)
        if self.expressions(dims or (), node):
            self._seen.add(info)

    def device(self, info: ir.Info, node: ir.Node) -> None:
        if isinstance(info, ir.CallableInfo):
            for part in (*(info.params or ()), info.ret):
                self.device(part, node)
        why = device_problem(info, self.kind, self.devices)
        if why is not None:
            self.problem("BW258", f"{info_text(info)}: {why[0]}", node, why[1])

    def expressions(self, dims: Sequence[ir.Expr], node: ir.Node) -> bool:
        """Check that expressions do not divide by 0; return whether their symbols are bound."""
        for dim in dims:
            if divides_by_zero(dim):
                self.problem("BW250", f"{dims_text(dim)} divides by 0", node)
        missing = {s.name for dim in dims for s in ir.free_vars(dim) if s not in self.symbols}
        for name in sorted(missing):
            self.problem(
                "BW226",
                f"symbol {name} is not bound by any parameter or match_cast",
                node,
                f"bind a symbol k that is a whole dimension and compute {name} from it: if the "
                f"dimension is 2 * {name}, write k for the dimension and k // 2 for {name}",
            )
        return not missing

    def value(self, value: ir.GraphExpr) -> None:
        if isinstance(value, ir.GraphVar):
            if value not in self.visible:
                self.problem("BW225", f"{value.name} is used before it is bound", value)
            return
        if not isinstance(value, (ir.GraphFunction, ir.ShapeExpr, ir.PrimValue)):
            self.info(value.info, value)
        if isinstance(value, ir.GraphCall):
            self.call(value)
        elif isinstance(value, ir.If):
            self.value(value.condition)
            for branch in (value.then_branch, value.else_branch):
                with self.scope():
                    self.sequence(branch)
        elif isinstance(value, ir.GraphFunction):
            self.function(value)
        elif isinstance(value, ir.TupleExpr):
            for field in value.fields:
                self.value(field)
        elif isinstance(value, ir.TupleGetItem):
            self.value(value.tuple_value)
        elif isinstance(value, ir.ShapeExpr):
            self.expressions(value.values, value)
            shape = ir.ShapeInfo(value.values)
            if (why := impossible_size(shape)) is not None:
                self.problem("BW250", f"{info_text(shape)}: {why}", value)
        elif isinstance(value, ir.PrimValue):
            self.expressions((value.value,), value)

    def call(self, call: ir.GraphCall) -> None:
        if isinstance(call.op, ir.OpRef):
            if call.op.name not in OPERATORS and call.op.name not in _GRAPH_OPS:
                self.problem("BW405", f"unknown operator {call.op.name!r}", call)
        elif isinstance(call.op, ir.GlobalVar):
            self.global_name(call.op)
        elif not isinstance(call.op, ir.ExternFunc):
            self.value(call.op)
        for info in call.out_info:
            self.info(info, call)
        name = call.op.name if isinstance(call.op, ir.OpRef) else ""
        if isinstance(device := call.attrs.get(DESTINATION.get(name, "")), str):
            self.device(ir.TensorInfo(device=device), call)
        for attribute in call.attrs.values():
            self.expressions(expressions_in(attribute), call)
        for arg in call.args:
            if isinstance(arg, ir.GlobalVar):
                self.global_name(arg)
            elif not isinstance(arg, ir.ExternFunc):
                self.value(arg)

    def global_name(self, reference: ir.GlobalVar) -> None:
        if self.module is not None and reference.name not in self.module:
            self.problem("BW205", f"no function {reference.name!r} in the module", reference)


def check_structure(
    function: ir.GraphFunction, module: ir.IRModule | None = None, kind: str | None = None
) -> None:
    """Raise ValidationError listing structural problems; annotations are not deduced.

    Args:
        kind: the kind of the target, if known; tensors on other devices are rejected.
    """
    checker = _Checker(module, kind)
    checker.attributes(function)
    if not checker.problems:
        checker.function(function)
        checker.problems += update_problems(function)
    if checker.problems:
        raise ValidationError.collect(checker.problems)


@deep
def check_graph(
    function: ir.GraphFunction, module: ir.IRModule | None = None, kind: str | None = None
) -> None:
    """Check the structure of a graph function and, if it is valid, every annotation.

    Args:
        module: the module of the function; without it, functions called by name are not checked.
        kind: the kind of the target, if known.

    Raises: ValidationError listing all problems.
    """
    check_structure(function, module, kind)
    problems = Deduced(function, module).problems
    if problems:
        raise ValidationError.collect(problems)
