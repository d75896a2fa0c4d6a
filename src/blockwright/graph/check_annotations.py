"""Check the annotations of a graph function against deduction.

Every explicit annotation (of a bound value, of the result, of an argument by a signature) must be
implied by the deduced one. Facts that deduction cannot prove are stated with `R.match_cast`, which
is checked at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.builder import inherited_bounds, symbol_ranges
from blockwright.graph.call_graph import function_name
from blockwright.graph.deduce import deduce_call, function_info
from blockwright.graph.relate import (
    contradicts,
    implied,
    impossible_size,
    info_text,
    instance,
    joined,
    narrowed,
    refined,
    without_sizes,
)
from blockwright.graph.unify import SymbolBinding
from blockwright.support import BlockwrightError, Diagnostic

_CAST = "let deduction annotate it, or write R.match_cast, which is checked when the program runs"
_CORRECT = "correct the annotation, or leave it out: deduction annotates the value"


class Deduced:
    """Deduced annotations of the variables of a function, and conflicts with explicit ones.

    The result of a function of the module that does not state one is deduced from its body, unless
    the function is being deduced already, as in a recursion: its result is then unknown.

    Attributes:
        signature: of the function, with the deduced result.
        infos: variable → its annotation, with match_cast symbols replaced by the sizes they denote.
        symbols: match_cast symbol → the size it denotes, if known.
    """

    def __init__(
        self,
        function: ir.GraphFunction,
        module: ir.IRModule | None = None,
        signatures: dict[ir.GraphFunction, ir.CallableInfo] | None = None,
    ) -> None:
        self.module = module
        self._signatures = {} if signatures is None else signatures
        self._signatures[function] = function_info(function)
        self.infos: dict[ir.GraphVar, ir.Info | None] = {}
        self.symbols: dict[ir.Var, ir.Expr] = {}
        self.problems: list[Diagnostic] = []
        self.analyzer = Analyzer()
        self.scope: dict[ir.Var, None] = {}
        self._ranged: set[ir.Var] = set()
        self._attrs: dict[str, Any] = function.attrs
        self._past: dict[ir.Var, ir.Expr] = {}  # symbols of sequences that have ended
        self.signature = self._signatures[function] = self.function(function)
        self.symbols = self._past | self.symbols

    # ---------------------------------------------------------------------------------- functions
    def function(self, function: ir.GraphFunction, name: str | None = None) -> ir.CallableInfo:
        """Deduce the body of a function and return its signature.

        Args:
            name: of a local function, in messages.
        """
        around, denoted, attrs = dict(self.scope), dict(self.symbols), self._attrs
        self._attrs = inherited_bounds(function.attrs, attrs)
        for param in function.params:
            self.infos[param] = None if param.info is None else self._replaced(param.info)
            self._declare(ir.parameter_symbols(param.info))
        known = dict(self.scope)
        result = self._sequence(function.body)
        if function.ret_info is not None:
            what = f"the result of {name or function_name(function, self.module)}"
            result = self._agreed(function.ret_info, result, what, function) or function.ret_info
        result = without_sizes(result or ir.ObjectInfo(), self.scope.keys() - known)
        self._leave(around, denoted)
        self._attrs = attrs
        params = tuple(self.infos[p] or ir.ObjectInfo() for p in function.params)
        return ir.CallableInfo(params, result, function.pure)

    def _leave(self, scope: dict[ir.Var, None], symbols: dict[ir.Var, ir.Expr]) -> None:
        """End a branch or a local function, whose symbols are not visible outside."""
        self._past |= {s: size for s, size in self.symbols.items() if s not in symbols}
        self.scope, self.symbols = dict(scope), dict(symbols)

    def _declare(self, symbols: Sequence[ir.Var]) -> None:
        new = [s for s in symbols if s not in self._ranged]
        for symbol, bounds in symbol_ranges(self._attrs, new).items():
            self.analyzer.bind(symbol, bounds)
        self._ranged.update(new)
        self.scope.update(dict.fromkeys(symbols))

    def _sequence(self, body: ir.SeqExpr) -> ir.Info | None:
        for block in body.blocks:
            for binding in block.bindings:
                self.binding(binding)
        result = self._value(body.body, body)
        return self._agreed(body.info, result, "the result", body)

    def binding(self, binding: ir.Binding) -> None:
        """Deduce the annotation of one more variable."""
        if isinstance(binding, ir.MatchCast):
            self._cast(binding)
        elif isinstance(binding, ir.VarBinding):
            result = self._value(binding.value, binding)
            name = binding.var.name
            stated = self._visible(binding.var.info, binding.value)
            self.infos[binding.var] = self._agreed(stated, result, name, binding)

    def _agreed(
        self, stated: ir.Info | None, found: ir.Info | None, what: str, node: ir.Node
    ) -> ir.Info | None:
        """The more precise annotation; reports a stated one that is not implied."""
        if stated is None:
            return found
        if found is None or stated is found:
            return self._replaced(stated)
        wanted = self._replaced(stated)
        if not implied(wanted, instance(found, wanted, self.scope), self.analyzer):
            self._problem(
                "BW408",
                f"{what} is annotated {info_text(stated)}, but is {info_text(found)}",
                node,
                _CORRECT if contradicts(wanted, found, self.analyzer) else _CAST,
            )
            return None
        return refined(wanted, found)

    # ---------------------------------------------------------------------------------- casts
    def _cast(self, binding: ir.MatchCast) -> None:
        """Bind new symbols of the pattern to the sizes of the value."""
        result = self._value(binding.value, binding)
        name = binding.var.name
        if result is not None:
            self._bind_symbols(binding.pattern, result)
        self._declare([s for s in ir.symbolic_vars(binding.pattern) if s not in self.symbols])
        pattern = self._replaced(binding.pattern)
        if result is not None and contradicts(pattern, result, self.analyzer):
            self._problem(
                "BW409",
                f"match_cast of {name} to {info_text(binding.pattern)}: the "
                f"value is {info_text(result)}",
                binding,
            )
            self.infos[binding.var] = None
            return
        known = pattern if result is None else narrowed(pattern, result)
        self.infos[binding.var] = self._agreed(binding.var.info, known, name, binding)

    def _bind_symbols(self, pattern: ir.Info, found: ir.Info) -> None:
        if isinstance(pattern, ir.TupleInfo) and isinstance(found, ir.TupleInfo):
            for part, known in zip(pattern.fields, found.fields, strict=False):
                self._bind_symbols(part, known)
            return
        for dim, size in zip(_dims(pattern), _dims(found), strict=False):
            if isinstance(dim, ir.Var) and dim not in self.scope and dim not in self.symbols:
                self.symbols[dim] = size

    def _replaced(self, info: ir.Info) -> ir.Info:
        """An annotation with match_cast symbols replaced by the known sizes they denote."""
        return ir.substitute(info, self.symbols) if self.symbols else info

    # ---------------------------------------------------------------------------------- values
    def _value(self, value: ir.GraphExpr, where: ir.Node) -> ir.Info | None:
        """The deduced annotation; None after a problem or if nothing can be deduced."""
        if isinstance(value, ir.GraphVar):
            return self.infos.get(value)
        result = self._deduced(value, where)
        if isinstance(value, ir.SeqExpr):
            return result
        stated = self._visible(value.info, value)
        what = f"a value of {_name(where)}"
        return self._agreed(stated, result, what, value if value.span else where)

    def _visible(self, info: ir.Info | None, value: ir.GraphExpr) -> ir.Info | None:
        """The annotation of a value; of a local function, without sizes known only inside it."""
        if not isinstance(value, ir.GraphFunction) or not isinstance(info, ir.CallableInfo):
            return info
        known = {*self.scope, *(v for p in info.params or () for v in ir.collect(p, ir.Var))}
        lost = [v for v in ir.collect(info.ret, ir.Var) if v not in known]
        return info.replace(ret=without_sizes(info.ret, lost)) if lost else info

    def _deduced(self, value: ir.GraphExpr, where: ir.Node) -> ir.Info | None:
        if isinstance(value, ir.GraphCall):
            return self._call(value, where)
        if isinstance(value, ir.Constant):
            dims = tuple(ir.const(int(d), "int64") for d in value.data.shape)
            return ir.TensorInfo(dims, ir.dtype_of(value.data.dtype))
        if isinstance(value, ir.TupleExpr):
            fields = [self._value(f, where) for f in value.fields]
            known = [f for f in fields if f is not None]
            return ir.TupleInfo(tuple(known)) if len(known) == len(fields) else None
        if isinstance(value, ir.TupleGetItem):
            return self._field(value, where)
        if isinstance(value, ir.ShapeExpr):
            values = value.values
            dims = tuple(ir.substitute(d, self.symbols) for d in values) if self.symbols else values
            return ir.ShapeInfo(dims, len(dims))
        if isinstance(value, ir.PrimValue):
            known_value = ir.substitute(value.value, self.symbols)
            return ir.PrimInfo(value.value.dtype, known_value)
        if isinstance(value, ir.If):
            return self._branches(value, where)
        if isinstance(value, ir.GraphFunction):
            return self.function(value, _name(where))
        if isinstance(value, ir.SeqExpr):
            return self._sequence(value)
        if isinstance(value, ir.GlobalVar):
            return self._named(value, where)
        return value.info or ir.ObjectInfo()  # strings, operators, foreign functions

    def _named(self, value: ir.GlobalVar, where: ir.Node) -> ir.Info:
        """The annotation of a function of the module as a value.

        Its symbols stand for all sizes: a stated annotation may be that of any of its uses.
        """
        signature = self._signature(value)
        if signature is None:
            return value.info or ir.ObjectInfo()
        stated = value.info
        if not isinstance(stated, ir.CallableInfo) or stated.params is None:
            return signature
        if signature.params is None or len(signature.params) != len(stated.params):
            return signature
        binding = SymbolBinding(self.analyzer, value.name, scope=self.scope.keys())
        try:
            for param, given in zip(signature.params, stated.params, strict=True):
                binding.match(param, given)
            result = binding.result(signature.ret)
        except BlockwrightError as error:
            self._problem(error.code, error.message, where, error.help)
            return stated
        return ir.CallableInfo(stated.params, result, signature.pure)

    def _signature(self, op: ir.GlobalVar) -> ir.CallableInfo | None:
        """The signature of a graph function of the module; None for anything else."""
        target = None if self.module is None else self.module.functions.get(op.name)
        if not isinstance(target, ir.GraphFunction):
            return None
        if target.ret_info is not None or target.body.info is not None:
            return function_info(target)
        known = self._signatures.get(target)
        return Deduced(target, self.module, self._signatures).signature if known is None else known

    def _field(self, value: ir.TupleGetItem, where: ir.Node) -> ir.Info | None:
        whole = self._value(value.tuple_value, where)
        where = value if value.span is not None else where
        if whole is None:
            return None
        if not isinstance(whole, ir.TupleInfo):
            self._problem("BW417", f"{info_text(whole)} is not a tuple", where)
            return None
        if not 0 <= value.index < len(whole.fields):
            self._problem("BW417", f"field {value.index} of a tuple of {len(whole.fields)}", where)
            return None
        return whole.fields[value.index]

    def _branches(self, value: ir.If, where: ir.Node) -> ir.Info | None:
        condition = self._value(value.condition, where)
        if condition is not None and not _is_flag(condition):
            self._problem(
                "BW402", f"the condition of an `if` is {info_text(condition)}, not one bool", where
            )
        around, denoted, inside = dict(self.scope), dict(self.symbols), dict(self.scope)
        results: list[ir.Info | None] = []
        for branch in (value.then_branch, value.else_branch):
            results.append(self._sequence(branch))
            inside |= self.scope
            self._leave(around, denoted)
        then, other = results
        if then is None or other is None:
            return None
        return without_sizes(joined(then, other, self.analyzer, inside), inside.keys() - around)

    def _call(self, call: ir.GraphCall, where: ir.Node) -> ir.Info | None:
        matches = [self._value(a, where) for a in call.args]
        infos = [i for i in matches if i is not None]
        node = call if call.span is not None else where
        callee = None
        if isinstance(call.op, ir.GlobalVar):
            callee = self._signature(call.op)
        elif not isinstance(call.op, (ir.OpRef, ir.ExternFunc)):
            signature = self._value(call.op, where)
            if signature is not None and not isinstance(
                signature, (ir.CallableInfo, ir.ObjectInfo)
            ):
                self._problem("BW415", f"{info_text(signature)} is not a function", node)
                return None
            callee = signature if isinstance(signature, ir.CallableInfo) else None
        if len(infos) != len(matches):
            return None
        if self.module is None and isinstance(call.op, ir.GlobalVar):
            return None  # its signature is unknown here
        try:
            result = deduce_call(
                self._renamed(call), self.analyzer, self.module, infos, callee, self.scope
            )
        except BlockwrightError as error:
            self._problem(error.code, error.message, node, error.help)
            return None
        why = impossible_size(result)
        if why is not None:
            self._problem("BW250", f"the result is {info_text(result)}: {why}", node)
            return None
        if call.out_info and isinstance(call.op, ir.OpRef):
            stated = call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)
            return self._agreed(stated, result, f"out_sinfo of {call.op.name}", node)
        return result

    def _renamed(self, call: ir.GraphCall) -> ir.GraphCall:
        """The call with the symbols in its attributes and stated results replaced."""
        if not self.symbols or not (call.attrs or call.out_info):
            return call
        attrs = {key: _replaced(value, self.symbols) for key, value in call.attrs.items()}
        return call.replace(attrs=attrs, out_info=tuple(map(self._replaced, call.out_info)))

    def _problem(self, code: str, message: str, node: ir.Node, help: str | None = None) -> None:
        self.problems.append(Diagnostic(code, message, node.span, help))


def _replaced(value: Any, symbols: dict[ir.Var, ir.Expr]) -> Any:
    if isinstance(value, ir.Expr):
        return ir.substitute(value, symbols)
    if isinstance(value, (list, tuple)):
        return tuple(_replaced(v, symbols) for v in cast("Iterable[Any]", value))
    return value


def _dims(info: ir.Info) -> tuple[ir.Expr, ...]:
    if isinstance(info, ir.TensorInfo):
        return info.shape or ()
    if isinstance(info, ir.ShapeInfo):
        return info.values or ()
    if isinstance(info, ir.PrimInfo) and info.value is not None:
        return (info.value,)
    return ()


def _is_flag(info: ir.Info) -> bool:
    if isinstance(info, ir.TensorInfo):
        return info.rank in (0, -1) and (info.dtype is None or info.dtype.is_bool)
    return isinstance(info, ir.ObjectInfo) or (isinstance(info, ir.PrimInfo) and info.dtype.is_bool)


def _name(where: ir.Node) -> str:
    return where.var.name if isinstance(where, (ir.VarBinding, ir.MatchCast)) else "the result"
