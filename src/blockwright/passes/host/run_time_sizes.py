"""Sizes that a function loads from tensors while it runs, and their largest values.

    count = call_tir(nonzero, (x,), …)[1]
    s = tensor_to_shape(count, (n * 4,))
    s1 = match_cast(s, Shape((u,)))               # u is loaded here, and 0 <= u <= n * 4
    y = call_tir(f, (…), Tensor((u, 3)))          # takes at most n * 4 * 3 elements

Memory is planned for the largest sizes where these follow from the arguments. A value that has no
such limit is allocated when its size is known: on the level of the last symbol in its size, where
level k begins after the k-th load.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.graph import function_analyzer
from blockwright.graph.loads import is_load
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.size_limits import SizeLimits


class Load(msgspec.Struct, frozen=True, eq=False):
    """A cast that binds symbols to elements of a tensor.

    Attributes:
        source: the tensor; symbols: symbol → the element that it is.
        limits: symbol → the largest value that the program states, in symbols bound before.
    """

    source: ir.GraphExpr
    symbols: dict[ir.Var, int]
    limits: dict[ir.Var, ir.Expr]


class RunTimeSizes:
    """The loaded symbols of a function.

    Attributes:
        loads: variable of a cast that binds symbols → what it loads, in order.
        levels: symbol → the number of its load, from 1.
    """

    def __init__(self, function: ir.GraphFunction) -> None:
        self.loads: dict[ir.GraphVar, Load] = {}
        self.levels: dict[ir.Var, int] = {}
        self._attrs = function.attrs
        self._limits = SizeLimits(function_analyzer(function))
        bound = {s for p in function.params for s in ir.parameter_symbols(p.info)}
        calls: dict[ir.GraphExpr, ir.GraphCall] = {}
        for binding in function.bindings:
            if isinstance(binding, ir.VarBinding) and is_load(binding.value):
                assert isinstance(binding.value, ir.GraphCall)
                calls[binding.var] = binding.value
            elif isinstance(binding, ir.VarBinding) and binding.value in calls:
                calls[binding.var] = calls[binding.value]
            elif isinstance(binding, ir.MatchCast) and binding.value in calls:
                self._load(binding, calls[binding.value], bound)
                calls[binding.var] = calls[binding.value]

    def _load(self, cast: ir.MatchCast, call: ir.GraphCall, bound: set[ir.Var]) -> None:
        info = cast.pattern
        dims: tuple[ir.Expr | None, ...] = ()
        if isinstance(info, ir.ShapeInfo):
            dims = info.values or ()
        elif isinstance(info, ir.PrimInfo):
            dims = (info.value,)  # a scalar
        new: dict[ir.Var, int] = {}
        for position, dim in enumerate(dims):
            if isinstance(dim, ir.Var) and dim not in bound and dim not in self.levels:
                new.setdefault(dim, position)
        if not new:
            return
        source, *rest = call.args
        most = rest[0].info if rest else None
        stated = most.values if isinstance(most, ir.ShapeInfo) else None
        limits = {v: stated[k] for v, k in new.items()} if stated is not None else {}
        for symbol in new:
            self._limits.bind(symbol, self.bounds(symbol), limits.get(symbol))
        self.levels |= dict.fromkeys(new, len(self.loads) + 1)
        self.loads[cast.var] = Load(source, new, limits)

    def level(self, *exprs: ir.Node) -> int:
        """The number of the load after which expressions are known; 0 for the start."""
        found = (self.levels.get(v, 0) for expr in exprs for v in ir.collect(expr, ir.Var))
        return max(found, default=0)

    def bounds(self, symbol: ir.Var) -> tuple[int, int]:
        """The declared ends of the values of a loaded symbol; without any, it is not negative."""
        low = int(self._attrs.get(LOWER_BOUND, {}).get(symbol.name, 0))
        high = int(self._attrs.get(UPPER_BOUND, {}).get(symbol.name, symbol.dtype.max_value))
        return low, high

    def largest(self, size: ir.Expr) -> ir.Expr | None:
        """The largest value of a size in symbols of the arguments; None if there is no limit."""
        return self._limits.largest(size)
