"""What inlining asks of functions: deduced annotations, symbols of casts, constant conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import Deduced, symbol_ranges
from blockwright.graph.effects import nested_bodies
from blockwright.passes.rewrite import graph_functions


def deduced_infos(module: ir.IRModule) -> dict[ir.GraphVar, ir.Info | None]:
    """The deduced annotations of all variables."""
    result: dict[ir.GraphVar, ir.Info | None] = {}
    for _, function in graph_functions(module):
        result |= Deduced(function, module).infos
    return result


def cast_symbols(body: ir.SeqExpr) -> set[ir.Var]:
    """Symbols of the casts of a function and of its branches."""
    found: set[ir.Var] = set()
    waiting = [body]
    while waiting:
        for block in waiting.pop().blocks:
            for binding in block.bindings:
                if isinstance(binding, ir.MatchCast):
                    found.update(ir.symbolic_vars(binding.pattern))
                elif isinstance(binding, ir.VarBinding) and isinstance(binding.value, ir.If):
                    waiting += nested_bodies(binding.value)
    return found


def known_flag(condition: ir.GraphExpr) -> bool | None:
    """The value of a condition that is a constant."""
    if isinstance(condition, ir.PrimValue):
        number = ir.const_int(condition.value)
        return None if number is None else bool(number)
    if isinstance(condition, ir.Constant) and condition.data.size == 1:
        return bool(condition.data.reshape(-1)[0])
    return None


def may_be_negative(info: ir.Info | None) -> bool:
    """Whether a computed size of an annotation, such as `n - 2`, may be negative."""
    if isinstance(info, ir.TupleInfo):
        return any(map(may_be_negative, info.fields))
    if isinstance(info, ir.TensorInfo):
        sizes = info.shape or ()
    else:
        sizes = (info.values or ()) if isinstance(info, ir.ShapeInfo) else ()
    computed = [size for size in sizes if not isinstance(size, (ir.Var, ir.IntImm))]
    symbols = list(dict.fromkeys(s for size in computed for s in ir.free_vars(size)))
    known = Analyzer(symbol_ranges({}, symbols))
    return not all(known.prove(ir.compare(ir.GE, size, 0)) for size in computed)


def states_result(call: ir.GraphCall) -> bool:
    """Whether a call of a function value states the annotation of its result, which is checked."""
    known = isinstance(call.op, ir.OpRef) and call.op.name == "invoke_closure"
    return known and bool(call.out_info)


def in_scope(value: Any, scope: Callable[[Any], Any]) -> Any:
    """An attribute with the nodes in it replaced."""
    if isinstance(value, ir.Node):
        return scope(value)
    if isinstance(value, (list, tuple)):
        return tuple(in_scope(v, scope) for v in cast("Iterable[Any]", value))
    return value
