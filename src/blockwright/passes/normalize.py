"""Normalize: name and annotate every value; replace symbols of match_cast by the actual sizes.

Before::

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        m = T.int64()
        y = R.match_cast(x, R.Tensor((m, 4), "float32"))
        one = R.const(1.0, "float32")
        z = R.add(R.exp(y), one)
        return z

After::

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        with R.dataflow():
            y = R.match_cast(x, R.Tensor((n, 4), "float32"))
            lv: R.Tensor((n, 4), "float32") = R.exp(y)
            z: R.Tensor((n, 4), "float32") = R.add(lv, R.const(1.0, "float32"))
            R.output(y, lv, z)
        return z

Calls of graph functions and branches are already inlined and outlined.
Modules made by the graph builder are already in this form; scripts need not be.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.graph import Deduced, constant, deduce_call, function_analyzer
from blockwright.ops.table import OPERATORS
from blockwright.passes.check_graphs import checked
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import flat_function, map_graph_functions, tuple_info
from blockwright.passes.size_checks import size_checks
from blockwright.support import GraphError


@graph_pass
def normalize(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Name and annotate the values of every graph function.

    Raises: ValidationError listing all violations of well-formedness; GraphError listing invalid
        calls and annotations that deduction does not imply.
    """

    known = checked(module, ctx)

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        normal = _Normalizer(function, module, known[name]).run()
        ctx.size_checks[name] = size_checks(normal, name, known[name].symbols)
        return normal

    return map_graph_functions(module, one)


class _Normalizer(ir.Mutator):
    def __init__(self, function: ir.GraphFunction, module: ir.IRModule, deduced: Deduced) -> None:
        super().__init__()
        self._memo |= deduced.symbols
        self.deduced = dict(deduced.infos)
        self.function = function
        self.module = module
        self.analyzer = function_analyzer(function)
        self.bindings: list[ir.Binding] = []
        self.tuples: dict[ir.GraphVar, ir.TupleExpr] = {}
        self.bound = {s for p in function.params for s in ir.parameter_symbols(p.info)}
        self.changed = False

    def run(self) -> ir.GraphFunction:
        for binding in self.function.bindings:
            if isinstance(binding, ir.MatchCast):
                self._cast(binding)
            elif isinstance(binding, ir.VarBinding):
                value = self(binding.value)
                if isinstance(value, ir.Constant):  # an operand wherever its name is used
                    self._memo[binding.var] = self._annotated(value)
                    self.changed = True
                else:
                    self._bind(binding.var, value, binding)
            else:
                self.bindings.append(binding)
        result = self._named(self(self.function.body.body))
        if not self.changed and result is self.function.body.body:
            return self.function
        function = flat_function(self.function, self.bindings, result)
        return function.replace(ret_info=result.info)

    def _bind(
        self, var: ir.GraphVar, value: ir.GraphExpr, old: ir.VarBinding | None = None
    ) -> ir.GraphVar:
        known = None if old is None else self.deduced.get(old.var)
        info = self._annotated(value).info if known is None else known
        if value.info is not info and not isinstance(value, ir.GraphVar):
            value = value.replace(info=info)  # variables keep the annotation of their definition
        if old is not None and info is var.info and value is old.value:
            self.bindings.append(old)
            self._known_tuple(var, value)
            return var
        self.changed = True
        renewed = var.replace(info=info)
        self._known_tuple(renewed, value)
        self._memo[var] = renewed
        self.bindings.append(ir.VarBinding(renewed, value))
        return renewed

    def _known_tuple(self, var: ir.GraphVar, value: ir.GraphExpr) -> None:
        if isinstance(value, ir.GraphVar) and value in self.tuples:
            value = self.tuples[value]
        if isinstance(value, ir.TupleExpr):
            self.tuples[var] = value

    def _cast(self, binding: ir.MatchCast) -> None:
        """Replace symbols that the pattern introduces by the sizes of the value."""
        value = self._named(self(binding.value))
        pattern, info = self(binding.pattern), self.deduced.get(binding.var)
        values = tuple(self(v) for v in binding.values)
        if isinstance(pattern, ir.TupleInfo) and isinstance(value.info, ir.TupleInfo):
            self._cast_fields(binding, value, pattern, value.info)
            return
        self._require_sizes(binding, value, pattern)
        if isinstance(pattern, ir.ObjectInfo):  # matches every value: nothing to check
            self._bind(binding.var, value, ir.VarBinding(binding.var, value))
            return
        same = all(a is b for a, b in zip(values, binding.values, strict=True))
        same = same and value is binding.value and pattern is binding.pattern
        if same and info is binding.var.info:
            self.bindings.append(binding)
            return
        self.changed = True
        renewed = binding.var.replace(info=pattern if info is None else info)
        self._memo[binding.var] = renewed
        renamed = binding.replace(var=renewed, value=value, pattern=pattern, values=values)
        self.bindings.append(renamed)

    def _require_sizes(self, cast: ir.MatchCast, value: ir.GraphExpr, pattern: ir.Info) -> None:
        """Require that the sizes that a cast names are known before the value is.

        Raises: GraphError BW407 for an object or a tensor of unknown shape, and for fields of an
            object.
        """
        if isinstance(pattern, ir.TupleInfo) and isinstance(value.info, ir.ObjectInfo):
            raise GraphError(
                f"match_cast of {cast.var.name}: compiled code does not read fields of an object",
                code="BW407",
                span=cast.span,
                help="state them where the object comes from: "
                "R.call_packed(…, sinfo_args=(R.Tuple(…),))",
            )
        if isinstance(pattern, (ir.ShapeInfo, ir.PrimInfo)):
            self.bound.update(ir.symbolic_vars(pattern))
        info = value.info
        shapeless = isinstance(info, ir.TensorInfo) and info.shape is None
        if not isinstance(pattern, ir.TensorInfo) or not (
            shapeless or isinstance(info, ir.ObjectInfo)
        ):
            return
        new = next((s for s in ir.symbolic_vars(pattern) if s not in self.bound), None)
        if new is not None:
            raise GraphError(
                f"match_cast of {cast.var.name}: {new.name} would be a size of an object, which "
                "compiled code does not read",
                code="BW407",
                span=cast.span,
                help="let the function return its sizes as a tensor too, and name them first: "
                "R.match_cast(R.tensor_to_shape(sizes), R.Shape((n,)))",
            )

    def _cast_fields(
        self, cast: ir.MatchCast, value: ir.GraphExpr, pattern: ir.TupleInfo, info: ir.TupleInfo
    ) -> None:
        """Cast a tuple field by field."""
        fields: list[ir.GraphExpr] = []
        whole = self.deduced.get(cast.var)
        for index, (part, known) in enumerate(zip(pattern.fields, info.fields, strict=True)):
            field = self._field(value, index, known)
            var = ir.GraphVar(f"{cast.var.name}_{index}", True, info=part)
            if isinstance(whole, ir.TupleInfo):
                self.deduced[var] = whole.fields[index]
            self._cast(cast.replace(var=var, value=field, pattern=part))
            fields.append(self(var))
        self._bind(cast.var, ir.TupleExpr(tuple(fields)), ir.VarBinding(cast.var, value))

    def _field(self, value: ir.GraphExpr, index: int, info: ir.Info) -> ir.GraphExpr:
        """A field of a tuple: the value that was stored in it, if known."""
        whole = self.tuples.get(value, value) if isinstance(value, ir.GraphVar) else value
        if isinstance(whole, ir.TupleExpr):
            return self._named(whole.fields[index])
        return self._named(ir.TupleGetItem(value, index, info=info))

    def _annotated(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """Annotate an operand with its deduced type, overriding what the script states."""
        info = self._deduced(value)
        if info is None or (value.info is not None and ir.structural_equal(value.info, info)):
            return value
        return value.replace(info=info)

    def _deduced(self, value: ir.GraphExpr) -> ir.Info | None:
        if isinstance(value, ir.GraphCall):
            return deduce_call(value, self.analyzer, self.module)
        if isinstance(value, ir.TupleExpr):
            return tuple_info(value.fields)
        if isinstance(value, ir.ShapeExpr):
            return ir.ShapeInfo(value.values)
        if isinstance(value, ir.Constant):
            return value.info or constant(value.data).info
        if isinstance(value, ir.TupleGetItem) and isinstance(value.tuple_value.info, ir.TupleInfo):
            return value.tuple_value.info.fields[value.index]
        return value.info

    def _named(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """An operand of another expression: calls are bound to a variable first."""
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
        if isinstance(node.op, ir.OpRef) and node.op.name in OPERATORS:
            args = tuple(part for a in args for part in self._fields(a))
        if len(args) != len(node.args):
            return node.replace(args=args)
        return (
            node
            if all(a is b for a, b in zip(args, node.args, strict=True))
            else node.replace(args=args)
        )

    def _fields(self, value: ir.GraphExpr) -> Sequence[ir.GraphExpr]:
        """Expand a tuple: operators take the tensors of a list as separate arguments."""
        if isinstance(value, ir.TupleExpr):
            return value.fields
        if not isinstance(value.info, ir.TupleInfo):
            return (value,)
        count = len(value.info.fields)
        return [self._named(ir.TupleGetItem(value, index)) for index in range(count)]

    def rewrite_If(self, node: ir.If) -> ir.If:
        """Rename operands: the branches are calls, whose annotations `outline_branches` set."""
        return node.replace(
            condition=self._named(self(node.condition)),
            then_branch=self._branch(node.then_branch),
            else_branch=self._branch(node.else_branch),
        )

    def _branch(self, branch: ir.SeqExpr) -> ir.SeqExpr:
        (binding,) = branch.blocks[0].bindings
        assert isinstance(binding, ir.VarBinding)
        assert isinstance(binding.value, ir.GraphCall)
        args = tuple(self._named(self(a)) for a in binding.value.args)
        call = binding.replace(value=binding.value.replace(args=args))
        return branch.replace(blocks=(ir.BindingBlock((call,)),))

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
        if isinstance(named, ir.GraphVar) and named in self.tuples:
            return self.tuples[named].fields[node.index]
        return node if named is node.tuple_value else node.replace(tuple_value=named)
