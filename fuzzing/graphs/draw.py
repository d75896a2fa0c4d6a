"""Draw graph functions by seed."""

from __future__ import annotations

from fuzzing.graphs import movement, operators
from fuzzing.graphs.drawer import COLUMNS, ROWS, TYPES, Drawer
from fuzzing.graphs.operands import OPERATORS
from fuzzing.graphs.program import Graph, Inexact, Rejected, Run, Sizes, Value

__all__ = ["draw", "movement", "operators"]  # the latter two register their operators


def draw(seed: int, steps: int = 12) -> Graph:
    """The graph function of a seed."""
    d = Drawer(seed)
    parameters = parameters_of(d)
    names = list(OPERATORS)
    weights = [weight for _, weight in OPERATORS.values()]
    while d.count < steps:
        OPERATORS[d.chance.choices(names, weights)[0]][0](d)
    results = [value.name for value in d.values if value not in parameters]
    outputs = d.chance.sample(results, min(5, len(results)))
    first = (_given(d.run.sizes), tuple(d.run[p.name] for p in parameters))
    graph = Graph(parameters, tuple(d.bindings), tuple(outputs), (first,), d.chance.random() < 0.6)
    return with_calls(graph, d)


def parameters_of(d: Drawer) -> tuple[Value, ...]:
    """Parameters of `main`, with their values in the first call."""
    kinds = (
        (("n", "m"), "int32"),
        (("m",), "int32"),
        (("n", "4"), d.chance.choice(TYPES)),
        (("2", "3"), d.chance.choice(TYPES)),
        ((d.chance.choice(("1", "m")), d.chance.choice(("n", "6"))), "float32"),
    )
    for number, (dims, dtype) in enumerate(kinds):
        value = Value(f"p{number}", dims, dtype)
        d.run.values[value.name] = d.array(d.run.shape(dims), dtype)
        d.values.append(value)
    return tuple(d.values)


def _given(sizes: Sizes) -> Sizes:
    return {name: sizes[name] for name in ("n", "m")}


def with_calls(graph: Graph, d: Drawer) -> Graph:
    """The graph with two calls of other sizes, one of them small, where results are exact."""
    calls = list(graph.calls)
    for rows, columns in ((ROWS, COLUMNS), ((1, 2), (1, 2))):
        sizes = {"n": d.chance.choice(rows), "m": d.chance.choice(columns)}
        shapes = [Run(sizes, {}).shape(p.dims) for p in graph.parameters]
        arguments = tuple(
            d.array(shape, p.dtype) for shape, p in zip(shapes, graph.parameters, strict=True)
        )
        try:
            graph.expected(sizes, arguments)
        except Inexact:
            continue
        except Rejected:
            pass
        calls.append((sizes, arguments))
    return Graph(graph.parameters, graph.bindings, graph.outputs, tuple(calls), graph.dataflow)
