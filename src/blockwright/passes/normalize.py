"""Normalize: every value gets a name and an annotation, and symbols of match_cast their meaning.

Before:  m = T.int64(); y = R.match_cast(x, R.Tensor((m, 4))); z = R.add(R.exp(y), y)   # x: (n, 4)
After:   y = R.match_cast(x, R.Tensor((n, 4))); lv: R.Tensor((n, 4)) = R.exp(y); z = R.add(lv, y)

Modules made by the graph builder are in this form already; scripts need not be.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph import check_graph, deduce_call, function_analyzer
from blockwright.passes.context import PassContext
from blockwright.passes.rewrite import flat_function, map_graph_functions, tuple_info
from blockwright.support import GraphError

_CONTROL = (ir.If, ir.GraphFunction)


def normalize(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Name and annotate the values of every graph function.

    Raises: ValidationError listing everything that is not well formed; GraphError BW4xx for calls
    that are not valid.
    """

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        check_graph(function, module)
        for binding in function.bindings:
            if isinstance(binding, ir.VarBinding) and isinstance(binding.value, _CONTROL):
                kind = "a branch" if isinstance(binding.value, ir.If) else "a local function"
                raise GraphError(f"{name}: {binding.var.name} is {kind}, which cannot be compiled",
                                 code="BW410", help="use R.where, or call from Python")  # fmt: skip
        return _Normalizer(function, module).run()

    return map_graph_functions(module, one)


class _Normalizer(ir.Mutator):
    def __init__(self, function: ir.GraphFunction, module: ir.IRModule) -> None:
        super().__init__()
        self.function = function
        self.module = module
        self.analyzer = function_analyzer(function)
        self.known = {s for p in function.params for s in ir.symbolic_vars(p.info)}
        self.bindings: list[ir.Binding] = []
        self.changed = False

    def run(self) -> ir.GraphFunction:
        for binding in self.function.bindings:
            if isinstance(binding, ir.MatchCast):
                self._cast(binding)
            elif isinstance(binding, ir.VarBinding):
                self._bind(binding.var, self(binding.value), binding)
            else:
                self.bindings.append(binding)
        result = self._named(self(self.function.body.body))
        if not self.changed:
            return self.function
        function = flat_function(self.function, self.bindings, result)
        return function.replace(ret_info=result.info)

    def _bind(
        self, var: ir.GraphVar, value: ir.GraphExpr, old: ir.VarBinding | None = None
    ) -> ir.GraphVar:
        value = self._annotated(value)
        info = None if var.info is None else self(var.info)
        if info is None or (isinstance(info, ir.TensorInfo) and info.shape is None):
            info = value.info
        if old is not None and info is var.info and value is old.value:
            self.bindings.append(old)
            return var
        self.changed = True
        renewed = var.replace(info=info)
        self._memo[var] = renewed
        self.bindings.append(ir.VarBinding(renewed, value))
        return renewed

    def _cast(self, binding: ir.MatchCast) -> None:
        """Symbols that the pattern introduces stand for the sizes the value has."""
        value = self._named(self(binding.value))
        pattern, actual = binding.pattern, value.info
        if isinstance(pattern, ir.TensorInfo) and isinstance(actual, ir.TensorInfo):
            for dim, size in zip(pattern.shape or (), actual.shape or (), strict=False):
                if isinstance(dim, ir.Var) and dim not in self.known and dim not in self._memo:
                    self._memo[dim] = size
        pattern = self(pattern)
        if value is binding.value and pattern is binding.pattern:
            self.bindings.append(binding)
            return
        self.changed = True
        renewed = binding.var.replace(info=pattern)
        self._memo[binding.var] = renewed
        self.bindings.append(ir.MatchCast(renewed, value, pattern))

    def _annotated(self, value: ir.GraphExpr) -> ir.GraphExpr:
        if value.info is not None:
            return value
        if isinstance(value, ir.GraphCall):
            return value.replace(info=deduce_call(value, self.analyzer, self.module))
        if isinstance(value, ir.TupleExpr):
            return value.replace(info=tuple_info(value.fields))
        if isinstance(value, ir.ShapeExpr):
            return value.replace(info=ir.ShapeInfo(value.values))
        if isinstance(value, ir.TupleGetItem) and isinstance(value.tuple_value.info, ir.TupleInfo):
            return value.replace(info=value.tuple_value.info.fields[value.index])
        return value

    def _named(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """An operand: calls get a variable of their own."""
        if isinstance(value, (ir.GraphCall, ir.TupleGetItem)):
            return self._bind(ir.GraphVar("lv", True), value)
        return self._annotated(value)

    # ---------------------------------------------------------------- values
    def rewrite_GraphVar(self, node: ir.GraphVar) -> ir.GraphVar:
        return node

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node

    def rewrite_GraphCall(self, node: ir.GraphCall) -> ir.GraphExpr:
        return self._operands(self.descend(node))

    def _operands(self, node: ir.GraphCall) -> ir.GraphCall:
        args = tuple(self._named(a) for a in node.args)
        return node if all(a is b for a, b in zip(args, node.args, strict=True)) else node.replace(
            args=args)  # fmt: skip

    def rewrite_TupleExpr(self, node: ir.TupleExpr) -> ir.GraphExpr:
        node = self.descend(node)
        fields = tuple(self._named(f) for f in node.fields)
        same = all(a is b for a, b in zip(fields, node.fields, strict=True))
        return node if same else node.replace(fields=fields, info=None)

    def rewrite_TupleGetItem(self, node: ir.TupleGetItem) -> ir.GraphExpr:
        node = self.descend(node)
        if isinstance(node.tuple_value, ir.TupleExpr):
            return node.tuple_value.fields[node.index]
        named = self._named(node.tuple_value)
        return node if named is node.tuple_value else node.replace(tuple_value=named)
