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

from collections.abc import Sequence
from itertools import count
from typing import Any

from blockwright import ir
from blockwright.graph import Deduced
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import graph_functions, unique_name
from blockwright.support import GraphError


@graph_pass
def outline_branches(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Outline the branches of every graph function, nested ones included."""
    waiting = [(name, f) for name, f in graph_functions(module) if _has_branches(f)]
    functions = dict(module.functions)
    while waiting:
        name, function = waiting.pop()
        outliner = _Outliner(name, function, module, functions)
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


class _Outliner:
    def __init__(
        self,
        name: str,
        function: ir.GraphFunction,
        module: ir.IRModule,
        functions: dict[str, ir.Node],
    ) -> None:
        self.name, self.caller, self.functions = name, function, functions
        deduced = Deduced(function, module)
        if deduced.problems:
            raise GraphError.collect(deduced.problems)
        self.infos, self.symbols = deduced.infos, deduced.symbols
        self.created: dict[str, ir.GraphFunction] = {}

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
        label = f"{self.name}_{binding.var.name}"
        then = self._outlined(f"{label}_then", choice.then_branch, info)
        other = self._outlined(f"{label}_else", choice.else_branch, info)
        value = choice.replace(then_branch=then, else_branch=other, info=info)
        return binding.replace(value=value)

    def _outlined(self, base: str, branch: ir.SeqExpr, info: ir.Info | None) -> ir.SeqExpr:
        """A sequence that calls a new function, whose body is the branch."""
        used = _free_variables(branch)
        params = [self._parameter(var, position) for position, var in enumerate(used)]
        shape = self._shape_of_symbols(branch, info, params)
        inputs: list[ir.GraphExpr] = list(used)
        if shape is not None:
            taken = {p.name for p in params}
            label = next(n for k in count() if (n := f"sizes{k or ''}") not in taken)
            params.append(ir.GraphVar(label, info=shape.info))
            inputs.append(shape)
        known = dict(zip(used, params, strict=False))
        body = _Copy(known, self.infos, self.symbols)(branch)
        name = unique_name(base, {*self.functions, *self.created})
        attrs = {k: v for k, v in self.caller.attrs.items() if k.startswith("tir_var_")}
        self.created[name] = ir.GraphFunction(tuple(params), body, info, attrs)
        call = ir.GraphCall(ir.GlobalVar(name), tuple(inputs), info=info)
        result = ir.GraphVar(base, info=info)
        block = ir.BindingBlock((ir.VarBinding(result, call),))
        return ir.SeqExpr((block,), result, info=info)

    def _parameter(self, var: ir.GraphVar, position: int) -> ir.GraphVar:
        name = var.name if var.name.isidentifier() else f"p{position}"
        return ir.GraphVar(name, info=self.infos.get(var))

    def _shape_of_symbols(
        self, branch: ir.SeqExpr, info: ir.Info | None, params: Sequence[ir.GraphVar]
    ) -> ir.ShapeExpr | None:
        """The symbols that a branch uses and no parameter binds, as a shape; None if there are
        none."""
        # A call inside the module binds only symbols that are a whole dimension of an argument.
        bound = {s for p in params for s in ir.symbolic_vars(p.info)}
        inside = {
            s for cast in ir.collect(branch, ir.MatchCast) for s in ir.symbolic_vars(cast.pattern)
        }
        used = (*ir.collect(branch, ir.Var), *(ir.collect(info, ir.Var) if info else ()))
        outer = dict.fromkeys(
            v
            for var in used
            for v in ir.free_vars(self.symbols.get(var, var))
            if var not in inside or var in self.symbols
        )
        needed = tuple(v for v in outer if v not in bound and v not in inside)
        return ir.ShapeExpr(needed, info=ir.ShapeInfo(needed)) if needed else None


def _free_variables(branch: ir.SeqExpr) -> list[ir.GraphVar]:
    """Variables that a branch uses and does not bind, in order."""
    bound = {
        b.var
        for block in ir.collect(branch, ir.BindingBlock)
        for b in block.bindings
        if isinstance(b, (ir.VarBinding, ir.MatchCast))
    }
    used = dict.fromkeys(ir.collect(branch, ir.GraphVar))
    return [var for var in used if var not in bound]


class _Copy(ir.Mutator):
    """The body of a branch with fresh variables, annotated with what is known of them."""

    def __init__(
        self,
        known: dict[ir.GraphVar, ir.GraphVar],
        infos: dict[ir.GraphVar, ir.Info | None],
        symbols: dict[ir.Var, ir.Expr],
    ) -> None:
        super().__init__()
        self._memo |= known
        self._memo |= symbols
        self.infos = infos

    def rewrite_GraphVar(self, node: ir.GraphVar) -> Any:
        info = self.infos.get(node, node.info)
        return ir.GraphVar(node.name, info=info, span=node.span)

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node
