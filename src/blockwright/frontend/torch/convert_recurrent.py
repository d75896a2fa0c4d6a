"""Converters of recurrent layers: loops over time steps (see `frontend.loops`).

The products of a layer with the inputs of all steps are computed at once; those with the state, in
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.convert_control import inside
from blockwright.frontend.torch.operands import (
    EVALUATION,
    Registry,
    as_tensor,
    dims_of,
    reshape,
)
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
Weights = list[Any]
"""Of one direction: of the inputs, of the state, then biases and a projection if there are any."""
Cell = Callable[["Importer", Any, Weights, list[Any]], list[Any]]
"""Maps the products with the inputs of a step, the weights and the state to the new state."""


@TABLE.overload("aten.lstm.input", "blockwright.lstm.default")
def _lstm(imp: Importer, node: Any, x: Any, states: Sequence[Any], *rest: Any) -> list[Any]:
    return _recurrent(imp, x, list(states), _lstm_step, *rest)


@TABLE.overload("aten.gru.input", "blockwright.gru.default")
def _gru(imp: Importer, node: Any, x: Any, state: Any, *rest: Any) -> list[Any]:
    return _recurrent(imp, x, [state], _gru_step, *rest)


@TABLE.overload("aten.rnn_tanh.input", "blockwright.rnn_tanh.default")
def _rnn_tanh(imp: Importer, node: Any, x: Any, state: Any, *rest: Any) -> list[Any]:
    return _recurrent(imp, x, [state], _plain_step("tanh"), *rest)


@TABLE.overload("aten.rnn_relu.input", "blockwright.rnn_relu.default")
def _rnn_relu(imp: Importer, node: Any, x: Any, state: Any, *rest: Any) -> list[Any]:
    return _recurrent(imp, x, [state], _plain_step("relu"), *rest)


def _recurrent(
    imp: Importer,
    x: Any,
    states: list[Any],
    cell: Cell,
    weights: Sequence[Any],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Any]:
    """The outputs of the last layer, and the last state of every layer and direction."""
    if train and dropout:
        raise ImporterError(
            "dropout between layers in training mode", code="BW507", help=EVALUATION
        )
    op = imp.builder.op
    x, states = as_tensor(x), list(map(as_tensor, states))
    if batch_first:
        x = op("permute_dims", x, axes=(1, 0, 2))
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        outputs: list[Any] = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(map(as_tensor, weights[at * each : (at + 1) * each]))
            start = [_state(imp, s, at) for s in states]
            final, every = _run(imp, x, own, start, cell, biased, reverse=direction == 1)
            outputs.append(every)
            for kept, state in zip(last, final, strict=True):
                kept.append(op("expand_dims", state, axis=0))
        x = outputs[0] if len(outputs) == 1 else op("concat", *outputs, axis=2)
    if batch_first:
        x = op("permute_dims", x, axes=(1, 0, 2))
    return [x, *(op("concat", *parts, axis=0) for parts in last)]


def _state(imp: Importer, states: Any, at: int) -> Any:
    part = imp.builder.op("slice", states, axis=0, begin=at, end=at + 1)
    return imp.builder.op("squeeze", part, axis=0)


def _run(
    imp: Importer,
    x: Any,
    weights: Weights,
    start: list[Any],
    cell: Cell,
    biased: bool,
    *,
    reverse: bool,
) -> tuple[list[Any], Any]:
    """The last state of one direction, and its outputs in all steps."""
    steps, batch, width = dims_of(x)
    bias = weights[2:3] if biased else []
    inner = [weights[1], *(weights[3:] if biased else [None, *weights[2:]])]
    flat = reshape(imp, x, (ir.mul(steps, batch), width))
    products = imp.builder.op("linear", flat, weights[0], *bias)
    products = reshape(imp, products, (steps, batch, dims_of(products)[1]))

    def step(state: list[Any], elements: list[Any]) -> tuple[list[Any], list[Any]]:
        new = cell(imp, elements[0], inner, state)
        return new, [new[0]]

    *final, every = imp.loops.over(
        imp.builder, inside(imp), step, start, [products], tensor=as_tensor, reverse=reverse
    )
    return final, every


def _of_state(imp: Importer, state: Any, weights: Weights) -> Any:
    """The product of weights with the state, and their bias."""
    bias = [] if weights[1] is None else [weights[1]]
    return imp.builder.op("linear", state, weights[0], *bias)


def _gates(imp: Importer, value: Any, count: int) -> list[Any]:
    size = ir.floordiv(dims_of(value)[1], ir.const(count, "int64"))
    ends = [ir.mul(size, ir.const(k, "int64")) for k in range(count + 1)]
    return [imp.builder.op("slice", value, axis=1, begin=a, end=b) for a, b in pairwise(ends)]


def _lstm_step(imp: Importer, x: Any, weights: Weights, state: list[Any]) -> list[Any]:
    """Gates i, f, a candidate and o; a third matrix projects the output."""
    op, (h, c) = imp.builder.op, state
    i, f, candidate, o = _gates(imp, op("add", x, _of_state(imp, h, weights)), 4)
    kept = op("multiply", op("sigmoid", f), c)
    c = op("add", kept, op("multiply", op("sigmoid", i), op("tanh", candidate)))
    h = op("multiply", op("sigmoid", o), op("tanh", c))
    return [op("linear", h, weights[2]) if len(weights) > 2 else h, c]


def _gru_step(imp: Importer, x: Any, weights: Weights, state: list[Any]) -> list[Any]:
    """Gates r and z, and a candidate n: h' = (h - n) · z + n."""
    op, (h,) = imp.builder.op, state
    ours, theirs = _gates(imp, x, 3), _gates(imp, _of_state(imp, h, weights), 3)
    r, z = (op("sigmoid", op("add", a, b)) for a, b in zip(ours[:2], theirs[:2], strict=True))
    n = op("tanh", op("add", ours[2], op("multiply", r, theirs[2])))
    return [op("add", op("multiply", op("subtract", h, n), z), n)]


def _plain_step(activation: str) -> Cell:
    def step(imp: Importer, x: Any, weights: Weights, state: list[Any]) -> list[Any]:
        total = imp.builder.op("add", x, _of_state(imp, state[0], weights))
        return [imp.builder.op(activation, total)]

    return step
