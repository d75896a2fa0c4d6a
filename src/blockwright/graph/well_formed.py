"""Well-formedness of graph functions: definitions before uses, unique, annotations present."""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.deduce import STATED
from blockwright.ops.table import OPERATORS
from blockwright.support import Diagnostic, ValidationError

_GRAPH_OPS = STATED | {"shape_of", "invoke_closure"}


class _Checker:
    def __init__(self, module: ir.IRModule | None) -> None:
        self.module = module
        self.defined: set[ir.GraphVar] = set()
        self.symbols: set[ir.Var] = set()
        self.problems: list[Diagnostic] = []

    def problem(self, code: str, message: str, node: ir.Node, help: str | None = None) -> None:
        self.problems.append(Diagnostic(code, message, node.span, help))

    def function(self, function: ir.GraphFunction) -> None:
        for param in function.params:
            self.define(param)
            if param.info is None:
                self.problem("BW221", f"parameter {param.name} has no annotation", param)
            self.symbols.update(ir.symbolic_vars(param.info))
        names = [s.name for s in self.symbols]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self.problem("BW222", f"two different symbols are both called {name}", function,
                         "bounds are declared by name; rename one")  # fmt: skip
        self.sequence(function.body)

    def sequence(self, body: ir.SeqExpr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                self.binding(binding, block.dataflow)
        self.value(body.body)

    def binding(self, binding: ir.Binding, dataflow: bool) -> None:
        if isinstance(binding, ir.VarBinding):
            self.value(binding.value)
            if dataflow and isinstance(binding.value, ir.If):
                self.problem("BW223", "control flow inside a dataflow block", binding)
            self.define(binding.var)
        elif isinstance(binding, ir.MatchCast):
            self.value(binding.value)
            self.symbols.update(ir.symbolic_vars(binding.pattern))
            self.define(binding.var)

    def define(self, variable: ir.GraphVar) -> None:
        if variable in self.defined:
            self.problem("BW224", f"{variable.name} is bound twice", variable)
        self.defined.add(variable)

    def value(self, value: ir.GraphExpr) -> None:
        if isinstance(value, ir.GraphVar):
            if value not in self.defined:
                self.problem("BW225", f"{value.name} is used before it is bound", value)
        elif isinstance(value, ir.GraphCall):
            self.call(value)
        elif isinstance(value, ir.If):
            self.value(value.condition)
            self.sequence(value.then_branch)
            self.sequence(value.else_branch)
        elif isinstance(value, ir.GraphFunction):
            self.function(value)
        elif isinstance(value, ir.TupleExpr):
            for field in value.fields:
                self.value(field)
        elif isinstance(value, ir.TupleGetItem):
            self.value(value.tuple_value)
        elif isinstance(value, ir.ShapeExpr):
            self.shape(value)

    def shape(self, value: ir.ShapeExpr) -> None:
        for dim in value.values:
            for symbol in ir.free_vars(dim):
                if symbol not in self.symbols:
                    self.problem("BW226", f"symbol {symbol.name} is not bound by any parameter "
                                 "or match_cast", value)  # fmt: skip

    def call(self, call: ir.GraphCall) -> None:
        if isinstance(call.op, ir.OpRef):
            if call.op.name not in OPERATORS and call.op.name not in _GRAPH_OPS:
                self.problem("BW405", f"unknown operator {call.op.name!r}", call)
        elif isinstance(call.op, ir.GlobalVar):
            self.global_name(call.op)
        elif not isinstance(call.op, ir.ExternFunc):
            self.value(call.op)
        for arg in call.args:
            if isinstance(arg, ir.GlobalVar):
                self.global_name(arg)
            elif not isinstance(arg, ir.ExternFunc):
                self.value(arg)

    def global_name(self, reference: ir.GlobalVar) -> None:
        if self.module is not None and reference.name not in self.module:
            self.problem("BW205", f"no function {reference.name!r} in the module", reference)


def check_graph(function: ir.GraphFunction, module: ir.IRModule | None = None) -> None:
    """Raise ValidationError listing every problem of a graph function."""
    checker = _Checker(module)
    checker.function(function)
    if checker.problems:
        raise ValidationError.collect(checker.problems)
