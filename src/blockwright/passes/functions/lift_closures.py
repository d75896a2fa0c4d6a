"""LiftClosures: make local functions functions of the module, and values of them closures.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
        if flag:
            @R.function
            def add(v: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
                return R.add(v, x)
            f = add
        else:
            g = R.make_closure(cls.double, ())
            f = g
        y = f(x)
        return y

    @R.function(private=True)
    def double(v: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.add(v, v)

After::

    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
        if flag:
            add: R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32")) = (
                R.make_closure(cls.main_add, (x,))
            )
            f = add
        else:
            g = R.make_closure(cls.double, ())
            f = g
        y = R.invoke_closure(f, (x,), sinfo_args=R.Tensor((4,), "float32"))
        return y

    @R.function(private=True)
    def double(v: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.add(v, v)

    @R.function(private=True)
    def main_add(
        v: R.Tensor((4,), "float32"), x: R.Tensor((4,), "float32")
    ) -> R.Tensor((4,), "float32"):
        gv: R.Tensor((4,), "float32") = R.add(v, x)
        return gv

A closure is an FFI function object that owns the captured values. Functions that reach a call only
at run time could instead be numbered, with their captured values in a record and a `switch` at each
call; but such records have no bound where a recursion wraps a function in another one, and they
could not leave the module. An object serves these cases, results of entries, and functions that the
caller passes, with one calling convention: that of entries, which checks the arguments. It costs an
allocation where it is created, and copies of tensor arguments and results at each call.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.functions.outline import Outliner
from blockwright.passes.rewrite import graph_functions


@graph_pass
def lift_closures(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Lift the local functions of every graph function, nested ones included."""
    waiting = [(name, f) for name, f in graph_functions(module) if _has_values(f)]
    functions = dict(module.functions)
    while waiting:
        name, function = waiting.pop()
        lifter = _Lifter(name, function, module, functions)
        functions[name] = lifter.run()
        functions.update(lifter.created)
        waiting += [(each, f) for each, f in lifter.created.items() if _has_values(f)]
        module = module.replace(functions=dict(functions))
    return module


def _has_values(function: ir.GraphFunction) -> bool:
    """Whether a function has local functions, or calls of function values."""
    local = ir.collect(function.body, ir.GraphFunction)
    return bool(local) or any(_is_value(c.op) for c in ir.collect(function.body, ir.GraphCall))


def _is_value(op: ir.GraphExpr) -> bool:
    return not isinstance(op, (ir.OpRef, ir.GlobalVar, ir.ExternFunc))


class _Lifter(Outliner):
    def run(self) -> ir.GraphFunction:
        body = _Lift(self)(self.caller.body)
        return self.caller if body is self.caller.body else self.caller.replace(body=body)

    def closure(self, name: str, function: ir.GraphFunction, info: ir.Info | None) -> ir.GraphCall:
        """Create a function of the module, and the closure that a local function is."""
        known = info.ret if isinstance(info, ir.CallableInfo) else None
        new = self.outlined(f"{self.name}_{name}", function.body, known, function.params)
        lifted = self.created[new.name]
        own = {key: function.attrs.get(key, {}) for key in (LOWER_BOUND, UPPER_BOUND)}
        ranges = {key: {**lifted.attrs.get(key, {}), **ends} for key, ends in own.items() if ends}
        self.created[new.name] = lifted.replace(
            pure=function.pure, attrs={**lifted.attrs, **ranges}
        )
        args = (ir.GlobalVar(new.name), ir.TupleExpr(new.inputs))
        return ir.GraphCall(ir.OpRef("make_closure"), args, info=info)


class _Lift(ir.Mutator):
    """Replaces local functions and calls of function values, also in branches."""

    def __init__(self, lifter: _Lifter) -> None:
        super().__init__()
        self.lifter = lifter

    def rewrite_VarBinding(self, node: ir.VarBinding) -> Any:
        value, info = node.value, self.lifter.infos.get(node.var)
        if isinstance(value, ir.GraphFunction):
            return node.replace(value=self.lifter.closure(node.var.name, value, info))
        if isinstance(value, ir.GraphCall) and _is_value(value.op):
            whole = ir.TupleExpr(value.args)
            stated = () if info is None else (info,)
            called = ir.GraphCall(
                ir.OpRef("invoke_closure"), (value.op, whole), value.attrs, stated, span=value.span
            )
            return node.replace(value=called)
        return self.descend(node)

    def rewrite_GraphVar(self, node: ir.GraphVar) -> ir.GraphVar:
        return node

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node
