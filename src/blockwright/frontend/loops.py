"""Loops of imported models: their bodies become private functions of the module.

    loops = Loops()
    h, ys = loops.over(builder, enter, body, [h], [xs])

`body` emits one step with the builder that `enter` makes the importer's builder. It may use values
and sizes around the loop: they become further parameters of the function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.graph.effects import has_effect
from blockwright.passes.functions.outline import free_variables
from blockwright.support import ImporterError

Values = list[Any]
"""Tensors; where a loop is written out, an importer's other values too."""
Step = Callable[[Values, Values], tuple[Values, Values]]
"""Maps the carried values and the elements to new carried values, and rows."""
Enter = Callable[[GraphBuilder], AbstractContextManager[None]]
"""Makes a builder the one that an importer emits to."""

_UNROLLED = 16
"""Most elements of an axis over which a loop is written out."""


class Loops:
    """Makes the functions of loops while a model is imported.

    Attributes: `functions` are those made so far, by name; `_effects` are the names of those that
        call the framework for more than a result.
    """

    def __init__(self) -> None:
        self.functions: dict[str, ir.GraphFunction] = {}
        self._effects: set[str] = set()
        self._numbers = itertools.count()

    def over(
        self,
        builder: GraphBuilder,
        enter: Enter,
        step: Step,
        carried: Sequence[Any],
        over: Sequence[ir.GraphExpr],
        *,
        tensor: Callable[[Any], ir.GraphExpr],
        reverse: bool = False,
    ) -> Values:
        """The carried values after a loop over the first axis, and the stacked rows.

        A short loop is written out; what it carries may be of any kind.

        Args: `tensor` makes a tensor of an importer's value; `reverse` begins at the last element.
        """

        def tensors(state: Values, elements: Values) -> tuple[Values, Values]:
            new, rows = step(state, elements)
            return list(map(tensor, new)), list(map(tensor, rows))

        length = ir.const_int(_length(over[0]))
        if length is None or not 0 < length <= _UNROLLED:
            return self._scan(builder, enter, tensors, list(map(tensor, carried)), over, reverse)
        op, state = builder.op, list(carried)
        rows: list[Values] = [[]] * length
        for place in reversed(range(length)) if reverse else range(length):
            elements = [
                op("squeeze", op("slice", x, axis=0, begin=place, end=place + 1), axis=0)
                for x in over
            ]
            state, row = step(state, elements)
            rows[place] = list(map(tensor, row))
        columns = [[op("expand_dims", x, axis=0) for x in c] for c in zip(*rows, strict=True)]
        return [*state, *(op("concat", *column, axis=0) for column in columns)]

    def _scan(
        self,
        outer: GraphBuilder,
        enter: Enter,
        body: Step,
        carried: Sequence[ir.GraphExpr],
        over: Sequence[ir.GraphExpr],
        reverse: bool,
    ) -> Values:
        name = f"loop_{next(self._numbers)}"
        inner = _builder(outer, [*carried, *over])
        state = [inner.param(f"state_{k}", _info(x)) for k, x in enumerate(carried)]
        elements = [inner.param(f"element_{k}", _element(x)) for k, x in enumerate(over)]
        with enter(inner):
            new, rows = body([*state], [*elements])
        new = [_of_same_size(inner, x, p.info) for x, p in zip(new, state, strict=True)]
        results = (*new, *rows)
        body_of = inner.sequence(results[0] if len(results) == 1 else ir.TupleExpr(results))
        captured = [v for v in free_variables(body_of) if v not in inner.params]
        symbols = _symbols(outer, body_of, [*carried, *over, *captured])
        params = (*state, *elements)
        self._refuse_effect(name, inner, body_of)
        self._add(name, inner, params, captured, symbols, body_of)
        length = _length(over[0])
        stacked = [
            ir.TensorInfo((length, *(r.tensor_info.shape or ())), r.tensor_info.dtype) for r in rows
        ]
        infos = (*(_info(x) for x in carried), *stacked)
        call = ir.GraphCall(
            ir.OpRef("scan"),
            (ir.GlobalVar(name), *carried, *over, *_sizes(symbols), *captured),
            {"carried": len(carried), "over": len(over), "reverse": reverse},
            info=ir.TupleInfo(infos),
        )
        return _fields(outer, outer.emit(call, "scanned"))

    def repeat(
        self,
        outer: GraphBuilder,
        enter: Enter,
        holds: Callable[[Values], ir.GraphExpr],
        body: Callable[[Values], Values],
        carried: Sequence[ir.GraphExpr],
    ) -> Values:
        """The carried values after a loop that goes on while a condition holds.

        It becomes a function that calls itself last, which `passes.host.tail_calls` makes a loop.

        Args:
            holds: maps the carried values to the condition; body: maps them to new ones.
        """
        name = f"loop_{next(self._numbers)}"
        inner = _builder(outer, carried)
        state = [inner.param(f"state_{k}", _info(x)) for k, x in enumerate(carried)]
        with enter(inner):
            condition = holds([*state])
        again = inner.branch()
        with enter(again):
            new = body([*state])
        new = [_of_same_size(again, x, p.info) for x, p in zip(new, state, strict=True)]
        result = ir.TupleInfo(tuple(_info(x) for x in carried))
        parts = [inner.sequence(condition), again.sequence(ir.TupleExpr(tuple(new)))]
        bound = [b for block in parts[0].blocks for b in block.bindings]
        mine = {*state, *(b.var for b in bound if isinstance(b, (ir.VarBinding, ir.MatchCast)))}
        every = dict.fromkeys(v for part in parts for v in free_variables(part))
        captured = [v for v in every if v not in mine]
        symbols = dict.fromkeys(
            s for part in parts for s in _symbols(outer, part, [*carried, *captured])
        )
        fixed = [*_sizes(symbols), *captured]
        call = ir.GraphCall(ir.GlobalVar(name), (*new, *fixed), info=result)
        repeated = again.sequence(again.emit(call, "repeated"))
        ended = inner.branch().sequence(ir.TupleExpr(tuple(state), info=result))
        last = inner.emit(ir.If(condition, repeated, ended, info=result), "last")
        self._refuse_effect(name, inner, parts[0])
        if self._has_effect(name, again, parts[1]):
            self._effects.add(name)
        self._add(name, inner, tuple(state), captured, symbols, inner.sequence(last))
        first = ir.GraphCall(ir.GlobalVar(name), (*carried, *fixed), info=result)
        return _fields(outer, outer.emit(first, "looped"))

    def _add(
        self,
        name: str,
        inner: GraphBuilder,
        params: Sequence[ir.GraphVar],
        captured: Sequence[ir.GraphVar],
        symbols: Iterable[ir.Var],
        body: ir.SeqExpr,
    ) -> None:
        """Add a function, whose last parameters are sizes and values around the loop."""
        own = {v: ir.GraphVar(f"value_{k}", info=v.info) for k, v in enumerate(captured)}
        shapes = [ir.GraphVar("sizes", info=s.info) for s in _sizes(symbols)]
        attrs = {k: v for k, v in inner.attrs.items() if k in ir.BOUND_ATTRS}
        body = ir.substitute(body, own)
        every = (*params, *shapes, *own.values())
        self.functions[name] = ir.GraphFunction(every, body, body.info, attrs)

    def _refuse_effect(self, name: str, builder: GraphBuilder, body: ir.SeqExpr) -> None:
        if self._has_effect(name, builder, body):
            raise ImporterError(
                "the body of a loop has an operator that the framework runs",
                code="BW501",
                help="replace the operator, or move it out of the loop",
            )

    def _has_effect(self, name: str, builder: GraphBuilder, body: ir.SeqExpr) -> bool:
        """Whether a part of the function `name` may do more than compute its results.

        The functions of loops are not in the builder's module yet. They are called pure, which a
        loop needs to become one, also if their bodies have effects: those are remembered here.
        """
        for call in ir.collect(body, ir.GraphCall):
            callee = call.op.name if isinstance(call.op, ir.GlobalVar) else ""
            if callee == name or callee in self.functions:
                if callee in self._effects:
                    return True
            elif has_effect(call, builder.module):
                return True
        return False


def _info(value: ir.GraphExpr) -> ir.TensorInfo:
    """The annotation of a value that a loop takes. Raises: ImporterError BW507 for others."""
    if not isinstance(value.info, ir.TensorInfo) or value.info.shape is None:
        raise ImporterError(
            f"a loop over {value.info!r}",
            code="BW507",
            help="carry tensors of known rank through loops, such as torch.tensor(0)",
        )
    return value.info


def _length(value: ir.GraphExpr) -> ir.Expr:
    shape = _info(value).shape
    assert shape
    return shape[0]


def _element(value: ir.GraphExpr) -> ir.TensorInfo:
    info = _info(value)
    assert info.shape
    return ir.TensorInfo(info.shape[1:], info.dtype)


def _builder(outer: GraphBuilder, values: Sequence[ir.GraphExpr]) -> GraphBuilder:
    """A builder for a function that knows the sizes around it."""
    attrs = {k: v for k, v in outer.attrs.items() if k in ir.BOUND_ATTRS}
    inner = GraphBuilder(attrs, outer.module, dataflow=False, unequal=outer.unequal)
    infos = [p.info for p in outer.params] + [v.info for v in values]
    inner.know(list(dict.fromkeys(s for info in infos for s in ir.parameter_symbols(info))))
    return inner


def _of_same_size(builder: GraphBuilder, value: ir.GraphExpr, info: ir.Info | None) -> ir.GraphExpr:
    """A value that a loop carries on, checked to have the size of its first value."""
    found, wanted = _info(value), info
    assert isinstance(wanted, ir.TensorInfo)
    if found.dtype is not wanted.dtype or found.rank != wanted.rank:
        raise ImporterError(
            f"a loop that carries {wanted!r}, of which its body makes {found!r}",
            code="BW507",
            help="keep type and rank of the values that a loop carries",
        )
    same = ir.structural_equal(found, wanted)
    return value if same else builder.match_cast(value, wanted, "carried")


def _symbols(outer: GraphBuilder, body: ir.SeqExpr, values: Sequence[ir.GraphExpr]) -> list[ir.Var]:
    """The sizes around a body that it uses, or that occur in the values it takes."""
    casts = ir.collect(body, ir.MatchCast)
    known = {s for p in outer.params for s in ir.parameter_symbols(p.info)}
    bound = {s for c in casts for s in ir.symbolic_vars(c.pattern) if s not in known}
    inside = ir.collect(body, ir.Var)
    stated = [v for x in values for v in ir.collect(_stated(x.info), ir.Var)]
    return [s for s in dict.fromkeys([*inside, *stated]) if s not in bound]


def _stated(info: ir.Info | None) -> ir.Info:
    return info or ir.ObjectInfo()


def _sizes(symbols: Iterable[ir.Var]) -> list[ir.ShapeExpr]:
    """A shape of the symbols, as an argument; none if there are none."""
    values = tuple(symbols)
    return [ir.ShapeExpr(values, info=ir.ShapeInfo(values))] if values else []


def _fields(builder: GraphBuilder, whole: ir.GraphVar) -> Values:
    assert isinstance(whole.info, ir.TupleInfo)
    return [
        builder.emit(ir.TupleGetItem(whole, k, info=field))
        for k, field in enumerate(whole.info.fields)
    ]
