"""Builder for graph functions: adds one binding at a time and deduces its annotation.

b = GraphBuilder()
n = ir.var("n", "int64")
x = b.param("x", ir.TensorInfo((n, 4), ir.dtype_of("float32")))
y = b.op("add", x, x)
func = b.finish("main", y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.deduce import deduce_call, size_conditions
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.ops.row import UnequalSizes, dims_text
from blockwright.ops.table import OPERATORS
from blockwright.support import GraphError

Operand = ir.GraphExpr | np.ndarray[Any, Any]
Unequal = Literal["refused", "checked", "broadcast"]


def symbol_ranges(attrs: dict[str, Any], symbols: Sequence[ir.Var]) -> dict[ir.Var, ir.Range]:
    """Declared bounds of a function's symbols, by name in its attributes; default [0, ∞)."""
    upper = attrs.get(UPPER_BOUND, {})
    lower = attrs.get(LOWER_BOUND, {})
    ranges: dict[ir.Var, ir.Range] = {}
    for symbol in symbols:
        low = int(lower.get(symbol.name, 0))
        high = min(int(upper.get(symbol.name, (1 << 40) - 1)), symbol.dtype.max_value - 1)
        extent = ir.const(high - low + 1, symbol.dtype)
        ranges[symbol] = ir.Range(ir.const(low, symbol.dtype), extent)
    return ranges


def inherited_bounds(attrs: dict[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a local function, with the bounds that functions around it declare.

    It sees their symbols; a bound of its own replaces one for the same name.
    """
    keys = [key for key in (LOWER_BOUND, UPPER_BOUND) if outer.get(key)]
    return {**attrs, **{key: {**outer[key], **attrs.get(key, {})} for key in keys}}


def function_symbols(function: ir.GraphFunction) -> list[ir.Var]:
    """Symbols bound by the parameters and by the casts of the function, in order."""
    inputs = (s for p in function.params for s in ir.parameter_symbols(p.info))
    return list(dict.fromkeys([*inputs, *cast_symbols(function)]))


def cast_symbols(function: ir.GraphFunction) -> list[ir.Var]:
    """Symbols that casts of the function mention, in order.

    In a normalized function, those that no parameter binds are sizes known only at run time.
    """
    casts = (b for b in function.bindings if isinstance(b, ir.MatchCast))
    return list(dict.fromkeys(s for cast in casts for s in ir.symbolic_vars(cast.pattern)))


def function_analyzer(function: ir.GraphFunction) -> Analyzer:
    """An analyzer with the ranges of the function's symbols."""
    return Analyzer(symbol_ranges(function.attrs, function_symbols(function)))


def constant(data: np.ndarray[Any, Any] | np.generic, name: str = "") -> ir.Constant:
    """A graph constant with its annotation.

    Raises: GraphError BW401 for what is no NumPy array, such as a number of Python.
    """
    if isinstance(data, np.generic):
        data = np.asarray(data)
    if not isinstance(cast("object", data), np.ndarray):
        raise GraphError(
            f"a constant of {type(data).__name__}, which has no element type",
            code="BW401",
            help='pass an array, such as np.array(3.0, "float32")',
        )
    shape = tuple(ir.const(int(d), "int64") for d in data.shape)
    return ir.Constant(data, name, info=ir.TensorInfo(shape, ir.dtype_of(data.dtype)))


def shape_value(values: Sequence[Any]) -> ir.ShapeExpr:
    """A shape as a graph value."""
    dims = tuple(ir.as_expr(v, ir.dtype_of("int64")) for v in values)
    return ir.ShapeExpr(dims, info=ir.ShapeInfo(dims))


class GraphBuilder:
    """Builds one graph function.

    Bindings go into a dataflow block; with `dataflow=False`, which branches need, into a plain one.
    `unequal` says what becomes of sizes of operands that must be equal and are not known to be:

        "refused"    they are an error (BW401)
        "checked"    they are compared when the function runs (BW708)
        "broadcast"  the same, but an axis that may turn out to have one element is then repeated,
                     as NumPy does; see `may_repeat`
    """

    def __init__(
        self,
        attrs: dict[str, Any] | None = None,
        module: ir.IRModule | None = None,
        dataflow: bool = True,
        unequal: Unequal = "refused",
    ) -> None:
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.module = module
        self.dataflow = dataflow
        self.unequal: Unequal = unequal
        self.params: list[ir.GraphVar] = []
        self._bindings: list[ir.Binding] = []
        self._names: dict[str, int] = {}
        self._given: set[ir.Var] = set()
        self._always = True  # the bindings are evaluated by every call
        self.analyzer = Analyzer()

    def param(self, name: str, info: ir.Info) -> ir.GraphVar:
        """Add a function parameter and declare its dimension symbols."""
        variable = ir.GraphVar(self._fresh(name), False, info=info)
        self.params.append(variable)
        self.know(ir.parameter_symbols(info))
        return variable

    def know(self, symbols: Sequence[ir.Var]) -> None:
        """Declare symbols of parameters, with the ranges that the attributes give them."""
        self._given.update(symbols)
        for symbol, bounds in symbol_ranges(self.attrs, symbols).items():
            self.analyzer.bind(symbol, bounds)

    def op(self, name: str, *args: Operand, bind: str | None = None, **attrs: Any) -> ir.GraphVar:
        """Call an operator of the table and bind its result."""
        operands = tuple(constant(a) if isinstance(a, np.ndarray) else a for a in args)
        call = ir.GraphCall(ir.OpRef(name), operands, attrs)
        if self.unequal != "refused":
            call = self._of_equal_sizes(call)
        return self.emit(call, bind or name.split(".")[-1])

    def _of_equal_sizes(self, call: ir.GraphCall) -> ir.GraphCall:
        """The call with its annotation, of operands that are cast to the sizes it needs.

        Raises: GraphError if it is invalid for all sizes.
        """
        while True:  # each round makes sizes equal that were not, or raises
            try:
                return call.replace(info=deduce_call(call, self.analyzer, self.module))
            except UnequalSizes as error:
                args = self._repeated(call, *error.pair) or self._cast_to_equal(call, *error.pair)
                if args is None:
                    raise
                call = call.replace(args=args)

    def _cast_to_equal(
        self, call: ir.GraphCall, a: ir.Expr, b: ir.Expr
    ) -> tuple[ir.GraphExpr, ...] | None:
        """The arguments with one of two sizes instead of the other; None if that is impossible."""
        kept, other = sorted((a, b), key=lambda s: (self._is_computed(s), _complexity(s)))
        if ir.const_int(other) is not None or self.analyzer.prove(ir.compare(ir.NE, a, b)):
            return None
        message, values = _unequal(call, other, kept)

        def replaced(sizes: Sequence[ir.Expr]) -> tuple[ir.Expr, ...] | None:
            found = tuple(kept if ir.structural_equal(s, other) else s for s in sizes)
            return None if all(x is y for x, y in zip(found, sizes, strict=True)) else found

        def cast(arg: ir.GraphExpr) -> ir.GraphExpr:
            info = arg.info
            if isinstance(arg, ir.ShapeExpr) and (sizes := replaced(arg.values)):
                self.require(ir.compare(ir.EQ, other, kept), message, values)
                return shape_value(sizes)
            if isinstance(info, ir.TensorInfo) and info.shape and (sizes := replaced(info.shape)):
                wanted = ir.TensorInfo(sizes, info.dtype, device=info.device)
                return self.match_cast(arg, wanted, "cast", message, values)
            return arg

        args = tuple(map(cast, call.args))
        return None if all(x is y for x, y in zip(args, call.args, strict=True)) else args

    def binds(self, size: ir.Expr) -> bool:
        """Whether a cast of this function binds a symbol of the size, which is unknown outside."""
        casts = (b for b in self._bindings if isinstance(b, ir.MatchCast))
        cast = {s for b in casts for s in ir.symbolic_vars(b.pattern)}
        return any(s in cast for s in ir.free_vars(size) if s not in self._given)

    def _is_computed(self, size: ir.Expr) -> bool:
        """Whether a size depends on elements: no parameter binds its symbol."""
        return any(symbol not in self._given for symbol in ir.free_vars(size))

    def may_repeat(self, size: ir.Expr) -> bool:
        """Whether an axis of this size is repeated where it turns out to have one element.

        So is one of a size that the function computes, and one that it has made shorter, such as
        x[:, :1] or the result of a pool. Sizes of parameters, their sums and products are compared
        instead: models use a mask with the size of a cache and its new part, not with that of one
        element, and repeating would make each such operand a gather.
        """
        if self.unequal != "broadcast" or ir.const_int(size) is not None:
            return False
        if not self._is_computed(size) and _is_grown(size):
            return False
        return not self.analyzer.prove(ir.compare(ir.NE, size, ir.const(1, size.dtype)))

    def is_short(self, size: ir.Expr) -> bool:
        """Whether a size is at most 1 for all values of its symbols, such as min(n, 1)."""
        return self.analyzer.prove(ir.compare(ir.LE, size, ir.const(1, size.dtype)))

    def _repeated(
        self, call: ir.GraphCall, a: ir.Expr, b: ir.Expr
    ) -> tuple[ir.GraphExpr, ...] | None:
        """The arguments, of which axes of one of two sizes are repeated where that size is 1.

        None if neither may be 1, or no axis of that size meets one of the other.
        """
        name = call.op.name if isinstance(call.op, ir.OpRef) else ""
        if name not in _BROADCASTING:
            return None
        pairs = [(a, b)] if name == "broadcast_to" else [(b, a), (a, b)]
        pairs = [p for p in pairs if self.may_repeat(p[0]) and not self._both_one(*p)]
        if not pairs:
            return None
        one = ir.const(1, a.dtype)
        short = next((p for p in pairs if self.is_short(p[0])), None)
        smaller = (p for p in pairs if self.analyzer.prove(ir.compare(ir.LE, *p)))
        single = short or (pairs[0] if len(pairs) == 1 else next(smaller, None))
        size, wanted = single or pairs[0]
        places = self._meeting(call, size, wanted, _BROADCASTING[name])
        fits = ir.logical_or(ir.compare(ir.EQ, size, wanted), ir.compare(ir.EQ, size, one))
        args = list(call.args)
        if single is None:  # either may be 1
            found = self._meeting(call, wanted, size, _BROADCASTING[name])
            fits = ir.logical_or(fits, ir.compare(ir.EQ, wanted, one))
            common = ir.select(ir.compare(ir.EQ, size, one), wanted, size)
            changes = [(places, size), (found, wanted)]
        else:
            common, changes = wanted, [(places, size)]
        if not places:
            return None
        self.require(fits, *_unequal(call, size, wanted))
        for places, old in changes:
            for place, axis in places:
                args[place] = (
                    self._with_one_element(args[place], axis, size)
                    if short
                    else self._stretched(args[place], axis, old, common)
                )
        return tuple(args)

    def _stretched(self, value: ir.GraphExpr, axis: int, size: ir.Expr, wanted: ir.Expr) -> Any:
        """A tensor of which element i along an axis is that at min(i, size - 1)."""
        begin = ir.sub(size, ir.const(1, size.dtype))
        last = self.op("arange", begin=begin, end=size, step=1, dtype="int64")
        every = self.op("arange", begin=0, end=wanted, step=1, dtype="int64")
        index = self.op("minimum", every, last)
        return self._of_size(self.op("take", value, index, axis=axis), axis, wanted)

    def _both_one(self, size: ir.Expr, wanted: ir.Expr) -> bool:
        """Whether `wanted` is 1 where `size` is, as for min(n, 32) and n: rows of a table."""
        if isinstance(size, (ir.Min, ir.Max)):  # if it is 1, so is one of its operands
            return all(self._both_one(s, wanted) for s in (size.a, size.b))
        never = self.analyzer.prove(ir.compare(ir.NE, size, ir.const(1, size.dtype)))
        return never or self.analyzer.prove_equal(size, wanted)

    def _meeting(
        self, call: ir.GraphCall, size: ir.Expr, wanted: ir.Expr, inner: int
    ) -> list[tuple[int, int]]:
        """Arguments and their axes of a size that broadcast with an axis of another size.

        Args: `inner` last axes do not broadcast.
        """
        equal = self.analyzer.prove_equal
        shapes: list[tuple[ir.Expr, ...]] = []
        for arg in call.args:
            info = arg.info
            known = info.shape if isinstance(info, ir.TensorInfo) else None
            shapes.append(arg.values if isinstance(arg, ir.ShapeExpr) else known or ())
        found: list[tuple[int, int]] = []
        for back in range(inner + 1, max(map(len, shapes), default=0) + 1):
            dims = {k: shape[-back] for k, shape in enumerate(shapes) if back <= len(shape)}
            if any(equal(dim, wanted) for dim in dims.values()):
                found += [
                    (k, len(shapes[k]) - back)
                    for k, dim in dims.items()
                    if equal(dim, size) and not isinstance(call.args[k], ir.ShapeExpr)
                ]
        return found

    def _with_one_element(self, value: ir.GraphExpr, axis: int, size: ir.Expr) -> ir.GraphExpr:
        """A tensor whose axis of at most one element has exactly one.

        The element that pads an empty axis is never read: the axis meets another empty one.
        """
        info = value.tensor_info
        width: list[tuple[Any, Any]] = [(0, 0)] * info.rank
        width[axis] = (0, ir.sub(ir.const(1, size.dtype), size))
        dtype = info.dtype
        zero: Any = False if dtype is not None and dtype.is_bool else 0
        padded = self.op("pad", value, pad_width=tuple(width), pad_value=zero)
        return self._of_size(padded, axis, ir.const(1, size.dtype))

    def _of_size(self, value: ir.GraphVar, axis: int, size: ir.Expr) -> ir.GraphVar:
        """A tensor whose axis is known to have a size, though deduction may write it otherwise."""
        info = value.tensor_info
        assert info.shape is not None
        if self.analyzer.prove_equal(info.shape[axis], size) and (
            not ir.is_const_int(size) or ir.is_const_int(info.shape[axis])
        ):
            return value
        shape = tuple(size if k == axis else d for k, d in enumerate(info.shape))
        return self.match_cast(value, ir.TensorInfo(shape, info.dtype, device=info.device))

    def require(self, condition: ir.Expr, message: str, values: Sequence[ir.Expr] = ()) -> None:
        """Reject calls with sizes for which a condition does not hold.

        Args:
            message: error text with code and remedy, and `%d` for each of `values`.
        """
        holds = ir.PrimInfo(ir.dtype_of("bool"), ir.const(True, "bool"))
        value = ir.PrimValue(condition, info=ir.PrimInfo(condition.dtype, condition))
        self.match_cast(value, holds, "guard", message, values)

    def emit(self, value: ir.GraphExpr, name: str = "lv") -> ir.GraphVar:
        """Bind an expression to a fresh variable, deducing its annotation if missing."""
        if value.info is None and isinstance(value, ir.GraphCall):
            value = value.replace(info=deduce_call(value, self.analyzer, self.module))
        if self._always and isinstance(value, ir.GraphCall):
            self._tighten(value)
        variable = ir.GraphVar(self._fresh(name), self.dataflow, info=value.info)
        self._bindings.append(ir.VarBinding(variable, value))
        return variable

    def _tighten(self, call: ir.GraphCall) -> None:
        """Declare the lower bounds of parameters' symbols that follow from what a call requires.

        conv1d(x, w)    # windows of 10 elements on an axis of n: n >= 10 from here on

        Sizes of later values are then known not to be negative.
        """
        for condition in size_conditions(call, self.analyzer):
            symbols = ir.free_vars(condition.holds)
            if len(symbols) == 1 and symbols[0] in self._given:
                low = _least(condition.holds, symbols[0], self.analyzer)
                if low is not None:
                    lower = self.attrs.get(LOWER_BOUND, {})
                    self.attrs[LOWER_BOUND] = {**lower, symbols[0].name: low}
                    self.know(symbols)

    def match_cast(
        self,
        value: ir.GraphExpr,
        pattern: ir.Info,
        name: str = "lv",
        message: str = "",
        values: Sequence[ir.Expr] = (),
    ) -> ir.GraphVar:
        """Bind `value` with the annotation `pattern`, checked at run time.

        New symbols of the pattern are bound at run time.

        Args:
            message: the error if the check fails, with one `%d` for each of `values`.
        """
        variable = ir.GraphVar(self._fresh(name), self.dataflow, info=pattern)
        self._bindings.append(ir.MatchCast(variable, value, pattern, message, tuple(values)))
        return variable

    def finish(self, name: str, result: ir.GraphExpr) -> ir.GraphFunction:
        """Return the function with all bindings so far."""
        body = self.sequence(result)
        attrs = {"global_symbol": name, **self.attrs}
        return ir.GraphFunction(tuple(self.params), body, body.info, attrs)

    def sequence(self, result: ir.GraphExpr) -> ir.SeqExpr:
        """All bindings so far, followed by a result."""
        block = ir.BindingBlock(tuple(self._bindings), dataflow=self.dataflow)
        if isinstance(result, ir.TupleExpr) and result.info is None:
            fields = tuple(f.info or ir.ObjectInfo() for f in result.fields)
            result = result.replace(info=ir.TupleInfo(fields))
        return ir.SeqExpr((block,) if block.bindings else (), result, info=result.info)

    def branch(self) -> GraphBuilder:
        """A builder for a branch of this function, whose names and facts it shares."""
        inner = GraphBuilder(self.attrs, self.module, dataflow=False, unequal=self.unequal)
        inner._names, inner.analyzer, inner._given = self._names, self.analyzer, self._given
        inner._always = False
        return inner

    def _fresh(self, name: str) -> str:
        count = self._names.get(name, -1) + 1
        self._names[name] = count
        return name if count == 0 else f"{name}{count}"


_BROADCASTING = {
    **{row.name: 0 for row in OPERATORS.values() if row.layout == "elementwise"},
    "where": 0,
    "broadcast_to": 0,
    "matmul": 2,
}
"""Operators whose operands broadcast → how many of the last axes do not."""


def _is_grown(size: ir.Expr) -> bool:
    """Whether a size is a symbol, or a sum or product of symbols and numbers of at least 0."""
    number = ir.const_int(size)
    if number is not None:
        return number >= 0
    if isinstance(size, (ir.Add, ir.Mul)):
        return _is_grown(size.a) and _is_grown(size.b)
    return isinstance(size, ir.Var)


def _unequal(call: ir.GraphCall, size: ir.Expr, wanted: ir.Expr) -> tuple[str, tuple[ir.Expr, ...]]:
    """The error of a call with sizes that differ, and the values that it names."""
    name = call.op.name if isinstance(call.op, ir.OpRef) else ""
    text = f"{_said(size)} and {_said(wanted)}"
    message = f"BW708: {name}: the sizes {text} are not equal\nhelp: pass sizes that agree"
    return message, tuple(s for s in (size, wanted) if ir.const_int(s) is None)


def _least(holds: ir.Expr, symbol: ir.Var, analyzer: Analyzer) -> int | None:
    """The number that a symbol must be at least, and no more, for a condition to hold."""
    known = analyzer.const_bounds(symbol)[0]
    if known is None:
        return None

    def at(value: int) -> bool:
        return analyzer.prove(ir.substitute(holds, {symbol: ir.const(value, symbol.dtype)}))

    low, high = known, next((known + (1 << k) for k in range(21) if at(known + (1 << k))), None)
    if high is None:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) else (middle + 1, high)
    below, above = analyzer.copy(), analyzer.copy()
    below.bind_bounds(symbol, known, low - 1)
    above.bind_bounds(symbol, low)
    exact = above.prove(holds) and below.prove(ir.logical_not(holds))
    return low if exact else None


def _complexity(size: ir.Expr) -> int:
    """Orders sizes: numbers, then symbols, then others by the number of their operations."""
    if ir.const_int(size) is not None:
        return 0
    return sum(1 for _ in ir.walk(size))


def _said(size: ir.Expr) -> str:
    """A size in a message, with its value when the check fails."""
    text = dims_text(size).replace("%", "%%")
    return text if ir.const_int(size) is not None else f"{text} = %d"
