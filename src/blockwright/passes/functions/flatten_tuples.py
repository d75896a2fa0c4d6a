"""FlattenTuples: pass the fields of tuples to graph functions as separate arguments.

Before::

    @R.function
    def main(p: R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "float32"))):
        a = p[0]
        b = p[1]
        c = R.add(a, b)
        return c

After::

    @R.function
    def main(p_0: R.Tensor((4,), "float32"), p_1: R.Tensor((4,), "float32")):
        with R.dataflow():
            p: R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "float32")) = (p_0, p_1)
            a = p[0]
            b = p[1]
            c = R.add(a, b)
            R.output(p, a, b, c)
        return c

Nested tuples become all their leaves. Results keep their structure. Function values take the
leaves, too: their annotations and calls change in the same way. A function that overwrites values
in place does not overwrite the fields of a tuple that it is passed: the tuple holds views of the
leaves, which `protect_updates` copies where needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockwright import ir
from blockwright.graph.updates import overwritten_arguments
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import flat_function, map_graph_functions, tuple_info


@graph_pass
def flatten_tuples(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Replace tuple parameters of graph functions by parameters for their leaves."""
    flatten = _Signatures()
    return map_graph_functions(module, lambda _, f: _Flattener().run(flatten(f)))


class _Signatures(ir.Mutator):
    """Flattens the parameters in annotations of function values."""

    def rewrite_CallableInfo(self, node: ir.CallableInfo) -> ir.CallableInfo:
        node = self.descend(node)
        params = node.params
        if params is None or not any(isinstance(p, ir.TupleInfo) for p in params):
            return node
        return node.replace(params=tuple(leaf for p in params for leaf in _leaves(p)))

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node


def _leaves(info: ir.Info) -> Iterator[ir.Info]:
    if isinstance(info, ir.TupleInfo):
        for field in info.fields:
            yield from _leaves(field)
    else:
        yield info


class _Flattener:
    def __init__(self) -> None:
        self.bindings: list[ir.Binding] = []
        self.changed = False
        self._updates = False  # whether the function overwrites values in place

    def run(self, function: ir.GraphFunction) -> ir.GraphFunction:
        self._updates = any(
            overwritten_arguments(binding.value)
            for binding in function.bindings
            if isinstance(binding, ir.VarBinding)
        )
        params = tuple(leaf for param in function.params for leaf in self._parameter(param))
        for binding in function.bindings:
            self._binding(binding)
        if not self.changed:
            return function
        return flat_function(function.replace(params=params), self.bindings)

    def _parameter(self, param: ir.GraphVar) -> Iterator[ir.GraphVar]:
        """The leaves of a parameter; the tuple is bound at the start of the body."""
        if not isinstance(param.info, ir.TupleInfo):
            yield param
            return
        self.changed = True
        fields = [
            ir.GraphVar(f"{param.name}_{k}", info=info) for k, info in enumerate(param.info.fields)
        ]
        for field in fields:
            yield from self._parameter(field)
        parts = [self._view(field) if self._updates else field for field in fields]
        self.bindings.append(ir.VarBinding(param, _tuple(parts)))

    def _view(self, field: ir.GraphVar) -> ir.GraphVar:
        """A view of a tensor; other values as they are."""
        if not isinstance(field.info, ir.TensorInfo):
            return field
        var = ir.GraphVar(f"{field.name}_value", True, info=field.info)
        call = ir.GraphCall(ir.OpRef("squeeze"), (field,), {"axis": ()}, info=field.info)
        self.bindings.append(ir.VarBinding(var, call))
        return var

    def _binding(self, binding: ir.Binding) -> None:
        if isinstance(binding, ir.VarBinding):
            value = binding.value
            if isinstance(value, ir.If):
                then, other = (self._branch(b) for b in (value.then_branch, value.else_branch))
                value = value.replace(then_branch=then, else_branch=other)
            elif isinstance(value, ir.GraphCall) and isinstance(value.op, ir.GlobalVar):
                value = self._call(value)
            elif isinstance(value, ir.GraphCall) and _is_of_values(value.op):
                value = self._call_of_values(value)
            if value is not binding.value:
                binding = binding.replace(value=value)
        self.bindings.append(binding)

    def _branch(self, branch: ir.SeqExpr) -> ir.SeqExpr:
        """A branch, which calls a function; its operands are bound before the `If`."""
        (binding,) = branch.blocks[0].bindings
        assert isinstance(binding, ir.VarBinding)
        assert isinstance(binding.value, ir.GraphCall)
        call = self._call(binding.value)
        if call is binding.value:
            return branch
        return branch.replace(blocks=(ir.BindingBlock((binding.replace(value=call),)),))

    def _call(self, call: ir.GraphCall) -> ir.GraphCall:
        args = tuple(leaf for arg in call.args for leaf in self._argument(arg))
        if len(args) == len(call.args) and all(map(_same, args, call.args)):
            return call
        self.changed = True
        return call.replace(args=args)

    def _call_of_values(self, call: ir.GraphCall) -> ir.GraphCall:
        """`make_closure` or `invoke_closure`, whose last operand is the tuple of arguments."""
        whole = call.args[1]
        assert isinstance(whole, ir.TupleExpr)
        fields = tuple(leaf for arg in whole.fields for leaf in self._argument(arg))
        if len(fields) == len(whole.fields) and all(map(_same, fields, whole.fields)):
            return call
        self.changed = True
        return call.replace(args=(call.args[0], _tuple(fields)))

    def _argument(self, arg: ir.GraphExpr) -> Iterator[ir.GraphExpr]:
        if not isinstance(arg.info, ir.TupleInfo):
            yield arg
            return
        for index, info in enumerate(arg.info.fields):
            if isinstance(arg, ir.TupleExpr):
                yield from self._argument(arg.fields[index])
                continue
            name = arg.name if isinstance(arg, ir.GraphVar) else "field"
            field = ir.GraphVar(f"{name}_{index}", True, info=info)
            self.bindings.append(ir.VarBinding(field, ir.TupleGetItem(arg, index, info=info)))
            yield from self._argument(field)


def _is_of_values(op: ir.GraphExpr) -> bool:
    return isinstance(op, ir.OpRef) and op.name in ("make_closure", "invoke_closure")


def _tuple(fields: Sequence[ir.GraphExpr]) -> ir.TupleExpr:
    return ir.TupleExpr(tuple(fields), info=tuple_info(fields))


def _same(a: ir.GraphExpr, b: ir.GraphExpr) -> bool:
    return a is b
