"""Which graph functions of a module call which, and which are recursive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blockwright import ir


def callees(node: ir.Node, module: ir.IRModule) -> list[str]:
    """Names of the graph functions that a function mentions, in order: called or used as values."""
    names = dict.fromkeys(reference.name for reference in ir.collect(node, ir.GlobalVar))
    return [n for n in names if isinstance(module.functions.get(n), ir.GraphFunction)]


def recursive_functions(module: ir.IRModule) -> frozenset[str]:
    """Names of the graph functions that may call themselves, directly or through others."""
    graph = {
        name: callees(f, module)
        for name, f in module.functions.items()
        if isinstance(f, ir.GraphFunction)
    }
    return frozenset(name for name in graph if name in reachable(graph, graph[name]))


def reachable(graph: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    """The roots and everything that they mention, directly or through others."""
    result: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name not in result:
            result.add(name)
            stack += graph.get(name, ())
    return result
