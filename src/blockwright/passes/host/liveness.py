"""Which values of a graph function own memory, and from which to which binding they need it.

a = call_tir(f, (x,))   # a: 0..2, because b is a view of a and binding 2 reads b
b = call_tir(view, (a,))
c = call_tir(g, (b,))   # c is returned: it owns the memory of a result
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockwright import ir
from blockwright.graph.updates import overwritten_arguments
from blockwright.ir.attributes import IS_VIEW
from blockwright.passes.host.signature import is_boxed, leaves
from blockwright.passes.rewrite import graph_functions, tir_args, tir_callee, used_vars


class Liveness(msgspec.Struct):
    """The values of a function and their live ranges.

    Attributes:
        first: value → position of the binding that computes it, for all values that own memory.
        last: value → position of its last use; of its definition if it is unused.
        alias: view → the value whose memory it reuses.
        fields: tuple value → its elements; those of a call are created here.
        results: values whose memory is that of a result, possibly through views.
    """

    first: dict[ir.GraphVar, int] = {}
    last: dict[ir.GraphVar, int] = {}
    alias: dict[ir.GraphVar, ir.GraphExpr] = {}
    fields: dict[ir.GraphVar, tuple[ir.GraphExpr, ...]] = {}
    results: set[ir.GraphVar] = set()

    def root(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The value whose memory `value` uses, with all views resolved."""
        while isinstance(value, ir.GraphVar) and value in self.alias:
            value = self.alias[value]
        return value

    def roots(self, var: ir.GraphVar) -> list[ir.GraphVar]:
        """Values whose memory is read when `var` is read."""
        roots = (self.root(value) for value in leaves(var, self.fields))
        return [r for r in roots if isinstance(r, ir.GraphVar)]


def is_view(value: ir.GraphExpr, module: ir.IRModule) -> bool:
    """Whether a binding only reinterprets the elements of its first argument."""
    name = tir_callee(value)
    if name is None:
        return False
    func = module[name]
    return bool(func.attrs.get(IS_VIEW)) and bool(tir_args(value))


def is_only_view(name: str, func: ir.Node, module: ir.IRModule) -> bool:
    """Whether a program is a view and never called: the memory plan aliases it instead."""
    if not isinstance(func, ir.PrimFunc) or not func.attrs.get(IS_VIEW):
        return False
    calls = [
        b.value
        for _, f in graph_functions(module)
        for b in f.bindings
        if isinstance(b, ir.VarBinding) and tir_callee(b.value) == name
    ]
    return all(is_view(c, module) for c in calls)


def is_unpacking(cast: ir.MatchCast) -> bool:
    """Whether a cast copies a tensor out of an object."""
    known = isinstance(cast.var.info, ir.TensorInfo) and not is_boxed(cast.var.info)
    return known and is_boxed(cast.value.info)


def live_ranges(function: ir.GraphFunction, module: ir.IRModule) -> Liveness:
    """The live ranges of the values of a function, by position of its bindings."""
    result = Liveness()
    for binding in function.bindings:
        name_memory(result, binding, module)
    for position, binding in enumerate(function.bindings):
        for var in defined_values(result, binding):
            if var not in result.alias:
                result.first[var] = result.last[var] = position
        for used in _read(result, binding, module):
            result.last.update((r, position) for r in result.roots(used) if r in result.first)
    returned = (r for v in used_vars(function.body.body) for r in result.roots(v))
    result.results.update(r for r in returned if r in result.first)
    return result


def _read(known: Liveness, binding: ir.Binding, module: ir.IRModule) -> list[ir.GraphVar]:
    """Values that a binding reads or overwrites: none if it only gives a value another name."""
    value = getattr(binding, "value", None)
    if not isinstance(value, ir.GraphExpr):
        return []
    runs = isinstance(value, (ir.GraphCall, ir.If)) and not is_view(value, module)
    runs = runs or (isinstance(binding, ir.MatchCast) and is_unpacking(binding))
    var = getattr(binding, "var", None)
    named = var in known.alias or var in known.fields
    return used_vars(value) if runs or not named else []


def name_memory(known: Liveness, binding: ir.Binding, module: ir.IRModule) -> None:
    """Classify a binding: it owns memory, aliases another value, or is a tuple."""
    if isinstance(binding, ir.MatchCast):
        if not is_unpacking(binding):
            known.alias[binding.var] = binding.value
    elif isinstance(binding, ir.VarBinding):
        _name_memory(known, binding.var, binding.value, module)


def _name_memory(
    known: Liveness, var: ir.GraphVar, value: ir.GraphExpr, module: ir.IRModule
) -> None:
    if is_view(value, module):
        known.alias[var] = tir_args(value)[0]
    elif isinstance(value, (ir.GraphVar, ir.Constant)) and not isinstance(var.info, ir.TupleInfo):
        known.alias[var] = value
    elif isinstance(value, ir.GraphVar) and value in known.fields:
        known.fields[var] = known.fields[value]
    elif isinstance(value, ir.TupleExpr):
        known.fields[var] = value.fields
    elif isinstance(value, ir.TupleGetItem) and value.tuple_value in known.fields:
        assert isinstance(value.tuple_value, ir.GraphVar)
        field = known.fields[value.tuple_value][value.index]
        if isinstance(field, ir.TupleExpr):
            known.fields[var] = field.fields
        elif isinstance(field, ir.GraphVar) and field in known.fields:
            known.fields[var] = known.fields[field]
        else:
            known.alias[var] = field
    elif isinstance(value, (ir.GraphCall, ir.If)) and isinstance(var.info, ir.TupleInfo):
        _new_fields(known, var, var.info)
    if isinstance(value, ir.GraphCall) and overwritten_arguments(value):
        results = known.fields.get(var, (var,))
        for position, index in overwritten_arguments(value).items():
            result = results[position]
            assert isinstance(result, ir.GraphVar)
            known.alias[result] = tir_args(value)[index]


def _new_fields(known: Liveness, var: ir.GraphVar, info: ir.TupleInfo) -> None:
    """Create the fields of a tuple that a call returns, nested ones included."""
    fields = tuple(
        ir.GraphVar(f"{var.name}_{index}", True, info=part)
        for index, part in enumerate(info.fields)
    )
    known.fields[var] = fields
    for field in fields:
        if isinstance(field.info, ir.TupleInfo):
            _new_fields(known, field, field.info)


def defined_values(known: Liveness, binding: ir.Binding) -> Iterator[ir.GraphVar]:
    """Values that a binding computes."""
    if not isinstance(binding, (ir.VarBinding, ir.MatchCast)):
        return
    if binding.var not in known.fields:
        yield binding.var
    elif isinstance(binding.value, (ir.GraphCall, ir.If)):
        every = leaves(binding.var, known.fields)
        yield from (f for f in every if isinstance(f, ir.GraphVar))
