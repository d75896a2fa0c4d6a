"""Converters of control flow: branches, loops that end by a condition, loops over an axis.

torch.cond(p, f, g, (x,))             if p: y = f(x)  else: y = g(x)
while_loop(c, f, (i, x))              a function that calls itself while c(i, x) holds
scan(f, init, xs); map(f, xs)         the body once for each element of the first axis
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.operands import Registry, dims_of, is_tensor, reshape
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
    return imp.branches(_truth(imp, predicate), (then, other), operands, node.meta["val"])


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

    return imp.loop(holds, body, carried, others)


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
