"""InlineFunctions: replace calls of graph functions by their bindings.

Before::

    @R.function(private=True)
    def twice(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
        m = T.int64()
        z = R.add(y, y)
        return z

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        a = cls.twice(x)
        b = cls.twice(a)
        return b

After::

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        m = T.int64()
        y = R.match_cast(x, R.Tensor((m,), "float32"))
        z = R.add(y, y)
        m_1 = T.int64()
        y_1 = R.match_cast(z, R.Tensor((m_1,), "float32"))
        z_1 = R.add(y_1, y_1)
        return z_1

Local functions and functions passed as values are inlined too, wherever the called function is
known; `match_cast` keeps the checks of a signature, and `normalize` drops those that are proved.
Calls of recursive functions stay. Private functions that no one mentions any more are removed.

A function that is only known at run time, such as the result of a branch, remains as a local
function with its captured values in place, or as `make_closure` of a function of the module;
`lift_closures` makes values of them. Inlining is the flow analysis: what it does not resolve flows
through a branch, a recursion or the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from blockwright import ir
from blockwright.graph.builder import inherited_bounds
from blockwright.graph.call_graph import callees, reachable, recursive_functions
from blockwright.graph.loops import is_loop
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.functions.function_facts import (
    cast_symbols,
    deduced_infos,
    in_scope,
    known_flag,
    may_be_negative,
    states_result,
)
from blockwright.passes.functions.save_updated import save_updated
from blockwright.passes.functions.solutions import is_size, solution
from blockwright.passes.rewrite import graph_functions, unique_name
from blockwright.support import GraphError


@graph_pass
def inline_functions(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Inline every call of a graph function that is not recursive.

    Raises: GraphError BW423 for calls of function values that do not end.
    """
    if not any(_has_functions(f, module) for _, f in graph_functions(module)):
        return _without_unused(module)
    recursive = recursive_functions(module)
    functions = dict(module.functions)
    infos = deduced_infos(module)
    for name, function in graph_functions(module):
        functions[name] = _Inliner(name, module, recursive, infos).function(function)
    return _without_unused(module.replace(functions=functions))


def _has_functions(function: ir.GraphFunction, module: ir.IRModule) -> bool:
    """Whether a function calls graph functions, or has local functions or branches."""
    values = (getattr(binding, "value", None) for binding in function.bindings)
    return any(isinstance(v, (ir.If, ir.GraphFunction)) for v in values) or bool(
        callees(function, module)
    )


def _without_unused(module: ir.IRModule) -> ir.IRModule:
    graph = {name: callees(f, module) for name, f in graph_functions(module)}
    public = [name for name, f in graph_functions(module) if "global_symbol" in f.attrs]
    used = reachable(graph, public)
    functions = {
        name: f
        for name, f in module.functions.items()
        if not isinstance(f, ir.GraphFunction) or name in used
    }
    return module.replace(functions=functions)


class _Closure(msgspec.Struct, frozen=True, eq=False):
    """A local function with the scope of its definition."""

    function: ir.GraphFunction
    scope: _Scope

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the function, with bounds of symbols that are declared around it."""
        return inherited_bounds(self.function.attrs, self.scope.attrs)


class _Partial(msgspec.Struct, frozen=True, eq=False):
    """A function of the module with the values of its last arguments."""

    function: ir.GlobalVar
    captured: tuple[_Value, ...] = ()


class _Fields(msgspec.Struct, frozen=True, eq=False):
    """A tuple with known fields, some of which are functions."""

    fields: tuple[_Value, ...]


_T = TypeVar("_T")
_Value = ir.GraphExpr | _Closure | _Partial | _Fields
_Function = (_Closure, _Partial, _Fields)


class _Scope(ir.Mutator):
    """Values of the variables and symbols of one inlined function, at one place."""

    def __init__(self, inliner: _Inliner, outer: _Scope | None = None) -> None:
        super().__init__()
        self.inliner = inliner
        self.values: dict[ir.GraphVar, _Value] = {} if outer is None else dict(outer.values)
        self.symbols: dict[ir.Var, ir.Expr] = {} if outer is None else dict(outer.symbols)
        self.attrs: Mapping[str, Any] = {} if outer is None else outer.attrs  # of the function

    def __call__(self, node: Any) -> Any:
        if isinstance(node, ir.Var):
            return self.symbols.get(node, node)
        if isinstance(node, ir.GraphVar):
            return self.inliner.operand(self.value(node), node.name)
        if isinstance(node, ir.Constant):
            return node
        return node.map_children(self)

    def value(self, node: ir.GraphExpr) -> _Value:
        """What an operand is here."""
        if isinstance(node, ir.GraphVar):
            return self.values.get(node, node)
        if isinstance(node, ir.GraphFunction):
            return _Closure(node, _Scope(self.inliner, self))
        if isinstance(node, ir.GlobalVar):
            return self.inliner.named(node)
        if isinstance(node, ir.TupleExpr):
            fields = tuple(self.value(f) for f in node.fields)
            if any(_is_function(f) for f in fields):
                return _Fields(fields)
        return self(node)

    def annotation(self, info: ir.Info | None) -> ir.Info | None:
        """An annotation with the symbols of this place."""
        return None if info is None else self(info)

    def rename(self, symbols: Iterable[ir.Var]) -> None:
        """Give symbols that are bound here a fresh identity, and a name that is not taken."""
        for symbol in dict.fromkeys(symbols):
            fresh = self.inliner.symbol(symbol.name, symbol.type, symbol)
            self.symbols[symbol] = fresh
            self.inliner.declare(fresh, self.range_of(symbol))

    def range_of(self, symbol: ir.Var) -> dict[str, int]:
        """The declared bounds of a symbol, by attribute."""
        found = {key: self.attrs.get(key, {}).get(symbol.name) for key in _BOUNDS}
        return {key: int(bound) for key, bound in found.items() if bound is not None}


def _is_function(value: _Value) -> bool:
    return isinstance(value, _Function)


class _Inliner:
    """Builds one function of the result."""

    def __init__(
        self,
        name: str,
        module: ir.IRModule,
        recursive: frozenset[str],
        infos: Mapping[ir.GraphVar, ir.Info | None],
    ) -> None:
        self.name, self.module, self.recursive, self.infos = name, module, recursive, infos
        self.bindings: list[ir.Binding] = []
        self.names: dict[str, int] = {}
        self.active: list[ir.GraphFunction] = []
        self.bound: set[ir.Var] = set()  # symbols of the function that is built
        self.symbol_names: set[str] = set()
        self.kept: set[ir.Var] = set()  # symbols of its own casts, which keep their names
        self.kept_names: set[str] = set()  # of those, as long as no symbol has it
        self.ranges: dict[str, dict[str, int]] = {}  # attribute → name of a new symbol → bound

    def function(self, function: ir.GraphFunction) -> ir.GraphFunction:
        self.names = {param.name: 0 for param in function.params}
        self.bound.update(s for p in function.params for s in ir.parameter_symbols(p.info))
        self.kept = cast_symbols(function.body) - self.bound
        self.symbol_names = {symbol.name for symbol in (*self.bound, *self.kept)}
        self.symbol_names.update(name for key in _BOUNDS for name in function.attrs.get(key, {}))
        self.kept_names = {s.name for s in self.kept} - {s.name for s in self.bound}
        scope = _Scope(self)
        scope.attrs = function.attrs
        body = self._sequence(function.body, scope, function.params)
        ranges = {key: {**function.attrs.get(key, {}), **new} for key, new in self.ranges.items()}
        return function.replace(
            body=body,
            ret_info=scope.annotation(function.ret_info),
            attrs={**function.attrs, **ranges},
        )

    def declare(self, symbol: ir.Var, ends: Mapping[str, int]) -> None:
        """State the range of a symbol of an inlined function."""
        for key, bound in ends.items():
            self.ranges.setdefault(key, {})[symbol.name] = bound

    def symbol(self, name: str, type: ir.DType, original: ir.Var | None = None) -> ir.Var:
        """A new symbol; its name is unique, because bounds and sizes are stated by name."""
        if original in self.kept and name in self.kept_names:
            self.kept_names.discard(name)  # of several such symbols, the first keeps it
        else:
            name = unique_name(name, self.symbol_names)
        fresh = ir.Var(name, type)
        self.bound.add(fresh)
        return fresh

    def named(self, node: ir.GlobalVar) -> _Value:
        """A function of the module as a value."""
        target = self.module.functions.get(node.name)
        return _Partial(node) if isinstance(target, ir.GraphFunction) else node

    def operand(self, value: _Value, name: str = "function") -> ir.GraphExpr:
        """A value as an operand of an expression; a function becomes a value at run time."""
        if isinstance(value, _Fields):
            fields = tuple(self.operand(f, name) for f in value.fields)
            return ir.TupleExpr(fields)
        if isinstance(value, _Partial):
            captured = tuple(self.operand(c) for c in value.captured)
            args = (value.function, ir.TupleExpr(captured))
            return self._function_value(name, ir.GraphCall(ir.OpRef("make_closure"), args))
        if isinstance(value, _Closure):
            return self._function_value(name, self._local(value))
        return value

    def _function_value(self, name: str, value: ir.GraphExpr) -> ir.GraphVar:
        fresh = ir.GraphVar(self._unused(name))
        self.bindings.append(ir.VarBinding(fresh, value))
        return fresh

    def _local(self, closure: _Closure) -> ir.GraphFunction:
        """A function whose body is inlined; it captures values of this place."""
        function = closure.function
        scope = _Scope(self, closure.scope)
        scope.attrs = closure.attrs
        symbols = (s for p in function.params for s in ir.parameter_symbols(p.info))
        own = [s for s in symbols if scope.symbols.get(s, s) not in self.bound]
        outer, self.ranges = self.ranges, {}
        scope.rename(own)
        params = tuple(self._fresh(p, scope) for p in function.params)
        scope.values.update(zip(function.params, params, strict=True))
        body = self._entered(function, lambda: self._sequence(function.body, scope, params))
        result = scope.annotation(function.ret_info)
        attrs = {**function.attrs, **self.ranges}
        self.ranges = outer
        return function.replace(params=params, body=body, ret_info=result, attrs=attrs, info=None)

    def _entered(self, function: ir.GraphFunction, run: Callable[[], _T]) -> _T:
        """Inline a function. Raises: GraphError BW423 if that does not end."""
        if self.active.count(function) > _NESTED:
            raise GraphError(
                f"{self.name}: {function.name} calls itself through function values",
                code="BW423",
                span=function.span,
                help="call it by its name, so that the recursion happens at run time",
            )
        self.active.append(function)
        result = run()
        self.active.pop()
        return result

    def _sequence(
        self, body: ir.SeqExpr, scope: _Scope, params: Sequence[ir.GraphVar] = ()
    ) -> ir.SeqExpr:
        """The bindings of a function or branch as a sequence of their own."""
        saved, self.bindings = self.bindings, []
        result = self.operand(self._body(body, scope))
        blocks = (ir.BindingBlock(tuple(self.bindings)),) if self.bindings else ()
        self.bindings = saved
        return save_updated(ir.SeqExpr(blocks, result), params, self._unused)

    def _body(self, body: ir.SeqExpr, scope: _Scope) -> _Value:
        """Emit the bindings of a sequence here; returns its result."""
        for block in body.blocks:
            for binding in block.bindings:
                if isinstance(binding, ir.MatchCast):
                    self._cast(binding, scope)
                elif isinstance(binding, ir.VarBinding):
                    self._binding(binding, scope)
        return self._result(body.body, scope)

    def _result(self, value: ir.GraphExpr, scope: _Scope) -> _Value:
        if isinstance(value, ir.GraphCall):
            return self._call(value, scope, ir.GraphVar("lv"))
        return scope.value(value)

    def _binding(self, binding: ir.VarBinding, scope: _Scope) -> None:
        value, var = binding.value, binding.var
        if isinstance(value, ir.GraphCall):
            scope.values[var] = self._call(value, scope, var)
        elif isinstance(value, ir.If):
            scope.values[var] = self._branches(value, scope, var)
        elif isinstance(value, ir.TupleGetItem):
            scope.values[var] = self._field(value, scope, var)
        else:
            here = scope.value(value)
            # Variables that only name a value or a constant, and functions, need no binding.
            plain = isinstance(value, (ir.GraphVar, ir.Constant))
            keep = not plain and not _is_function(here)
            scope.values[var] = self._emit(var, self.operand(here), scope) if keep else here

    def _emit(self, var: ir.GraphVar, value: ir.GraphExpr, scope: _Scope) -> ir.GraphVar:
        fresh = self._fresh(var, scope)
        self.bindings.append(ir.VarBinding(fresh, value))
        return fresh

    def _fresh(self, var: ir.GraphVar, scope: _Scope) -> ir.GraphVar:
        info = scope.annotation(var.info)
        return ir.GraphVar(self._unused(var.name), info=info, span=var.span)

    def _unused(self, name: str) -> str:
        count = self.names.get(name, -1) + 1
        self.names[name] = count
        return name if count == 0 else f"{name}_{count}"

    def _cast(self, cast: ir.MatchCast, scope: _Scope) -> None:
        value = self.operand(scope.value(cast.value), cast.var.name)
        bound = {*scope.symbols, *self.bound}
        scope.rename(s for s in ir.symbolic_vars(cast.pattern) if s not in bound)
        pattern = scope(cast.pattern)
        values = tuple(scope(v) for v in cast.values)
        var = self._fresh(cast.var, scope)
        self.bindings.append(cast.replace(var=var, value=value, pattern=pattern, values=values))
        scope.values[cast.var] = var

    def _field(self, value: ir.TupleGetItem, scope: _Scope, var: ir.GraphVar) -> _Value:
        whole = scope.value(value.tuple_value)
        if isinstance(whole, _Fields):
            return whole.fields[value.index]
        info = scope.annotation(value.info)
        field = ir.TupleGetItem(self.operand(whole), value.index, info=info)
        return self._emit(var, field, scope)

    def _branches(self, value: ir.If, scope: _Scope, var: ir.GraphVar) -> _Value:
        condition = scope(value.condition)
        known = known_flag(condition)
        if known is not None:
            chosen = value.then_branch if known else value.else_branch
            return self._body(chosen, _Scope(self, scope))
        branches = [
            self._sequence(branch, _Scope(self, scope))
            for branch in (value.then_branch, value.else_branch)
        ]
        return self._emit(var, ir.If(condition, *branches), scope)

    # ------------------------------------------------------------------------------------- calls
    def _call(self, call: ir.GraphCall, scope: _Scope, var: ir.GraphVar) -> _Value:
        called, args = self._callee(call, scope)
        if isinstance(called, _Partial) and called.function.name not in self.recursive:
            target = self.module.functions[called.function.name]
            assert isinstance(target, ir.GraphFunction)
            args, called = [*args, *called.captured], _Closure(target, _Scope(self))
        if isinstance(called, _Closure):
            result = self._inlined(called, args)
            checked = states_result(call) or self._assumes(called, call)
            return self._with_sizes(var, result, scope) if checked else result
        if isinstance(called, _Partial):
            args, called = [*args, *called.captured], called.function
        if isinstance(called, ir.OpRef) and called.name == "make_closure":
            whole = args[1]
            fields = whole.fields if isinstance(whole, (_Fields, ir.TupleExpr)) else None
            if isinstance(args[0], _Partial) and fields is not None:
                return _Partial(args[0].function, (*fields, *args[0].captured))
        if is_loop(call):  # whose functions are called by name
            args = [a.function if isinstance(a, _Partial) and not a.captured else a for a in args]
        operands = tuple(self.operand(a) for a in args)
        attrs = {key: in_scope(v, scope) for key, v in call.attrs.items()}
        outs = tuple(scope(info) for info in call.out_info)
        renewed = call.replace(
            op=self.operand(called), args=operands, attrs=attrs, out_info=outs, info=None
        )
        info = self.infos.get(var)
        if not states_result(call) or not isinstance(info, _CHECKED):
            return self._emit(var, renewed, scope)
        fresh = self._fresh(var, scope).replace(info=scope(info))
        value = self._emit(var, renewed, scope)
        self.bindings.append(ir.MatchCast(fresh, value, scope(info)))
        return fresh

    def _callee(self, call: ir.GraphCall, scope: _Scope) -> tuple[_Value, list[_Value]]:
        """What is called, and the arguments; that of `invoke_closure` is its first argument."""
        args = [scope.value(a) for a in call.args]
        if not isinstance(call.op, ir.OpRef) or call.op.name != "invoke_closure":
            return scope.value(call.op), args
        called, whole = args
        fields = whole.fields if isinstance(whole, (_Fields, ir.TupleExpr)) else (whole,)
        return called, list(fields)

    def _inlined(self, closure: _Closure, args: Sequence[_Value]) -> _Value:
        """Emit the body of a function for these arguments."""
        function = closure.function
        scope = _Scope(self, closure.scope)
        scope.attrs = closure.attrs
        infos = [param.info for param in function.params]
        scope.rename(
            s
            for info in infos
            for s in ir.parameter_symbols(info)
            if s not in closure.scope.symbols
        )
        for param, arg in zip(function.params, args, strict=True):
            scope.values[param] = self._argument(param, arg, scope)
        return self._entered(function, lambda: self._body(function.body, scope))

    def _assumes(self, called: _Closure, call: ir.GraphCall) -> bool:
        """Whether a function knows more of its sizes than the caller.

        A symbol of the function is in its declared range and not negative; the caller may pass a
        computed size such as `n - 2` for it, and would deduce `max(n - 2, 0)` in its place.
        """
        attrs = called.attrs
        infos = [a.info or self.infos.get(cast("Any", a)) for a in call.args]
        return any(attrs.get(key) for key in _BOUNDS) or any(map(may_be_negative, infos))

    def _with_sizes(self, var: ir.GraphVar, value: _Value, scope: _Scope) -> _Value:
        """The result of an inlined call, cast to the sizes that its annotation states."""
        info = self.infos.get(var)
        if _is_function(value) or not isinstance(info, _CHECKED):
            return value
        return self._matched(var, self.operand(value), scope(info), scope)

    def _argument(self, param: ir.GraphVar, arg: _Value, scope: _Scope) -> _Value:
        """An argument with the annotation of its parameter, checked."""
        if _is_function(arg) or not isinstance(param.info, _CHECKED):
            return arg
        value = self._solved(param, self.operand(arg), scope)
        return self._matched(param, value, scope(param.info), scope)

    def _matched(
        self, param: ir.GraphVar, value: ir.GraphExpr, pattern: ir.Info, scope: _Scope
    ) -> ir.GraphVar:
        var = self._fresh(param, scope).replace(info=pattern)
        self.bindings.append(ir.MatchCast(var, value, pattern))
        return var

    def _solved(self, param: ir.GraphVar, value: ir.GraphExpr, scope: _Scope) -> ir.GraphExpr:
        """Bind symbols that a parameter has only inside a dimension, such as n of `2 * n`.

        The argument is matched to a shape of new symbols, from which n is computed.
        """
        info = param.info
        alone = set(ir.symbolic_vars(info))
        inside = [s for s in ir.parameter_symbols(info) if s not in alone]
        if not inside or not isinstance(info, ir.TensorInfo) or info.shape is None:
            return value
        int64 = ir.dtype_of("int64")
        sizes = tuple(self.symbol(f"{param.name}{axis}", int64) for axis in range(info.rank))
        pattern = ir.TensorInfo(sizes, info.dtype, device=info.device)
        matched = self._matched(param, value, pattern, scope)
        for symbol in inside:
            axis = next(k for k, d in enumerate(info.shape) if ir.uses_var(d, {symbol}))
            self._named(symbol, solution(info.shape[axis], sizes[axis]), scope)
        return matched

    def _named(self, symbol: ir.Var, size: ir.Expr, scope: _Scope) -> None:
        """Give a symbol its size, which is cast to the symbol where its range has to be checked."""
        if is_size(size) and not scope.range_of(symbol):
            scope.symbols[symbol] = size
            return
        scope.rename([symbol])
        fresh = scope.symbols[symbol]
        sizes = ir.ShapeExpr((size,), info=ir.ShapeInfo((size,)))
        info = ir.ShapeInfo((fresh,))
        var = ir.GraphVar(self._unused(symbol.name), info=info)
        self.bindings.append(ir.MatchCast(var, sizes, info))


_NESTED = 50
"""Calls of a function that may be inlined into each other."""

_BOUNDS = (LOWER_BOUND, UPPER_BOUND)

_CHECKED = (ir.TensorInfo, ir.ShapeInfo, ir.PrimInfo, ir.TupleInfo)
