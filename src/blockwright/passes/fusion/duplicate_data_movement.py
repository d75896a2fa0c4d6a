"""RepeatMovement: give each reader of a data movement its own copy, so that fusion removes it.

Before::

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        half = R.call_tir(cls.half, (x,), R.Tensor((4,), "float32"))
        a = R.call_tir(cls.exp, (half,), R.Tensor((4,), "float32"))
        b = R.call_tir(cls.exp, (half,), R.Tensor((4,), "float32"))
        return (a, b)

    @T.prim_func(private=True)
    def half(x: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")):
        T.func_attr({"compute_pattern": "Injective"})
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v + 4]

    @T.prim_func(private=True)
    def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        T.func_attr({"compute_pattern": "ElementWise"})
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = T.exp(x[v])

After::

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        half = R.call_tir(cls.half, (x,), R.Tensor((4,), "float32"))
        a = R.call_tir(cls.exp, (half,), R.Tensor((4,), "float32"))
        again = R.call_tir(cls.half, (x,), R.Tensor((4,), "float32"))
        b = R.call_tir(cls.exp, (again,), R.Tensor((4,), "float32"))
        return (a, b)

`fuse_ops` fuses a producer only into its single reader. Reading through an index map is free, so
duplicating the movement adds no work and removes the copy from memory. This holds if contiguous
runs stay contiguous and all readers are light; contractions and reductions, which read elements
several times, keep the shared copy. Views (`tir.view`) copy nothing: they are duplicated only if
they follow a copy, so that the copy ends up directly before its readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from blockwright import ir
from blockwright.graph.updates import overwritten_at
from blockwright.ir.attributes import IS_VIEW
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.fusion.data_movement import (
    is_joined,
    is_movement,
    keeps_last_axis,
    keeps_runs,
)
from blockwright.passes.fusion.fuse_ops import ANCHORS, LIGHT
from blockwright.passes.rewrite import (
    flat_function,
    map_graph_functions,
    tir_args,
    tir_callee,
    used_vars,
)


@graph_pass
def duplicate_data_movement(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Duplicate data movement for each of its readers if fusion then removes it."""
    programs = {
        name: _Program(f) for name, f in module.functions.items() if isinstance(f, ir.PrimFunc)
    }

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        if function.attrs.get("primitive"):
            return function
        calls = _Calls(function, programs)
        for var in reversed(calls.order):  # readers first, so that whole chains are duplicated
            if calls.may_repeat(var):
                calls.repeat(var)
        return flat_function(function, calls.bindings()) if calls.front else function

    return map_graph_functions(module, one)


_Bound = ir.VarBinding | ir.MatchCast  # every kind of binding


class _Program:
    """Properties of a tensor program that the pass uses, computed on demand."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.kind = str(func.attrs.get("compute_pattern", "Opaque"))
        self.view = bool(func.attrs.get(IS_VIEW))

    @cached_property
    def copies(self) -> bool:
        return is_movement(self.func) and keeps_runs(self.func)

    @cached_property
    def keeps_last_axis(self) -> bool:
        return is_movement(self.func) and keeps_last_axis(self.func)

    @cached_property
    def light(self) -> bool:
        return self.kind in LIGHT or is_joined(self.func)


class _Calls:
    """The bindings of a function, the readers of each, and the copies inserted before them."""

    def __init__(self, function: ir.GraphFunction, programs: dict[str, _Program]) -> None:
        self._programs = programs
        self._by_var: dict[ir.GraphVar, _Bound] = {
            b.var: b for b in function.bindings if isinstance(b, ir.VarBinding | ir.MatchCast)
        }
        self.order = list(self._by_var)
        self.front: dict[ir.GraphVar, list[ir.GraphVar]] = {}
        self._readers: dict[ir.GraphVar, list[ir.GraphVar]] = {}
        self._kept = set(used_vars(function.body.body))
        self._overwritten = overwritten_at(function)
        self._places = {b: k for k, b in enumerate(self.order)}  # of copies, those of readers
        for var, binding in self._by_var.items():
            for used in used_vars(binding.value):
                self._readers.setdefault(used, []).append(var)

    def bindings(self) -> Iterator[ir.Binding]:
        """All bindings in order, each preceded by its copies."""
        return (binding for var in self.order for binding in self._behind_copies(var))

    def _behind_copies(self, var: ir.GraphVar) -> Iterator[ir.Binding]:
        for copy in self.front.get(var, ()):
            yield from self._behind_copies(copy)
        yield self._by_var[var]

    def may_repeat(self, var: ir.GraphVar) -> bool:
        """Whether a call moves data to several readers that could all read through it."""
        program, readers = self._program(var), self._readers.get(var, [])
        if program is None or not program.copies or var in self._kept or len(readers) < 2:
            return False
        if not all((reader := self._program(r)) and reader.light for r in readers):
            return False
        last = max(self._places[r] for r in readers)
        if any(self._overwritten.get(a, last) < last for a in used_vars(self._by_var[var].value)):
            return False  # a copy would read what has been overwritten
        return self._moves(var) and not self._is_epilogue(var)

    def repeat(self, var: ir.GraphVar) -> None:
        """Keep the call for its first reader, and duplicate it for each other reader."""
        binding = self._by_var[var]
        assert isinstance(binding, ir.VarBinding)
        first, *others = dict.fromkeys(self._readers[var])
        self._readers[var] = [first]
        for number, reader in enumerate(others, 1):
            copy = ir.GraphVar(f"{var.name}_{number}", var.dataflow, info=var.info)
            self._by_var[copy] = ir.VarBinding(copy, binding.value)
            for used in used_vars(binding.value):
                self._readers[used].append(copy)
            self._readers[copy] = [reader]
            self._places[copy] = self._places[reader]
            reading = self._by_var[reader]
            assert isinstance(reading, ir.VarBinding)
            value = reading.value.map_children(_Renamed(var, copy))
            self._by_var[reader] = reading.replace(value=value)
            self.front.setdefault(reader, []).append(copy)

    def _moves(self, var: ir.GraphVar) -> bool:
        """Whether this call copies elements, or is a view of a copy that has no other reader."""
        program = self._program(var)
        if program is None or not program.copies:
            return False
        if not program.view:
            return True
        return any(
            self._readers[a] == [var] and a not in self._kept and self._moves(a)
            for a in self._arguments(var)
        )

    def _is_epilogue(self, var: ir.GraphVar) -> bool:
        """Whether the input comes from an anchor that can write the copy as its epilogue."""
        program = self._program(var)
        if program is None or not program.keeps_last_axis:
            return False
        producers = [self._program(a) for a in self._arguments(var) if self._readers[a] == [var]]
        return any(p is not None and p.kind in ANCHORS for p in producers)

    def _program(self, var: ir.GraphVar) -> _Program | None:
        binding = self._by_var.get(var)
        if not isinstance(binding, ir.VarBinding) or isinstance(var.info, ir.TupleInfo):
            return None
        return self._programs.get(tir_callee(binding.value) or "")

    def _arguments(self, var: ir.GraphVar) -> list[ir.GraphVar]:
        arguments = tir_args(self._by_var[var].value)
        return [a for a in arguments if isinstance(a, ir.GraphVar) and a in self._by_var]


class _Renamed(ir.Mutator):
    """Replace one variable by another."""

    def __init__(self, old: ir.GraphVar, new: ir.GraphVar) -> None:
        super().__init__()
        self._memo[old] = new
