"""Which graph functions of a module call which, and which are recursive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blockwright import ir


def callees(node: ir.Node, module: ir.IRModule) -> list[str]:
    """Names of the graph functions that a function mentions, in order: called or used as values."""
    names = dict.fromkeys(reference.name for reference in ir.collect(node, ir.GlobalVar))
    return [n for n in names if isinstance(module.functions.get(n), ir.GraphFunction)]


def function_name(function: ir.GraphFunction, module: ir.IRModule | None) -> str:
    """The name of a function in messages: private functions have theirs in the module only."""
    functions = {} if module is None else module.functions
    return next((name for name, f in functions.items() if f is function), function.name)


def closure_targets(module: ir.IRModule) -> list[str]:
    """Names of the graph functions that closures call."""
    found: dict[str, None] = {}
    for function in module.functions.values():
        if isinstance(function, ir.GraphFunction):
            for call in ir.collect(function.body, ir.GraphCall):
                if _is_operator(call, "make_closure"):
                    found.update(dict.fromkeys(callees(call.args[0], module)))
    return list(found)


def directly_called(module: ir.IRModule) -> set[str]:
    """Names of the graph functions that calls and loops of others name, not only closures."""
    found: set[str] = set()
    for function in module.functions.values():
        if not isinstance(function, ir.GraphFunction):
            continue
        for call in ir.collect(function.body, ir.GraphCall):
            names = [call.op, *call.args[_is_operator(call, "make_closure") :]]
            found.update(ref.name for each in names for ref in ir.collect(each, ir.GlobalVar))
    return {name for name in found if isinstance(module.functions.get(name), ir.GraphFunction)}


def _is_operator(call: ir.GraphCall, *names: str) -> bool:
    return isinstance(call.op, ir.OpRef) and call.op.name in names


def recursive_functions(module: ir.IRModule, *, dynamic: bool = False) -> frozenset[str]:
    """Names of the graph functions that may call themselves, directly or through others.

    Arguments: with `dynamic`, a function that calls a function value may call all closures.
    """
    graph = {
        name: callees(f, module)
        for name, f in module.functions.items()
        if isinstance(f, ir.GraphFunction)
    }
    targets = closure_targets(module) if dynamic else []
    for name in graph if targets else ():
        calls = ir.collect(module[name].body, ir.GraphCall)
        if any(_is_operator(c, "invoke_closure", "call_packed", "call_pure_packed") for c in calls):
            graph[name] = [*graph[name], *targets]
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
