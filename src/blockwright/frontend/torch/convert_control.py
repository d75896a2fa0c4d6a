"""Converters of control flow: branches, loops that end by a condition, loops over an axis.

torch.cond(p, f, g, (x,))             if p: y = f(x)  else: y = g(x)
while_loop(c, f, (i, x))              a function that calls itself while c(i, x) holds
scan(f, init, xs); map(f, xs)         the body once for each element of the first axis
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.operands import Registry, as_tensor, dims_of, is_tensor, reshape
from blockwright.graph import GraphBuilder
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_UNROLLED = 1024
"""Most elements of an axis over which a loop is unrolled."""
_LOOPS = "compute with the whole tensor instead, or export with a fixed length"


@TABLE.overload("aten.cond")
def _cond(
    imp: Importer, node: Any, predicate: Any, then: Any, other: Any, operands: Sequence[Any] = ()
) -> Any:
    if isinstance(predicate, bool):
        return imp.region(then if predicate else other, operands)
    return _branches(imp, _truth(imp, predicate), (then, other), operands)


def _truth(imp: Importer, predicate: Any) -> ir.GraphExpr:
    """A condition on sizes, or the only element of a tensor, as the condition of a branch."""
    if is_tensor(predicate):
        return reshape(imp, predicate, ()) if dims_of(predicate) else predicate
    return ir.PrimValue(predicate, info=ir.PrimInfo(predicate.dtype, predicate))


@TABLE.overload("aten.while_loop")
def _while_loop(
    imp: Importer, node: Any, condition: Any, body: Any, carried: Sequence[Any], others: Any = ()
) -> Any:
    if not all(map(is_tensor, (*carried, *others))):
        raise ImporterError(
            "a loop that carries a number",
            code="BW507",
            help="carry tensors, such as torch.tensor(0)",
        )

    def holds(values: Sequence[Any]) -> ir.GraphExpr:
        return _truth(imp, imp.region(condition, values)[0])

    return _loop(imp, holds, body, carried, others)


def _branches(
    imp: Importer,
    condition: ir.GraphExpr,
    parts: Sequence[Any],
    operands: Sequence[Any],
) -> list[Any]:
    """The values of one of two bodies, chosen when the model runs."""
    outer, made = imp.builder, list[tuple[GraphBuilder, list[Any]]]()
    for part in parts:
        imp.builder = outer.branch()
        try:
            made.append((imp.builder, list(map(as_tensor, imp.region(part, operands)))))
        finally:
            imp.builder = outer
    infos = tuple(map(_common_info, *(values for _, values in made)))
    then, other = (b.sequence(ir.TupleExpr(tuple(values))) for b, values in made)
    return _items(imp, ir.If(condition, then, other, info=ir.TupleInfo(infos)), "chosen")


def _loop(
    imp: Importer,
    holds: Callable[[Sequence[Any]], ir.GraphExpr],
    body: Any,
    carried: Sequence[Any],
    others: Sequence[Any],
) -> list[Any]:
    """The carried values after a loop, which becomes a function that calls itself.

    Args:
        holds: makes the condition, given the values of carried and other tensors.
        body: the graph that maps these values to the carried ones of the next step.
    """
    outer, name = imp.builder, f"loop_{next(imp.numbers)}"
    values = [*carried, *others]
    symbols = tuple(dict.fromkeys(v for x in values for v in ir.symbolic_vars(x.info)))
    sizes = ir.ShapeExpr(symbols, info=ir.ShapeInfo(symbols))
    count, result = len(carried), ir.TupleInfo(tuple(x.info for x in carried))
    inner = GraphBuilder(imp.bounds(), dataflow=False)
    size = inner.param("sizes", ir.ShapeInfo(symbols))
    params = [inner.param(f"value_{k}", x.info) for k, x in enumerate(values)]
    try:
        imp.builder = inner
        with imp.random.refused("a loop"):
            condition = holds(params)
            imp.builder = again = inner.branch()
            new = list(map(as_tensor, imp.region(body, params)))
    finally:
        imp.builder = outer
    new = [_of_same_size(again, x, p.info) for x, p in zip(new, params, strict=False)]
    call = ir.GraphCall(ir.GlobalVar(name), (size, *new, *params[count:]), info=result)
    repeated = again.sequence(again.emit(call, "repeated"))
    ended = inner.branch().sequence(ir.TupleExpr(tuple(params[:count]), info=result))
    last = inner.emit(ir.If(condition, repeated, ended, info=result), "last")
    made = inner.finish(name, last)
    private = {k: v for k, v in made.attrs.items() if k != "global_symbol"}
    imp.functions[name] = made.replace(attrs=private)
    first = ir.GraphCall(ir.GlobalVar(name), (sizes, *values), info=result)
    return _items(imp, first, "looped")


def _items(imp: Importer, value: ir.GraphExpr, name: str) -> list[Any]:
    """The fields of a tuple."""
    whole = imp.builder.emit(value, name)
    assert isinstance(whole.info, ir.TupleInfo)
    return [
        imp.builder.emit(ir.TupleGetItem(whole, k, info=field))
        for k, field in enumerate(whole.info.fields)
    ]


def _common_info(one: Any, other: Any) -> ir.Info:
    """The annotation of a value that is one of two."""
    if not isinstance(one, ir.GraphExpr) or not isinstance(other, ir.GraphExpr):
        raise ImporterError(
            "branches that give numbers",
            code="BW507",
            help="return tensors from them, such as torch.full((), n)",
        )
    if ir.structural_equal(one.info, other.info):
        return one.tensor_info
    return ir.TensorInfo(None, one.tensor_info.dtype, one.tensor_info.rank)


def _of_same_size(builder: GraphBuilder, value: Any, info: Any) -> Any:
    """A value that a loop carries on, checked to have the size of its first value."""
    if not isinstance(value, ir.GraphExpr):
        raise ImporterError("a loop that carries a number", code="BW507", help="carry tensors")
    same = ir.structural_equal(value.info, info)
    return value if same else builder.match_cast(value, info, "carried")


@TABLE.overload("aten.scan")
def _scan(
    imp: Importer, node: Any, body: Any, carried: Sequence[Any], over: Any, others: Any = ()
) -> Any:
    values, rows = list(carried), list[list[Any]]()
    for elements in _elements(imp, over):
        results = imp.region(body, (*values, *elements, *others))
        values = results[: len(values)]
        rows.append(results[len(values) :])
    return [*values, *_stacked(imp, rows)]


@TABLE.overload("aten.map_impl")
def _map(imp: Importer, node: Any, body: Any, over: Sequence[Any], others: Any = ()) -> Any:
    rows = [imp.region(body, (*elements, *others)) for elements in _elements(imp, over)]
    return _stacked(imp, rows)


@TABLE.overload("aten.associative_scan")
def _associative_scan(
    imp: Importer, node: Any, body: Any, over: Sequence[Any], others: Any = ()
) -> Any:
    """Running results of an associative function, from the first element on."""
    rows = list[list[Any]]()
    for elements in _elements(imp, over):
        first = not rows
        rows.append(elements if first else imp.region(body, (*rows[-1], *elements, *others)))
    return _stacked(imp, rows)


def _elements(imp: Importer, over: Sequence[Any]) -> list[list[Any]]:
    """The elements of tensors along their first axis, one from each tensor."""
    length = ir.const_int(dims_of(over[0])[0])
    if length is None or length > _UNROLLED or not length:
        found = "unknown length" if length is None else f"length {length}"
        raise ImporterError(f"a loop over an axis of {found}", code="BW507", help=_LOOPS)
    op = imp.builder.op

    def element(tensor: Any, place: int) -> Any:
        return op("squeeze", op("slice", tensor, axis=0, begin=place, end=place + 1), axis=0)

    return [[element(tensor, place) for tensor in over] for place in range(length)]


def _stacked(imp: Importer, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """For each result of a body, its values for all elements as one tensor."""
    op = imp.builder.op
    return [
        op("concat", *(op("expand_dims", value, axis=0) for value in values), axis=0)
        for values in zip(*rows, strict=True)
    ]
