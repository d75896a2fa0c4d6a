"""Emit bindings whose annotations are deduced at once, and symbols for sizes known at run time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from blockwright import ir
from blockwright.graph import Deduced, constant
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.legalize import ProgramTable, symbol_attrs, with_scalar_symbols
from blockwright.passes.rewrite import call_tir, tuple_info, unique_name
from blockwright.passes.size_limits import SizeLimits
from blockwright.script.compute import Program
from blockwright.support import GraphError

_INT64 = ir.dtype_of("int64")


class Emitter:
    """Emits the bindings of one function.

    Attributes:
        deduced: annotations of what has been emitted so far.
        bindings: those of the sequence to which more are added.
        symbols: names of all symbols; bounds: declared upper bounds, by name.
        limits: the largest values of the symbols that were bound at run time.
    """

    def __init__(
        self,
        function: ir.GraphFunction,
        params: Sequence[ir.GraphVar],
        symbols: set[str],
        module: ir.IRModule,
        table: ProgramTable,
    ) -> None:
        self.function, self.module, self.table = function, module, table
        self.symbols = symbols
        self.bounds: dict[str, int] = dict(function.attrs.get(UPPER_BOUND, {}))
        body = ir.SeqExpr((), ir.TupleExpr(()))
        empty = function.replace(params=tuple(params), body=body, ret_info=None)
        self.deduced = Deduced(empty, module)
        inputs = (s for param in params for s in ir.parameter_symbols(param.info))
        self.deduced.scope = dict.fromkeys(inputs)
        self.limits = SizeLimits(self.deduced.analyzer)
        self.bindings: list[ir.Binding] = []

    @contextmanager
    def inside(self, bindings: list[ir.Binding]) -> Generator[None]:
        """Add to other bindings for a while, whose symbols are not visible afterwards."""
        saved, scope = self.bindings, dict(self.deduced.scope)
        self.bindings = bindings
        yield
        self.bindings, self.deduced.scope = saved, scope

    def add(self, binding: ir.Binding) -> None:
        """Add a binding. Raises: GraphError if it is not valid."""
        self.bindings.append(binding)
        self.deduced.binding(binding)
        if self.deduced.problems:
            raise GraphError.collect(self.deduced.problems)

    def emit(self, value: ir.GraphExpr, name: str, var: ir.GraphVar | None = None) -> ir.GraphVar:
        """Bind a value to a variable."""
        result = ir.GraphVar(name, True) if var is None else var
        self.add(ir.VarBinding(result, value))
        return result

    def named(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """An operand whose annotation is known: a variable, a constant, or a tuple of these."""
        if isinstance(value, ir.TupleExpr):
            return value.replace(fields=tuple(map(self.named, value.fields)), info=None)
        plain = (ir.GraphVar, ir.Constant, ir.ShapeExpr, ir.PrimValue)
        return value if isinstance(value, plain) else self.emit(value, "lv")

    def info(self, value: ir.GraphExpr) -> ir.Info | None:
        """The annotation of a named operand."""
        if isinstance(value, ir.GraphVar):
            return self.deduced.infos.get(value)
        if isinstance(value, ir.Constant):
            return constant(value.data).info
        if isinstance(value, ir.TupleExpr):
            return tuple_info([f.replace(info=self.info(f)) for f in value.fields])
        return value.info

    def symbol(self, name: str) -> ir.Var:
        """A new symbol."""
        return ir.Var(unique_name(name, self.symbols), _INT64)

    def field(self, value: ir.GraphExpr, index: int, name: str) -> ir.GraphExpr:
        """A field of a tuple."""
        if isinstance(value, ir.TupleExpr):
            return value.fields[index]
        return self.emit(ir.TupleGetItem(value, index), name)

    def call(
        self,
        base: str,
        program: ir.PrimFunc,
        args: Sequence[ir.GraphExpr],
        out: Sequence[ir.Info],
        name: str,
        var: ir.GraphVar | None = None,
    ) -> ir.GraphVar:
        """Emit a call of a new program of the module."""
        bounds = symbol_attrs(program, self.function)
        func, symbols = with_scalar_symbols(program.replace(attrs={**program.attrs, **bounds}))
        call = call_tir(self.table.add(base, func), args, out, symbols)
        self.deduced.module = self.module.replace(functions=dict(self.table.functions))
        return self.emit(call, name, var)

    def cast(
        self,
        loaded: ir.GraphVar,
        pattern: ir.Info,
        limits: Sequence[ir.Expr],
        var: ir.GraphVar | None = None,
    ) -> ir.GraphVar:
        """Bind new symbols to a loaded value; constant limits become declared bounds."""
        symbols = ir.symbolic_vars(pattern)
        for symbol, limit in zip(symbols, limits, strict=False):
            most = ir.const_int(limit)
            if most is not None:
                self.bounds[symbol.name] = min(most, self.bounds.get(symbol.name, most))
        result = ir.GraphVar("sizes", info=pattern) if var is None else var
        self.add(ir.MatchCast(result, loaded, pattern))
        lower = self.function.attrs.get(LOWER_BOUND, {})
        for position, symbol in enumerate(symbols):
            high = self.bounds.get(symbol.name, symbol.dtype.max_value)
            stated = limits[position] if limits else None
            self.limits.bind(symbol, (int(lower.get(symbol.name, 0)), high), stated)
        return result

    def sizes(
        self, tensor: ir.GraphExpr, limits: Sequence[ir.Expr], symbols: Sequence[ir.Var]
    ) -> None:
        """Bind new symbols to the elements of a tensor, of which the limits are known."""
        most = ir.ShapeExpr(tuple(limits), info=ir.ShapeInfo(tuple(limits)))
        load = ir.GraphCall(ir.OpRef("tensor_to_shape"), (tensor, most))
        self.cast(self.emit(load, "loaded"), ir.ShapeInfo(tuple(symbols)), limits)

    def part(
        self, whole: ir.GraphExpr, info: ir.TensorInfo, var: ir.GraphVar | None = None
    ) -> ir.GraphVar:
        """Copy the first elements along each axis; `info` annotates the result."""
        source = self.info(whole)
        assert isinstance(source, ir.TensorInfo)
        return self.call("part", _part_program(source, info), [whole], [info], "part", var)


def _part_program(whole: ir.TensorInfo, part: ir.TensorInfo) -> ir.PrimFunc:
    """The program that copies the elements of `whole` at the positions of `part`."""
    assert whole.shape is not None
    assert whole.dtype is not None
    assert part.shape is not None
    program = Program("part")
    source = program.param("whole", whole.shape, whole.dtype)
    result = program.compute("out", part.shape, lambda *i: source[i])
    return program.finish([result])
