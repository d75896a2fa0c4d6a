"""Rewrite the matches of a pattern in a graph function.

Before:  lv = R.multiply(x, R.const(2.0)); y = R.multiply(lv, R.const(3.0))
After:   y = R.multiply(x, R.const(6.0))

by  a, b = is_const().named("a"), is_const().named("b")
    pattern = is_op("multiply")(is_op("multiply")(x, a).used_only_inside(), b)
    rewrite(function, pattern, lambda m: call_op("multiply", m[x], constant(m["a"].data * …)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.graph.annotate import annotate
from blockwright.graph.builder import constant
from blockwright.graph.deduce import deduce_call
from blockwright.graph.effects import has_effect
from blockwright.graph.pattern.index import GraphIndex, callee_name
from blockwright.graph.pattern.matcher import Match, Matcher
from blockwright.graph.pattern.patterns import Pattern
from blockwright.graph.relate import implied, info_text, refined
from blockwright.graph.well_formed import check_graph
from blockwright.support import GraphError
from blockwright.support.stack import deep

Replace = Callable[[Match], ir.GraphExpr | None]
Operand = ir.GraphExpr | np.ndarray[Any, Any]


def call_op(name: str, *args: Operand, **attrs: Any) -> ir.GraphCall:
    """A call of an operator, for a replacement; operands may be calls themselves, or arrays."""
    return ir.GraphCall(ir.OpRef(name), tuple(map(_operand, args)), attrs)


def call_library(
    name: str, args: Sequence[Operand], out: ir.Info | Sequence[ir.Info], **attrs: Any
) -> ir.GraphCall:
    """A `call_dps_library` for a replacement.

    Arguments: `out` is the annotation of the result, or one per result; `attrs` are scalars that
        the function receives after its tensors.
    """
    packed = ir.TupleExpr(tuple(map(_operand, args)))
    infos = (out,) if isinstance(out, ir.Info) else tuple(out)
    return ir.GraphCall(ir.OpRef("call_dps_library"), (ir.ExternFunc(name), packed), attrs, infos)


def _operand(value: Operand) -> ir.GraphExpr:
    return constant(value) if isinstance(value, np.ndarray) else value


@deep
def rewrite(
    function: ir.GraphFunction,
    pattern: Pattern,
    replace: Replace,
    module: ir.IRModule | None = None,
) -> ir.GraphFunction:
    """Replace the matches of a pattern.

    Matches are visited from the last value to the first, the preferred match at each. A matched
    call that nothing reads any more is removed; it takes part in no other match. Values that the
    replacement reads are computed where they were.

    Arguments:
        replace: called with each match; returns the new value, an expression of calls, captured
            values and constants, or None to leave the match alone.
        module: the module of the function, for calls of its other functions.

    Returns: a function in A-normal form, annotated and checked; `function` itself if no match was
        replaced.

    Raises: GraphError BW421 if a new value does not have the annotation of the value that it
        replaces; also the errors of `check_graph`, for replacements that are not well-formed.
    """
    index = GraphIndex(function, module)
    chosen = _choose(index, pattern, replace)
    if not chosen:
        return function
    result = _Rebuild(index, chosen).run()
    result = annotate(result, module)
    check_graph(result, module)
    return result


class _Chosen(dict[ir.GraphVar, ir.GraphExpr]):
    """Replacements by the variable that they replace; `gone`: variables that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[ir.GraphVar] = set()


def _choose(index: GraphIndex, pattern: Pattern, replace: Replace) -> _Chosen:
    matcher, chosen = Matcher(index), _Chosen()
    mentioned: set[ir.GraphVar] = set()  # by replacements
    for root in reversed(index.order):
        if root in chosen.gone:
            continue
        match = next(matcher.embeddings(pattern, root), None)
        new = None if match is None else replace(match)
        if match is None or new is None:
            continue
        _require_expression(new, root, index)
        chosen[root] = new
        mentioned.update(ir.collect(new, ir.GraphVar))
        position = {var: at for at, var in enumerate(index.order)}
        for var in sorted(match.calls[1:], key=lambda v: -position[v]):
            readers = index.readers.get(var, ())
            unread = all(r is not None and (r in chosen.gone or r in chosen) for r in readers)
            if unread and var not in mentioned and not has_effect(index.values[var], index.module):
                chosen.gone.add(var)
    return chosen


def _require_expression(new: object, root: ir.GraphVar, index: GraphIndex) -> None:
    if not isinstance(new, ir.GraphExpr):
        raise GraphError(
            f"the replacement of {root.name} is {type(new).__name__}, not a graph expression",
            code="BW421",
            help="return a captured value, call_op(…), constant(array), or None",
        )
    for var in ir.collect(new, ir.GraphVar):
        if var not in index.variables:
            raise GraphError(
                f"the replacement of {root.name} mentions {var.name}, which is not a value of the "
                "function",
                code="BW421",
                help="use values that the match captures; those of a function without "
                "annotations are annotated copies",
            )


class _Rebuild:
    """Builds the function with the replacements in place of the matched values."""

    def __init__(self, index: GraphIndex, chosen: _Chosen) -> None:
        self.index, self.chosen = index, chosen
        self.same: dict[ir.Node, ir.Node] = {}  # variable → the value in its place
        self.names = Counter(var.name for var in index.values)

    def run(self) -> ir.GraphFunction:
        function = self.index.function
        return function.replace(body=self._body(function.body))

    def _body(self, body: ir.SeqExpr) -> ir.SeqExpr:
        blocks = tuple(
            block.replace(bindings=tuple(b for old in block.bindings for b in self._binding(old)))
            for block in body.blocks
        )
        result = self._new(body.body)
        return body.replace(blocks=blocks, body=result)

    def _new(self, node: Any) -> Any:
        return ir.substitute(node, self.same) if self.same else node

    def _binding(self, binding: ir.Binding) -> list[ir.Binding]:
        if not isinstance(binding, ir.VarBinding):
            return [self._new(binding)]
        var = binding.var
        if var in self.chosen.gone:
            return []
        if var in self.chosen:
            return self._replacement(var, self._new(self.chosen[var]))
        value = binding.value
        if isinstance(value, ir.If):
            value = value.replace(
                condition=self._new(value.condition),
                then_branch=self._body(value.then_branch),
                else_branch=self._body(value.else_branch),
            )
        elif isinstance(value, ir.GraphFunction):
            value = value.replace(body=self._body(value.body))
        else:
            value = self._new(value)
        return [binding if value is binding.value else binding.replace(value=value)]

    def _replacement(self, var: ir.GraphVar, new: ir.GraphExpr) -> list[ir.Binding]:
        out: list[ir.Binding] = []
        value = self._normal(new, var, out)
        self._require_refinement(var, value)
        if isinstance(value, (ir.GraphVar, ir.Constant)):
            self.same[var] = value
            return out
        info = None if value.info is None else refined(var.info, value.info)
        renewed = var if info is var.info else var.replace(info=info)
        if renewed is not var:
            self.same[var] = renewed
        return [*out, ir.VarBinding(renewed, value.replace(info=info))]

    def _normal(self, value: ir.GraphExpr, var: ir.GraphVar, out: list[ir.Binding]) -> ir.GraphExpr:
        """An annotated value whose operands are variables, constants, shapes or tuples of these."""
        if isinstance(value, ir.GraphCall):
            args = tuple(self._operand(arg, var, out) for arg in value.args)
            call = value.replace(args=args, info=None)
            infos = [arg.info or ir.ObjectInfo() for arg in args]
            info = deduce_call(call, self.index.analyzer, self.index.module, infos)
            return call.replace(info=info)
        if isinstance(value, ir.TupleExpr):
            fields = tuple(self._operand(field, var, out) for field in value.fields)
            infos = tuple(field.info or ir.ObjectInfo() for field in fields)
            return value.replace(fields=fields, info=ir.TupleInfo(infos))
        if isinstance(value, ir.TupleGetItem):
            whole = self._operand(value.tuple_value, var, out)
            info = whole.info
            if not isinstance(info, ir.TupleInfo) or not 0 <= value.index < len(info.fields):
                raise GraphError(
                    f"the replacement of {var.name} takes item {value.index} of {_text(info)}",
                    code="BW421",
                )
            return value.replace(tuple_value=whole, info=info.fields[value.index])
        if isinstance(value, ir.Constant) and value.info is None:
            return value.replace(info=constant(value.data).info)
        if isinstance(value, ir.ShapeExpr) and value.info is None:
            return value.replace(info=ir.ShapeInfo(value.values, len(value.values)))
        return value

    def _operand(
        self, value: ir.GraphExpr, var: ir.GraphVar, out: list[ir.Binding]
    ) -> ir.GraphExpr:
        result = self._normal(value, var, out)
        if not isinstance(result, (ir.GraphCall, ir.TupleGetItem)):
            return result
        base = callee_name(result) if isinstance(result, ir.GraphCall) else "item"
        bound = ir.GraphVar(self._fresh(base.split(".")[-1]), True, info=result.info)
        out.append(ir.VarBinding(bound, result))
        return bound

    def _fresh(self, base: str) -> str:
        name, number = base, 0
        while self.names[name]:
            number += 1
            name = f"{base}{number}"
        self.names[name] += 1
        return name

    def _require_refinement(self, var: ir.GraphVar, value: ir.GraphExpr) -> None:
        wanted, found = var.info, value.info
        if wanted is None or (found and implied(wanted, found, self.index.analyzer)):
            return
        raise GraphError(
            f"the replacement of {var.name} is {_text(found)}, but {var.name} is {_text(wanted)}",
            code="BW421",
            help="a replacement has the annotation of the value it replaces, or a more precise "
            "one; R.astype or R.reshape in the replacement, or has_shape and has_dtype in the "
            "pattern",
        )


def _text(info: ir.Info | None) -> str:
    return "not annotated" if info is None else info_text(info)


def rewrite_module(module: ir.IRModule, pattern: Pattern, replace: Replace) -> ir.IRModule:
    """Rewrite every graph function of a module; see `rewrite`."""
    functions: Mapping[str, ir.Node] = {
        name: rewrite(function, pattern, replace, module)
        if isinstance(function, ir.GraphFunction)
        else function
        for name, function in module.functions.items()
    }
    same = all(functions[name] is module.functions[name] for name in functions)
    return module if same else module.replace(functions=functions)
