"""OutlineBranches: make every branch of an `if` a private function.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
        if c:
            y = R.exp(x)
        else:
            y = R.negative(x)
        return y

After::

    @R.function
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
        if c:
            then: R.Tensor((4,), "float32") = cls.main_y_then(x)
            y = then
        else:
            other: R.Tensor((4,), "float32") = cls.main_y_else(x)
            y = other
        return y

    @R.function(private=True)
    def main_y_then(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y: R.Tensor((4,), "float32") = R.exp(x)
        return y

    @R.function(private=True)
    def main_y_else(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y: R.Tensor((4,), "float32") = R.negative(x)
        return y

Every function then is a list of bindings, and all passes treat branches like other functions. The
parameters of a branch are the values it uses; symbols that these do not determine are passed as a
shape.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.relate import info_text
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.functions.outline import Outliner
from blockwright.passes.rewrite import graph_functions
from blockwright.support import GraphError


@graph_pass
def outline_branches(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Outline the branches of every graph function, nested ones included.

    Raises: GraphError BW435 for branches whose results differ in more than sizes.
    """
    waiting = [(name, f) for name, f in graph_functions(module) if _has_branches(f)]
    functions = dict(module.functions)
    while waiting:
        name, function = waiting.pop()
        outliner = _Branches(name, function, module, functions)
        functions[name] = outliner.run()
        for each, branch in outliner.created.items():
            functions[each] = branch
            if _has_branches(branch):
                waiting.append((each, branch))
        module = module.replace(functions=dict(functions))
    return module


def _has_branches(function: ir.GraphFunction) -> bool:
    values = (getattr(binding, "value", None) for binding in function.bindings)
    return any(isinstance(value, ir.If) for value in values)


class _Branches(Outliner):
    def run(self) -> ir.GraphFunction:
        blocks = tuple(
            block.replace(bindings=tuple(map(self._binding, block.bindings)))
            for block in self.caller.body.blocks
        )
        return self.caller.replace(body=self.caller.body.replace(blocks=blocks))

    def _binding(self, binding: ir.Binding) -> ir.Binding:
        if not isinstance(binding, ir.VarBinding) or not isinstance(binding.value, ir.If):
            return binding
        choice, info = binding.value, self.infos.get(binding.var)
        results = [self._info(b.body) for b in (choice.then_branch, choice.else_branch)]
        if _of_other_kinds(*results):
            raise GraphError(
                f"the branches of {binding.var.name} return "
                f"{' and '.join(map(info_text, results))}",
                code="BW435",
                span=binding.span,
                help="let both return values of one structure, type and number of dimensions",
            )
        label = f"{self.name}_{binding.var.name}"
        then = self._outlined(f"{label}_then", choice.then_branch, info)
        other = self._outlined(f"{label}_else", choice.else_branch, info)
        value = choice.replace(then_branch=then, else_branch=other, info=info)
        return binding.replace(value=value)

    def _info(self, value: ir.GraphExpr) -> ir.Info | None:
        if isinstance(value, ir.GraphVar):
            return self.infos.get(value) or value.info
        if isinstance(value, ir.TupleExpr):
            fields = [self._info(field) for field in value.fields]
            known = [info for info in fields if info is not None]
            return ir.TupleInfo(tuple(known)) if len(known) == len(fields) else None
        return value.info

    def _outlined(self, base: str, branch: ir.SeqExpr, info: ir.Info | None) -> ir.SeqExpr:
        """A sequence that calls a new function, whose body is the branch."""
        new = self.outlined(base, branch, info)
        call = ir.GraphCall(ir.GlobalVar(new.name), new.inputs, info=info)
        result = ir.GraphVar(base, info=info)
        block = ir.BindingBlock((ir.VarBinding(result, call),))
        return ir.SeqExpr((block,), result, info=info)


def _of_other_kinds(a: ir.Info | None, b: ir.Info | None) -> bool:
    """Whether two results differ in more than sizes. An object may be of any kind."""
    if a is None or b is None or isinstance(a, ir.ObjectInfo) or isinstance(b, ir.ObjectInfo):
        return False
    if isinstance(a, ir.TensorInfo) and isinstance(b, ir.TensorInfo):
        types = None not in (a.dtype, b.dtype) and a.dtype is not b.dtype
        return types or (-1 not in (a.rank, b.rank) and a.rank != b.rank)
    if isinstance(a, ir.TupleInfo) and isinstance(b, ir.TupleInfo):
        return len(a.fields) != len(b.fields) or any(
            _of_other_kinds(x, y) for x, y in zip(a.fields, b.fields, strict=True)
        )
    return type(a) is not type(b)
