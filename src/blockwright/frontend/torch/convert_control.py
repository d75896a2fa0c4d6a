"""Converters of control flow: branches, loops that end by a condition, loops over an axis.

torch.cond(p, f, g, (x,))             if p: y = f(x)  else: y = g(x)
while_loop(c, f, (i, x))              a function that calls itself while c(i, x) holds
scan(f, init, xs); map(f, xs)         R.scan, or the body once for each element of a short axis
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.loops import Step
from blockwright.frontend.torch.operands import Registry, as_tensor, dims_of, is_tensor, reshape
from blockwright.graph import GraphBuilder
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()


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
        return _truth(imp, imp.region(condition, [*values, *others])[0])

    def step(values: Sequence[Any]) -> list[Any]:
        return list(map(as_tensor, imp.region(body, [*values, *others])))

    return imp.loops.repeat(imp.builder, inside(imp), holds, step, carried)


def inside(imp: Importer) -> Callable[[GraphBuilder], AbstractContextManager[None]]:
    """What makes a builder that of the importer, for the body of a loop."""

    @contextmanager
    def enter(builder: GraphBuilder) -> Generator[None]:
        outer, imp.builder = imp.builder, builder
        try:
            with imp.random.refused("a loop"):
                yield
        finally:
            imp.builder = outer

    return enter


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


@TABLE.overload("aten.scan")
def _scan(
    imp: Importer, node: Any, body: Any, carried: Sequence[Any], over: Any, others: Any = ()
) -> Any:
    def step(state: Sequence[Any], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = imp.region(body, (*state, *elements, *others))
        return results[: len(carried)], results[len(carried) :]

    return _over(imp, step, carried, over)


@TABLE.overload("aten.map_impl")
def _map(imp: Importer, node: Any, body: Any, over: Sequence[Any], others: Any = ()) -> Any:
    def step(_: Sequence[Any], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return [], imp.region(body, (*elements, *others))

    return _over(imp, step, [], over)


@TABLE.overload("aten.associative_scan")
def _associative_scan(
    imp: Importer, node: Any, body: Any, over: Sequence[Any], others: Any = ()
) -> Any:
    """Running results of an associative function, from the first element on."""
    op = imp.builder.op
    first = [op("slice", x, axis=0, begin=0, end=1) for x in over]
    if all(ir.is_const_int(dims_of(x)[0], 1) for x in over):
        return first
    rest = [op("slice", x, axis=0, begin=1, end=dims_of(x)[0]) for x in over]

    def step(state: Sequence[Any], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = imp.region(body, (*state, *elements, *others))
        return results, results

    start = [reshape(imp, x, dims_of(x)[1:]) for x in first]
    rows = _over(imp, step, start, rest)[len(start) :]
    return [op("concat", x, row, axis=0) for x, row in zip(first, rows, strict=True)]


def _over(imp: Importer, step: Step, carried: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    """A loop over the first axis."""
    return imp.loops.over(imp.builder, inside(imp), step, carried, over, tensor=as_tensor)
