"""Loops of random graph functions: `R.scan`, and functions that call themselves last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuzzing.functions.scope import Body, Inner, Scope, indented, is_plain, structure
from fuzzing.functions.structures import SYMBOLS, declared
from fuzzing.graphs.program import Array, Run, Value, checked

_SIZES = 'sizes: R.Shape(["n", "m"])'
_SHAPE = "R.shape([n, m])"


class _Step:
    """The body of a loop: a scope with parameters of its own.

    Attributes:
        inner: the scope; params: its parameters for the given values of the caller.
    """

    def __init__(
        self, d: Scope, given: Sequence[tuple[Value, Array]], other: _Step | None = None
    ) -> None:
        """Arguments: `other` is another branch of the same function, whose parameters it has."""
        sizes = {symbol: d.run.size(symbol) for symbol in ("n", "m")}
        self.params = [Value(d.name(), value.dims, value.dtype) for value, _ in given]
        values = {p.name: array for p, (_, array) in zip(self.params, given, strict=True)}
        if other is not None:
            self.params = other.params
            values = {p.name: other.inner.run[p.name] for p in self.params}
        self.inner = Inner(d, Run(sizes, values), self.params)

    def draw(self, count: int) -> None:
        self.inner.steps(count, 0.0)
        if self.inner.depth < 2 and self.inner.chance.random() < 0.15:
            scan(self.inner)

    def alike(self, value: Value) -> Value:
        """A value of the same kind: a parameter, or one that was drawn."""
        kind = value.dims, value.dtype
        return self.inner.chance.choice([v for v in self.inner.values if (v.dims, v.dtype) == kind])


def _run(body: Body, params: Sequence[Value], r: Run, arrays: Sequence[Array]) -> Run:
    sizes = {symbol: r.size(symbol) for symbol in ("n", "m")}
    return body.execute(Run(sizes, {p.name: a for p, a in zip(params, arrays, strict=True)}))


@structure
def scan(d: Scope) -> None:
    """A loop over the first axis of one or two tensors, with values that it carries."""
    first = d.pick(lambda v: bool(v.dims) and is_plain(v))
    if first is None:
        return
    pool = [v for v in d.values if is_plain(v)]
    alike = [v for v in pool if v.dims[:1] == first.dims[:1]]
    over = [first, *d.chance.sample(alike, min(len(alike), d.chance.randint(0, 1)))]
    carried = d.chance.sample(pool, min(len(pool), d.chance.randint(0, 2)))
    others = d.chance.sample(pool, min(len(pool), d.chance.randint(0, 2)))
    elements = [Value(v.name, v.dims[1:], v.dtype) for v in over]
    arrays = [_element(d.run[v.name]) for v in over]
    given = [*_arrays(d, carried), *zip(elements, arrays, strict=True), *_arrays(d, others)]
    name, step = d.fresh_function(), _Step(d, given)
    step.draw(d.chance.randint(1, 3))
    new = [step.alike(v) for v in step.params[: len(carried)]]
    plain = [v for v in step.inner.values if is_plain(v)]
    rows = d.chance.sample(plain, min(len(plain), d.chance.randint(0 if new else 1, 2)))
    body, results, params = step.inner.body(), [*new, *rows], step.params
    texts = [f"{p.name}: {declared(p)}" for p in params]
    texts.insert(len(carried) + len(over), _SIZES)
    d.functions[name] = _function(name, texts, step.inner.lines(), [v.name for v in results])
    reverse = d.chance.random() < 0.3

    def compute(r: Run) -> Any:
        state = [r[v.name] for v in carried]
        fixed, stacks = [r[v.name] for v in others], [r[v.name] for v in over]
        length = len(stacks[0])
        kept: list[list[Array]] = [[]] * length
        for at in reversed(range(length)) if reverse else range(length):
            run = _run(body, params, r, [*state, *(x[at, ...] for x in stacks), *fixed])
            state, kept[at] = [run[v.name] for v in new], [run[v.name] for v in rows]
        stacked = [
            np.array([row[k] for row in kept], v.dtype).reshape(length, *r.shape(v.dims))
            for k, v in enumerate(rows)
        ]
        return (*state, *stacked)

    whole, values = d.name(), ", ".join(v.name for v in (*carried, *over))
    fixed = "".join(f", {v.name}" for v in others)
    text = f"{whole} = R.scan(cls.{name}, {values}, {_SHAPE}{fixed}, carried={len(carried)}, "
    text += f"over={len(over)}{', reverse=True' if reverse else ''})"
    if not d.define(whole, text, compute):
        return
    kinds = [*carried, *(Value("", (first.dims[0], *v.dims), v.dtype) for v in rows)]
    for number, kind in enumerate(kinds):
        d.bind(kind.dims, kind.dtype, f"{whole}[{number}]", lambda r, k=number: r[whole][k])


def _element(array: Array) -> Array:
    return array[0, ...] if len(array) else np.zeros(array.shape[1:], array.dtype)


def _arrays(d: Scope, values: Sequence[Value]) -> list[tuple[Value, Array]]:
    return [(v, d.run[v.name]) for v in values]


def _function(name: str, texts: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    content = [*SYMBOLS, *lines, f"return {returned}"]
    head = f"def {name}({', '.join(texts)}):"
    return "\n".join(["@R.function(private=True)", head, *indented(content)])


@structure
def repetition(d: Scope) -> None:
    """A function that calls itself last, a number of times, in either branch."""
    value = d.pick(is_plain)
    other = d.pick(is_plain)
    if value is None or other is None:
        return
    name, times = d.fresh_function(), d.chance.randint(0, 5)
    again = _Step(d, _arrays(d, [value, other]))
    rest = _Step(d, [], again)
    params = again.params
    for step in (again, rest):
        step.draw(d.chance.randint(0, 3))
    new, last = again.alike(params[0]), rest.alike(params[0])
    bodies = again.inner.body(), rest.inner.body()
    until = d.chance.random() < 0.5

    def compute(r: Run) -> Any:
        x, w = r[value.name], r[other.name]
        for _ in range(times):
            x = checked(_run(bodies[0], params, r, [x, w])[new.name])
        return _run(bodies[1], params, r, [x, w])[last.name]

    def called(count: str, x: str) -> str:
        return f"cls.{name}({_SHAPE}, {count}, {x}, {params[1].name})"

    goes_on = [*again.inner.lines(), f"z = {called('more', new.name)}"]
    ends = [*rest.inner.lines(), f"z = {last.name}"]
    sides = [ends, goes_on] if until else [goes_on, ends]
    compared = "greater_equal" if until else "less"
    result = Value("", value.dims, value.dtype)
    texts = [_SIZES, 'k: R.Tensor((), "int64")', *(f"{p.name}: {declared(p)}" for p in params)]
    content = [
        *SYMBOLS,
        f'flag = R.{compared}(k, R.const({times}, "int64"))',
        'more = R.add(k, R.const(1, "int64"))',
        "if flag:", *indented(sides[0]), "else:", *indented(sides[1]), "return z",
    ]  # fmt: skip
    head = f"def {name}({', '.join(texts)}) -> {declared(result)}:"
    d.functions[name] = "\n".join(["@R.function", head, *indented(content)])
    text = f'cls.{name}({_SHAPE}, R.const(0, "int64"), {value.name}, {other.name})'
    d.bind(value.dims, value.dtype, text, compute)
