"""TailCalls: make loops of functions that call themselves last.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        more = R.call_tir(cls.less, (x,), R.Tensor((), "bool"))
        if more:
            then: R.Tensor((4,), "float32") = cls.main_then(x)
            y = then
        else:
            other: R.Tensor((4,), "float32") = cls.main_else(x)
            y = other
        return y

    @R.function(private=True)
    def main_then(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        z = R.call_tir(cls.double, (x,), R.Tensor((4,), "float32"))
        again: R.Tensor((4,), "float32") = cls.main(z)
        return again

    @R.function(private=True)
    def main_else(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.call_tir(cls.exp, (x,), R.Tensor((4,), "float32"))
        return y

    @T.prim_func(private=True)
    def less(x: T.Buffer((4,), "float32"), out: T.Buffer((), "bool")):
        with T.block("out"):
            out[()] = x[0] < T.float32(100)

    @T.prim_func(private=True)
    def double(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + x[v]

    @T.prim_func(private=True)
    def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = T.exp(x[v])

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        looped: R.Tuple(R.Tensor((4,), "float32")) = R.while_loop(
            cls.main_holds, cls.main_step, x, carried=1, until=False
        )
        x_1 = looped[0]
        y: R.Tensor((4,), "float32") = cls.main_else(x_1)
        return y

    @R.function(private=True)
    def main_then(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        z = R.call_tir(cls.double, (x,), R.Tensor((4,), "float32"))
        return z

    @R.function(private=True)
    def main_holds(x: R.Tensor((4,), "float32")) -> R.Tensor((), "bool"):
        more = R.call_tir(cls.less, (x,), R.Tensor((), "bool"))
        return more

    @R.function(private=True)
    def main_step(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        stepped = cls.main_then(x)
        return stepped

A loop takes the memory of one step and has no greatest depth. The function must choose by a tensor
between a branch that ends in the call and one that does not call it, and pass on values of the same
sizes. Others stay recursive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.graph import function_analyzer
from blockwright.graph.call_graph import callees
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import (
    Replace,
    branch_call,
    called_function,
    flat_function,
    graph_functions,
    unique_name,
    used_vars,
)


@graph_pass
def tail_calls(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Make a loop of every function for which that is possible."""
    for name, _ in graph_functions(module):
        found = _found(name, module)
        if found is not None:
            module = _as_loop(name, found, module)
    return module


class _TailCall(msgspec.Struct, frozen=True, eq=False):
    """A function that calls itself at the end of one branch.

    Attributes:
        before: the bindings before the branch; choice: the branch; until: whether the function goes
            on if the condition is false.
        again, rest: calls of the branch that goes on, and of the other one.
        given: arguments of the call of itself; carried: positions of those that change.
    """

    before: tuple[ir.VarBinding, ...]
    choice: ir.VarBinding
    condition: ir.GraphVar
    until: bool
    again: ir.GraphCall
    rest: ir.GraphCall
    given: tuple[ir.GraphExpr, ...]
    carried: tuple[int, ...]


def _found(name: str, module: ir.IRModule) -> _TailCall | None:
    function = module[name]
    assert isinstance(function, ir.GraphFunction)
    *before, last = function.bindings or (None,)
    choice = last.value if isinstance(last, ir.VarBinding) else None
    plain = [b for b in before if isinstance(b, ir.VarBinding) and not isinstance(b.value, ir.If)]
    if not isinstance(choice, ir.If) or len(plain) < len(before) or not function.pure:
        return None
    assert isinstance(last, ir.VarBinding)
    if function.body.body is not last.var or not isinstance(choice.condition, ir.GraphVar):
        return None
    if not isinstance(choice.condition.info, ir.TensorInfo):
        return None
    calls = [branch_call(b) for b in (choice.then_branch, choice.else_branch)]
    for until, (again, rest) in enumerate((calls, calls[::-1])):
        given = _given(name, again, module)
        mentions = callees(module[_name(rest)], module)
        if given is None or name in mentions or _name(again) == _name(rest):
            continue
        carried = _carried(function, again, given, module)
        if carried:  # else it never ends
            return _TailCall(
                tuple(plain),
                last,
                choice.condition,
                bool(until),
                again,
                rest,
                given,
                carried,
            )
    return None


def _name(call: ir.GraphCall) -> str:
    assert isinstance(call.op, ir.GlobalVar)
    return call.op.name


def _given(name: str, call: ir.GraphCall, module: ir.IRModule) -> tuple[ir.GraphExpr, ...] | None:
    """The arguments with which a branch calls the function last; None if it does not."""
    branch = module[_name(call)]
    assert isinstance(branch, ir.GraphFunction)
    *inner, last = branch.bindings or (None,)
    value = last.value if isinstance(last, ir.VarBinding) else None
    if not isinstance(value, ir.GraphCall) or called_function(value, module) != name:
        return None
    assert isinstance(last, ir.VarBinding)
    callers = [n for n, f in graph_functions(module) if _name(call) in callees(f, module)]
    inside = [f for b in inner for f in callees(b, module)]
    alone = branch.body.body is last.var and callers == [name] and branch.pure
    return value.args if alone and name not in inside else None


def _carried(
    function: ir.GraphFunction,
    again: ir.GraphCall,
    given: Sequence[ir.GraphExpr],
    module: ir.IRModule,
) -> tuple[int, ...] | None:
    """Positions of the arguments that change; None if a loop cannot carry one of them."""
    branch = module[_name(again)]
    assert isinstance(branch, ir.GraphFunction)
    values = dict(zip(branch.params, again.args, strict=True))
    symbols = _symbols(values)
    analyzer = function_analyzer(function)
    carried: list[int] = []
    for position, (param, value) in enumerate(zip(function.params, given, strict=True)):
        if isinstance(value, ir.GraphVar) and values.get(value) is param:
            continue
        found = None if value.info is None else ir.substitute(value.info, symbols)
        if isinstance(value, ir.ShapeExpr) and _equal_sizes(found, param.info, analyzer):
            continue
        if not isinstance(param.info, ir.TensorInfo) or not isinstance(found, ir.TensorInfo):
            return None
        same = found.dtype is param.info.dtype and found.device == param.info.device
        if not same or not _equal_sizes(found, param.info, analyzer):
            return None
        carried.append(position)
    return tuple(carried)


def _symbols(values: Mapping[ir.GraphVar, ir.GraphExpr]) -> dict[ir.Var, ir.Expr]:
    """The sizes around a call that the symbols of a function denote."""
    result: dict[ir.Var, ir.Expr] = {}
    for param, arg in values.items():
        for dim, size in zip(_sizes(param.info) or (), _sizes(arg.info) or (), strict=False):
            if isinstance(dim, ir.Var):
                result.setdefault(dim, size)
    return result


def _sizes(info: ir.Info | None) -> tuple[ir.Expr, ...] | None:
    if isinstance(info, ir.TensorInfo):
        return info.shape
    return info.values if isinstance(info, ir.ShapeInfo) else None


def _equal_sizes(one: ir.Info | None, other: ir.Info | None, analyzer: Any) -> bool:
    a, b = _sizes(one), _sizes(other)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(analyzer.prove_equal(x, y) for x, y in zip(a, b, strict=True))


# ----------------------------------------------------------------------------------------- rewrite
def _as_loop(name: str, found: _TailCall, module: ir.IRModule) -> ir.IRModule:
    function, branch = module[name], module[_name(found.again)]
    assert isinstance(function, ir.GraphFunction)
    assert isinstance(branch, ir.GraphFunction)
    taken = set(module.functions)
    holds, step = (unique_name(f"{name}_{part}", taken) for part in ("holds", "step"))
    changed = [function.params[k] for k in found.carried]
    others = [p for p in function.params if p not in changed]
    params = (*changed, *others)
    infos = [p.info or ir.ObjectInfo() for p in changed]
    stepped = _result([found.given[k] for k in found.carried])
    step_info = infos[0] if len(infos) == 1 else ir.TupleInfo(tuple(infos))
    functions = dict(module.functions)
    functions[_name(found.again)] = flat_function(
        branch.replace(ret_info=stepped.info), branch.bindings[:-1], stepped
    )
    attrs = {k: v for k, v in function.attrs.items() if k in ir.BOUND_ATTRS}
    functions[holds] = _function(
        params, _needed(found.before, [found.condition]), found.condition, attrs
    )
    again = ir.GraphVar("stepped", info=step_info)
    call = found.again.replace(info=stepped.info)
    bindings = [*_needed(found.before, used_vars(call)), ir.VarBinding(again, call)]
    functions[step] = _function(params, bindings, again, attrs)
    whole = ir.GraphVar("looped", info=ir.TupleInfo(tuple(infos)))
    loop = ir.GraphCall(
        ir.OpRef("while_loop"),
        (ir.GlobalVar(holds), ir.GlobalVar(step), *params),
        {"carried": len(changed), "until": found.until},
        info=whole.info,
    )
    last = {p: ir.GraphVar(p.name, info=p.info) for p in changed}
    fields = [
        ir.VarBinding(var, ir.TupleGetItem(whole, k, info=var.info))
        for k, var in enumerate(last.values())
    ]
    after, values = _renewed(_needed(found.before, used_vars(found.rest)), last)
    rest = Replace(values)(found.rest)
    ended = found.choice.replace(value=rest)
    functions[name] = flat_function(
        function, [ir.VarBinding(whole, loop), *fields, *after, ended], found.choice.var
    )
    return module.replace(functions=functions)


def _result(values: Sequence[ir.GraphExpr]) -> ir.GraphExpr:
    """The result of a function that returns these values."""
    if len(values) == 1:
        return values[0]
    infos = tuple(v.info or ir.ObjectInfo() for v in values)
    return ir.TupleExpr(tuple(values), info=ir.TupleInfo(infos))


def _needed(
    bindings: Sequence[ir.VarBinding], values: Iterable[ir.GraphVar]
) -> list[ir.VarBinding]:
    """The bindings that compute values, in order."""
    wanted, kept = set(values), list[ir.VarBinding]()
    for binding in reversed(bindings):
        if binding.var in wanted:
            kept.append(binding)
            wanted.update(used_vars(binding.value))
    return kept[::-1]


def _renewed(
    bindings: Sequence[ir.VarBinding], values: Mapping[ir.GraphVar, ir.GraphVar]
) -> tuple[list[ir.VarBinding], dict[ir.Node, ir.Node]]:
    """Bindings with other variables; and what replaces the former ones."""
    known: dict[ir.Node, ir.Node] = {**values}
    result: list[ir.VarBinding] = []
    for binding in bindings:
        var = ir.GraphVar(binding.var.name, binding.var.dataflow, info=binding.var.info)
        result.append(binding.replace(var=var, value=Replace(known)(binding.value)))
        known[binding.var] = var
    return result, known


def _function(
    params: Sequence[ir.GraphVar],
    bindings: Sequence[ir.VarBinding],
    result: ir.GraphVar,
    attrs: Mapping[str, Any],
) -> ir.GraphFunction:
    """A private function with variables of its own."""
    own = {p: ir.GraphVar(p.name, info=p.info) for p in params}
    inner, known = _renewed(bindings, own)
    value = Replace(known)(result)
    blocks = (ir.BindingBlock(tuple(inner), dataflow=True),) if inner else ()
    body = ir.SeqExpr(blocks, value, info=result.info)
    return ir.GraphFunction(tuple(own.values()), body, result.info, dict(attrs))
