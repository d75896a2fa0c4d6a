"""Patterns on random graphs: a search over all assignments finds the same matches."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder, check_graph
from blockwright.graph.pattern import COMMUTATIVE, Pattern, call_op, is_op, rewrite, wildcard
from blockwright.graph.pattern.index import GraphIndex
from blockwright.graph.pattern.matcher import Matcher

UNARY, BINARY = ("exp", "negative"), ("add", "subtract")
Spec = tuple[str, tuple["Spec", ...], int]
"""Operator ("" for any value), operands, and a number: equal numbers stand for one value."""


def random_graph(rng: random.Random, count: int) -> ir.GraphFunction:
    builder = GraphBuilder()
    info = ir.TensorInfo((ir.const(4, "int64"),), ir.dtype_of("float32"))
    values = [builder.param("x", info)]
    for _ in range(count):
        name = rng.choice(UNARY + BINARY)
        operands = [rng.choice(values[-4:]) for _ in range(1 if name in UNARY else 2)]
        values.append(builder.op(name, *operands))
    return builder.finish("main", values[-1])


def random_spec(rng: random.Random, depth: int, known: list[Spec]) -> Spec:
    """A pattern as data; parts of it may occur several times."""
    if known and rng.random() < 0.35:
        return rng.choice(known)
    name = rng.choice(("", *UNARY, *BINARY)) if depth else ""
    count = 0 if not name else 1 if name in UNARY else 2
    parts = tuple(random_spec(rng, depth - 1, known) for _ in range(count))
    spec = (name, parts, len(known))
    known.append(spec)
    return spec


def as_pattern(spec: Spec, made: dict[int, Pattern]) -> Pattern:
    name, parts, number = spec
    if number not in made:
        operands = [as_pattern(part, made) for part in parts]
        made[number] = (is_op(name)(*operands) if name else wildcard()).named(str(number))
    return made[number]


def nodes_of(spec: Spec, found: dict[int, Spec]) -> dict[int, Spec]:
    found[spec[2]] = spec
    for part in spec[1]:
        nodes_of(part, found)
    return found


def by_assignment(spec: Spec, function: ir.GraphFunction) -> set[tuple[tuple[int, str], ...]]:
    """All assignments of values to the parts of a pattern under which every part holds."""
    calls = {b.var: b.value for b in function.bindings if isinstance(b, ir.VarBinding)}
    values = [*function.params, *calls]
    nodes = nodes_of(spec, {})
    result: set[tuple[tuple[int, str], ...]] = set()
    for chosen in itertools.product(values, repeat=len(nodes)):
        held = dict(zip(nodes, chosen, strict=True))
        if held[spec[2]] in calls and all(holds(nodes[n], held, calls) for n in nodes):
            result.add(tuple(sorted((n, v.name) for n, v in held.items())))
    return result


def holds(spec: Spec, held: dict[int, ir.GraphVar], calls: dict[ir.GraphVar, Any]) -> bool:
    name, parts, number = spec
    if not name:
        return True
    call = calls.get(held[number])
    if call is None or call.op.name != name:
        return False
    operands = [held[part[2]] for part in parts]
    orders = [operands, operands[::-1]] if name in COMMUTATIVE else [operands]
    return any(all(a is b for a, b in zip(call.args, o, strict=True)) for o in orders)


@pytest.mark.parametrize("seed", range(40))
def test_matches_are_those_of_a_search_over_all_assignments(seed: int) -> None:
    rng = random.Random(seed)
    function = random_graph(rng, 7)
    spec = random_spec(rng, 2, [])
    while len(nodes_of(spec, {})) > 5:
        spec = random_spec(rng, 2, [])
    pattern = as_pattern(spec, {})
    matcher = Matcher(GraphIndex(function))
    found = {
        tuple(sorted((n, match[str(n)].name) for n in nodes_of(spec, {})))  # type: ignore[attr-defined]
        for root in matcher.index.order
        for match in matcher.embeddings(pattern, root)
    }
    assert found == by_assignment(spec, function)
    first = {match.root.name for match in pattern.matches(function)}
    assert first == {dict(item)[spec[2]] for item in found}


@pytest.mark.parametrize("seed", range(20))
def test_rewriting_equal_by_equal_keeps_every_value(seed: int) -> None:
    """Evaluate before and after: subtract(a, b) becomes add(a, negative(b))."""
    rng = random.Random(seed)
    function = random_graph(rng, 8)
    a, b = wildcard(), wildcard()
    inner = is_op("subtract")(a, b)
    pattern = is_op("negative")(inner) | inner

    def replace(match: Any) -> ir.GraphExpr:
        new = call_op("add", match[a], call_op("negative", match[b]))
        whole = match.call().op.name == "negative"
        return call_op("negative", new) if whole else new

    new = rewrite(function, pattern, replace)
    check_graph(new)
    assert evaluate(new) == evaluate(function)
    assert "R.subtract(" not in new.script()


def evaluate(function: ir.GraphFunction) -> int:
    """The result for x = 3 in integers modulo a prime, with exp(v) = v² + 1."""
    prime = 1_000_003
    rules: dict[str, Any] = {
        "exp": lambda v: v * v + 1,
        "negative": lambda v: -v,
        "add": lambda v, w: v + w,
        "subtract": lambda v, w: v - w,
    }
    values: dict[ir.GraphExpr, int] = {function.params[0]: 3}
    for binding in function.bindings:
        assert isinstance(binding, ir.VarBinding)
        value = binding.value
        if isinstance(value, ir.GraphCall):
            name = str(getattr(value.op, "name", ""))
            values[binding.var] = rules[name](*(values[a] for a in value.args)) % prime
        else:
            values[binding.var] = values[value]
    return values[function.body.body]
