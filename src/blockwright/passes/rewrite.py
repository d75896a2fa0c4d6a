"""Helpers for passes that rewrite the bindings of graph functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from blockwright import ir
from blockwright.graph.loops import LOOPS
from blockwright.support import GraphError

_EFFECTS = LOOPS | {"call_packed", "call_dps_library", "call_tir_inplace", "invoke_closure"}
"""Operators that stay even if nothing uses their results. The steps of loops may check sizes."""


def graph_functions(module: ir.IRModule) -> list[tuple[str, ir.GraphFunction]]:
    """Graph functions of the module by name."""
    return [(n, f) for n, f in module.functions.items() if isinstance(f, ir.GraphFunction)]


def map_graph_functions(
    module: ir.IRModule, fn: Callable[[str, ir.GraphFunction], ir.GraphFunction]
) -> ir.IRModule:
    """Rewrite every graph function of a module with `fn(name, function)`."""
    return _mapped(module, lambda name, f: fn(name, f) if isinstance(f, ir.GraphFunction) else f)


def map_programs(module: ir.IRModule, fn: Callable[[str, ir.PrimFunc], ir.PrimFunc]) -> ir.IRModule:
    """Rewrite every tensor program of a module with `fn(name, program)`."""
    return _mapped(module, lambda name, f: fn(name, f) if isinstance(f, ir.PrimFunc) else f)


def _mapped(module: ir.IRModule, fn: Callable[[str, ir.Node], ir.Node]) -> ir.IRModule:
    functions = {name: fn(name, f) for name, f in module.functions.items()}
    same = all(functions[n] is module.functions[n] for n in functions)
    return module if same else module.replace(functions=functions)


def map_calls(
    module: ir.IRModule,
    operators: Container[str],
    fn: Callable[[str, str, ir.GraphCall], ir.GraphCall],
) -> ir.IRModule:
    """Rewrite the bound calls of operators with `fn(operator, name of the variable, call)`."""

    def one(binding: ir.Binding) -> ir.Binding:
        call = binding.value if isinstance(binding, ir.VarBinding) else None
        if not isinstance(binding, ir.VarBinding) or not isinstance(call, ir.GraphCall):
            return binding
        if not isinstance(call.op, ir.OpRef) or call.op.name not in operators:
            return binding
        result = fn(call.op.name, binding.var.name, call)
        return binding if result is call else binding.replace(value=result)

    def rewrite(_name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        bindings = [one(binding) for binding in function.bindings]
        same = all(a is b for a, b in zip(bindings, function.bindings, strict=True))
        return function if same else flat_function(function, bindings)

    return map_graph_functions(module, rewrite)


def flat_function(
    function: ir.GraphFunction, bindings: Iterable[ir.Binding], result: ir.GraphExpr | None = None
) -> ir.GraphFunction:
    """Replace the bindings of a function by one block that holds `bindings`.

    It is a dataflow block unless there are branches.
    """
    kept = tuple(bindings)
    plain = not any(isinstance(getattr(b, "value", None), ir.If) for b in kept)
    body = function.body.replace(
        blocks=(ir.BindingBlock(kept, dataflow=plain),),
        body=function.body.body if result is None else result,
    )
    return function.replace(body=body)


def tuple_info(fields: Sequence[ir.GraphExpr]) -> ir.TupleInfo:
    """Annotation of a tuple of these values."""
    return ir.TupleInfo(tuple(f.info or ir.ObjectInfo() for f in fields))


def unique_name(name: str, taken: set[str]) -> str:
    """Return `name`, numbered if taken, and add the result to `taken`."""
    candidate, number = name, 1
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate


def call_tir(
    name: str, args: Sequence[ir.GraphExpr], out: Sequence[ir.Info], symbols: Sequence[ir.Expr] = ()
) -> ir.GraphCall:
    """Build a `call_tir` of a tensor program of the module, with its result annotation."""
    fields = tuple(args)
    packed = ir.TupleExpr(fields, info=tuple_info(fields))
    operands: tuple[ir.GraphExpr, ...] = (ir.GlobalVar(name), packed)
    if symbols:
        operands = (*operands, ir.ShapeExpr(tuple(symbols), info=ir.ShapeInfo(tuple(symbols))))
    info = out[0] if len(out) == 1 else ir.TupleInfo(tuple(out))
    return ir.GraphCall(ir.OpRef("call_tir"), operands, {}, tuple(out), info=info)


def called_operator(value: ir.Node | None) -> str:
    """Name of the operator that an expression calls; "" for other expressions."""
    operator = value.op if isinstance(value, ir.GraphCall) else None
    return operator.name if isinstance(operator, ir.OpRef) else ""


def tir_callee(value: ir.GraphExpr) -> str | None:
    """Name of the tensor program that a call_tir calls; None for other expressions."""
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return None
    if value.op.name != "call_tir" or not isinstance(value.args[0], ir.GlobalVar):
        return None
    return value.args[0].name


def called_function(value: ir.GraphExpr, module: ir.IRModule) -> str | None:
    """Name of the graph function that an expression calls; None for other expressions."""
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.GlobalVar):
        return None
    known = module.functions.get(value.op.name)
    return value.op.name if isinstance(known, ir.GraphFunction) else None


def branch_call(branch: ir.SeqExpr) -> ir.GraphCall:
    """The call that an outlined branch consists of (see `functions.outline_branches`)."""
    (binding,) = branch.blocks[0].bindings
    assert isinstance(binding, ir.VarBinding)
    assert isinstance(binding.value, ir.GraphCall)
    return binding.value


def tir_args(value: ir.GraphExpr) -> tuple[ir.GraphExpr, ...]:
    """Tensor arguments of a call_tir."""
    assert isinstance(value, ir.GraphCall)
    packed = value.args[1]
    assert isinstance(packed, ir.TupleExpr)
    return packed.fields


def tir_symbols(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    """Extra symbolic arguments of a call_tir."""
    assert isinstance(value, ir.GraphCall)
    last = value.args[-1]
    return last.values if isinstance(last, ir.ShapeExpr) else ()


def symbol_values(
    callee: ir.PrimFunc, shapes: Sequence[Sequence[ir.Expr]], given: Sequence[ir.Expr]
) -> dict[ir.Var, ir.Expr]:
    """Map the symbols and scalar parameters of a tensor program to their values in a call.

    Arguments: `shapes` of all buffers as known to the caller; `given`, the values of the scalars.
    Raises: GraphError BW412 if the shapes do not determine a symbol.
    """
    mapped = dict(callee.buffer_map)
    scalars = [p for p in callee.params if p not in mapped]
    bound: dict[ir.Var, ir.Expr] = dict(zip(scalars, given, strict=True))
    mentioned: dict[ir.Var, None] = {}
    for formal, shape in zip(callee.buffers, shapes, strict=True):
        for dim, size in zip(formal.shape, shape, strict=True):
            mentioned.update((v, None) for v in ir.free_vars(dim))
            if isinstance(dim, ir.Var):
                bound.setdefault(dim, size)
    missing = [v.name for v in mentioned if v not in bound]
    if missing:
        raise GraphError(
            f"the arguments of {callee.name} do not determine {', '.join(missing)}",
            code="BW412",
            help="use the symbol alone as a dimension of some argument, or make it a scalar "
            "parameter and pass it in tir_vars",
        )
    return bound


def constant_positions(module: ir.IRModule) -> dict[str, set[int]]:
    """Map each called program to the argument positions that are constants in every call."""
    result: dict[str, set[int]] = {}
    for _, function in graph_functions(module):
        for binding in function.bindings:
            value = getattr(binding, "value", None)
            name = tir_callee(value) if isinstance(value, ir.GraphExpr) else None
            if name is None or value is None:
                continue
            here = {i for i, a in enumerate(tir_args(value)) if isinstance(a, ir.Constant)}
            result[name] = result[name] & here if name in result else here
    return result


def used_vars(value: ir.Node) -> list[ir.GraphVar]:
    """Graph variables that an expression mentions."""
    return ir.collect(value, ir.GraphVar)


def unbound_symbols(func: ir.PrimFunc) -> list[ir.Var]:
    """Symbols in a program's shapes or body that are neither parameters nor dimensions of one."""
    bound: set[ir.Var] = set(func.params)
    for buffer in func.buffers:
        bound.update(d for d in buffer.shape if isinstance(d, ir.Var))
    mentioned: dict[ir.Var, None] = {}
    local: set[ir.Var] = set()
    for node in ir.walk(func.body):
        if isinstance(node, ir.For):
            local.add(node.loop_var)
        elif isinstance(node, (ir.IterVar, ir.LetStmt, ir.Let)):
            local.add(node.var)
        elif isinstance(node, ir.Var):
            mentioned[node] = None
    for buffer in func.buffers:
        for dim in buffer.shape:
            mentioned.update((v, None) for v in ir.free_vars(dim))
    return [v for v in mentioned if v not in bound and v not in local]


def is_pure(value: ir.GraphExpr) -> bool:
    """Whether a value can be computed twice, or not at all, without anyone noticing."""
    if isinstance(value, ir.GraphCall):
        return isinstance(value.op, ir.OpRef) and value.op.name not in _EFFECTS
    return not isinstance(value, ir.If)


class Replace(ir.Mutator):
    """Replace values inside calls and results, but not in annotations."""

    def __init__(self, values: dict[ir.Node, ir.Node]) -> None:
        super().__init__()
        self.values = values

    def __call__(self, node: Any) -> Any:
        if node in self.values:
            return self.values[node]
        if isinstance(node, (ir.GraphVar, ir.Constant, ir.Info)):
            return node
        return node.map_children(self)
