"""DynShapeAwareMemoryPlanning: assign intermediate values to shared storage.

Before:  lv0: (2, n), lv1: (n, 2), lv2: (n, 2), lv3: (2, n), one allocation each
After:   s0: 2*n*4 bytes holds lv0 and lv2, s1: 2*n*4 bytes holds lv1 and lv3

Storage is reused if its size is *proved* sufficient for every value of the symbols. Sizes remain
expressions, and the arena of a call is their sum. Results of the function are not planned: the
entry or the caller provides their storage.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer
from blockwright.graph.updates import overwritten_arguments
from blockwright.ir.attributes import IS_VIEW
from blockwright.passes.host.signature import leaves
from blockwright.passes.rewrite import tir_args, tir_callee, used_vars

ALIGNMENT = 64


class ArenaBlock(msgspec.Struct):
    """One block of the arena: size and offset in bytes, names of the values it holds in order."""

    size: ir.Expr
    offset: ir.Expr | None = None
    holds: list[str] = []


class ArenaPlan(msgspec.Struct):
    """The memory plan of one graph function.

    Attributes:
        storages: blocks of the arena in order.
        place: value → index of its block.
        alias: view → the value whose memory it reuses.
        fields: tuple value → its elements; those of a call are created here.
        results: values computed directly into the memory of a result, possibly through views.
        total: bytes of the arena as an expression of the symbols.
        unshared: bytes needed without sharing.
    """

    storages: list[ArenaBlock]
    place: dict[ir.GraphVar, int]
    alias: dict[ir.GraphVar, ir.GraphExpr]
    total: ir.Expr
    unshared: ir.Expr
    results: set[ir.GraphVar]
    fields: dict[ir.GraphVar, tuple[ir.GraphExpr, ...]]

    def root(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The value whose memory `value` uses, with all views resolved."""
        while isinstance(value, ir.GraphVar) and value in self.alias:
            value = self.alias[value]
        return value


def byte_size(info: ir.TensorInfo) -> ir.Expr:
    """Bytes of a tensor, rounded up to the alignment of storage."""
    assert info.shape is not None
    assert info.dtype is not None
    size: ir.Expr = ir.const(info.dtype.nbytes, "int64")
    for dim in info.shape:
        size = ir.mul(size, dim)
    return ir.mul(ir.ceildiv(size, ALIGNMENT), ALIGNMENT)


def is_view(value: ir.GraphExpr, module: ir.IRModule) -> bool:
    """Whether a binding only reinterprets the elements of its first argument."""
    name = tir_callee(value)
    if name is None:
        return False
    func = module[name]
    return bool(func.attrs.get(IS_VIEW)) and bool(tir_args(value))


class _Planner:
    def __init__(self, function: ir.GraphFunction, module: ir.IRModule) -> None:
        self.function = function
        self.module = module
        self.analyzer: Analyzer = function_analyzer(function)
        self.plan = ArenaPlan([], {}, {}, ir.const(0, "int64"), ir.const(0, "int64"), set(), {})
        self.free: list[int] = []

    def run(self) -> ArenaPlan:
        bindings = self.function.bindings
        for binding in bindings:
            if isinstance(binding, ir.MatchCast):
                self.plan.alias[binding.var] = binding.value
            elif isinstance(binding, ir.VarBinding):
                self._name_memory(binding.var, binding.value)
        last = self._last_uses(bindings)
        returned = {r for v in used_vars(self.function.body.body) for r in self._roots(v)}
        for position, binding in enumerate(bindings):
            for var in self._defined(binding):
                if var in returned:
                    self.plan.results.add(var)
                elif var not in self.plan.alias:
                    self._place(var)
            for value, end in list(last.items()):
                if end == position and value in self.plan.place:
                    self.free.append(self.plan.place[value])
                    del last[value]
        self._lay_out()
        return self.plan

    def _name_memory(self, var: ir.GraphVar, value: ir.GraphExpr) -> None:
        """Classify a binding: it owns memory, aliases another value, or is a tuple."""
        if is_view(value, self.module):
            self.plan.alias[var] = tir_args(value)[0]
        elif isinstance(value, (ir.GraphVar, ir.Constant)) and not isinstance(
            var.info, ir.TupleInfo
        ):
            self.plan.alias[var] = value
        elif isinstance(value, ir.GraphVar) and value in self.plan.fields:
            self.plan.fields[var] = self.plan.fields[value]
        elif isinstance(value, ir.TupleExpr):
            self.plan.fields[var] = value.fields
        elif isinstance(value, ir.TupleGetItem) and value.tuple_value in self.plan.fields:
            assert isinstance(value.tuple_value, ir.GraphVar)
            field = self.plan.fields[value.tuple_value][value.index]
            if isinstance(field, ir.TupleExpr):
                self.plan.fields[var] = field.fields
            elif isinstance(field, ir.GraphVar) and field in self.plan.fields:
                self.plan.fields[var] = self.plan.fields[field]
            else:
                self.plan.alias[var] = field
        elif isinstance(value, (ir.GraphCall, ir.If)) and isinstance(var.info, ir.TupleInfo):
            self._new_fields(var, var.info)
        if isinstance(value, ir.GraphCall) and overwritten_arguments(value):
            results = self.plan.fields.get(var, (var,))
            for position, index in overwritten_arguments(value).items():
                result = results[position]
                assert isinstance(result, ir.GraphVar)
                self.plan.alias[result] = tir_args(value)[index]

    def _new_fields(self, var: ir.GraphVar, info: ir.TupleInfo) -> None:
        """Create the fields of a tuple that a call returns, nested ones included."""
        fields = tuple(
            ir.GraphVar(f"{var.name}_{index}", True, info=part)
            for index, part in enumerate(info.fields)
        )
        self.plan.fields[var] = fields
        for field in fields:
            if isinstance(field.info, ir.TupleInfo):
                self._new_fields(field, field.info)

    def _defined(self, binding: ir.Binding) -> list[ir.GraphVar]:
        """Values that a binding computes."""
        if not isinstance(binding, (ir.VarBinding, ir.MatchCast)):
            return []
        if binding.var not in self.plan.fields:
            return [binding.var]
        if not isinstance(binding.value, (ir.GraphCall, ir.If)):
            return []
        every = leaves(binding.var, self.plan.fields)
        return [f for f in every if isinstance(f, ir.GraphVar)]

    def _roots(self, var: ir.GraphVar) -> list[ir.GraphVar]:
        """Values whose memory is read when `var` is read."""
        roots = [self.plan.root(v) for v in leaves(var, self.plan.fields)]
        return [r for r in roots if isinstance(r, ir.GraphVar)]

    def _last_uses(self, bindings: tuple[ir.Binding, ...]) -> dict[ir.GraphVar, int]:
        """Map each value to the position of its last use; an unused one to its definition."""
        last: dict[ir.GraphVar, int] = {}
        for position, binding in enumerate(bindings):
            for var in self._defined(binding):
                last[var] = position
            value = getattr(binding, "value", None)
            for used in used_vars(value) if isinstance(value, ir.Node) else []:
                last.update(dict.fromkeys(self._roots(used), position))
        return last

    def _place(self, var: ir.GraphVar) -> None:
        info = var.info
        if not isinstance(info, ir.TensorInfo) or info.shape is None:
            return
        size = self.analyzer.simplify(byte_size(info))
        self.plan.unshared = self.plan.unshared + size
        chosen = self._reusable(size)
        if chosen is None:
            self.plan.storages.append(ArenaBlock(size, holds=[]))
            chosen = len(self.plan.storages) - 1
        self.plan.storages[chosen].holds.append(var.name)
        self.plan.place[var] = chosen

    def _reusable(self, size: ir.Expr) -> int | None:
        """A free block proved large enough, of equal size if possible; else one to enlarge."""
        for index in self.free:
            if self.analyzer.prove_equal(self.plan.storages[index].size, size):
                self.free.remove(index)
                return index
        for index in self.free:
            if self.analyzer.prove(self.plan.storages[index].size >= size):
                self.free.remove(index)
                return index
        for index in self.free:  # enlarge one that is smaller for every value of the symbols
            if self.analyzer.prove(self.plan.storages[index].size <= size):
                self.plan.storages[index].size = size
                self.free.remove(index)
                return index
        return None

    def _lay_out(self) -> None:
        offset: ir.Expr = ir.const(0, "int64")
        for storage in self.plan.storages:
            storage.offset = offset
            offset = self.analyzer.simplify(offset + storage.size)
        self.plan.total = offset
        self.plan.unshared = self.analyzer.simplify(self.plan.unshared)


def plan_memory(function: ir.GraphFunction, module: ir.IRModule) -> ArenaPlan:
    """Plan the storage of one graph function."""
    return _Planner(function, module).run()
