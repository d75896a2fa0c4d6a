"""What pattern matching asks of a function: definitions, readers, effects."""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.annotate import annotate
from blockwright.graph.builder import function_analyzer
from blockwright.graph.effects import has_effect, nested_bodies
from blockwright.ops.table import OPERATORS

_PACKED_TUPLE = ("call_tir", "call_tir_inplace", "call_dps_library")
_PACKED = ("call_packed", "call_pure_packed")


class GraphIndex:
    """Definitions, readers and effects of an annotated graph function, its branches included.

    Attributes:
        function: the function with deduced annotations.
        variables: all variables that the function binds, its parameters included.
        order: variables bound to values of their own, not to other variables, in program order.
        values: variable → the value that it is bound to.
        regions: variable → number of its region. Two bindings are in one region if they are in the
            same body and no effect lies between them.
        readers: variable → variables whose values read it; None stands for a result, a
            `match_cast` or the condition of a branch.
    """

    def __init__(self, function: ir.GraphFunction, module: ir.IRModule | None = None) -> None:
        self.module = module
        self.function = annotate(function, module)
        self.analyzer = function_analyzer(self.function)
        self.variables: set[ir.GraphVar] = set(self.function.params)
        self.order: list[ir.GraphVar] = []
        self.values: dict[ir.GraphVar, ir.GraphExpr] = {}
        self.regions: dict[ir.GraphVar, int] = {}
        self.readers: dict[ir.GraphVar, list[ir.GraphVar | None]] = {}
        self._barriers: list[str] = []
        self._body(self.function.body, "the start of the function")

    def _body(self, body: ir.SeqExpr, begin: str) -> None:
        self._barriers.append(begin)
        region = len(self._barriers) - 1
        for block in body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, ir.VarBinding):
                    assert isinstance(binding, ir.MatchCast)
                    self.variables.add(binding.var)
                    self._read(binding.value, None)
                    continue
                if isinstance(binding.value, ir.GraphFunction):
                    self.variables.update(binding.value.params)
                for nested in nested_bodies(binding.value):
                    self._body(nested, f"the start of a branch or function of {binding.var.name}")
                effect = has_effect(binding.value, self.module)
                if effect:
                    self._barriers.append(f"the effect of {binding.var.name}")
                    region = len(self._barriers) - 1
                self._define(binding, region)
                if effect:
                    self._barriers.append(f"the effect of {binding.var.name}")
                    region = len(self._barriers) - 1
        self._read(body.body, None)

    def _define(self, binding: ir.VarBinding, region: int) -> None:
        if not isinstance(binding.value, (ir.GraphVar, ir.Constant)):
            self.order.append(binding.var)
        self.variables.add(binding.var)
        self.values[binding.var] = binding.value
        self.regions[binding.var] = region
        self._read(binding.value, binding.var)

    def _read(self, value: ir.GraphExpr, reader: ir.GraphVar | None) -> None:
        for var in ir.collect(value, ir.GraphVar):
            self.readers.setdefault(var, []).append(reader)

    def barrier(self, region: int) -> str:
        """What separates a region from the one before it."""
        return self._barriers[region]

    def resolve(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The variable that a variable is only another name of; other values themselves."""
        while isinstance(value, ir.GraphVar):
            inner = self.values.get(value)
            if not isinstance(inner, (ir.GraphVar, ir.Constant)):
                return value
            value = inner
        return value

    def definition(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The value behind a variable; the variable itself if it is a parameter or a cast."""
        value = self.resolve(value)
        return self.values.get(value, value) if isinstance(value, ir.GraphVar) else value

    def operands(self, call: ir.GraphCall) -> tuple[ir.GraphExpr, ...]:
        """The operands of a call: without the callee, and with the fields of operand tuples."""
        if not isinstance(call.op, ir.OpRef):
            return call.args
        if call.op.name in _PACKED_TUPLE:
            return self._fields(call.args[1])
        if call.op.name in _PACKED:
            return call.args[1:]
        if call.op.name in OPERATORS:
            return tuple(part for arg in call.args for part in self._fields(arg))
        return call.args

    def _fields(self, value: ir.GraphExpr) -> tuple[ir.GraphExpr, ...]:
        whole = self.definition(value)
        return whole.fields if isinstance(whole, ir.TupleExpr) else (value,)

    def described(self, value: ir.GraphExpr) -> str:
        """A value in the words of an explanation."""
        if isinstance(value, ir.GraphVar):
            behind = self.values.get(value)
            if behind is not None:
                return f"{value.name} = {_head(behind)}"
            kind = "parameter" if value in self.function.params else "match_cast"
            return f"the {kind} {value.name}"
        if isinstance(value, ir.Constant):
            return f"the constant {value.name}" if value.name else "a constant"
        return _head(value)


def _head(value: ir.GraphExpr) -> str:
    """The text of a value; a call with its operands by name."""
    if isinstance(value, ir.GraphCall):
        args = value.args[1:] if _op(value) in (*_PACKED_TUPLE, *_PACKED) else value.args
        return f"{callee_name(value)}({', '.join(map(_head, args))})"
    if isinstance(value, ir.GraphVar):
        return value.name
    if isinstance(value, ir.Constant):
        return value.name or "constant"
    if isinstance(value, ir.TupleExpr):
        return f"({', '.join(_head(f) for f in value.fields)})"
    return type(value).__name__


def _op(call: ir.GraphCall) -> str:
    return str(getattr(call.op, "name", "function"))


def callee_name(call: ir.GraphCall) -> str:
    """The name of what a call calls: an operator, a tensor program, a library function."""
    name = _op(call)
    if name in (*_PACKED_TUPLE, *_PACKED) and call.args:
        return str(getattr(call.args[0], "name", name))
    return name
