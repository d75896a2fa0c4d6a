"""RNN, GRU and LSTM: loops over time steps, written out if there are few.

A direction is a loop over time steps whose state is h (and c for LSTM). The products with the
inputs of all steps are computed at once; those with the state, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.sizes import I64, array_of

TABLE = Converters()
Tensor = ir.GraphExpr
Function = Callable[[Tensor], Tensor]


class Weights(msgspec.Struct, frozen=True, eq=False):
    """The weights of one direction.

    Attributes:
        inputs: x → x · Wᵀ, (rows, gates · size); states: h → h · Rᵀ.
        recurrent: R, (gates · size, size); None if it is quantized.
        size: of the state.
    """

    inputs: Function
    states: Function
    recurrent: Tensor | None
    size: int


class Direction(msgspec.Struct, frozen=True, eq=False):
    """Operands of one direction, and what its gates need.

    Attributes:
        products: x · Wᵀ + bias for all steps, (steps, batch, gates · size).
        recurrent_bias: of the products with the state, or None.
        peepholes: weights of the cell in the gates of an LSTM, or None.
        functions: activations in the order of the operator.
    """

    products: Tensor
    weights: Weights
    recurrent_bias: Tensor | None
    peepholes: Tensor | None
    functions: list[Function]

    @property
    def size(self) -> int:
        return self.weights.size


WeightsOf = Callable[[Call, int], Weights]
Step = Callable[[Call, Direction, Tensor, list[Tensor]], list[Tensor]]


@TABLE.op("RNN")
def _rnn(call: Call) -> Value:
    return _recurrent(call, 1, 1, ("Tanh",), _rnn_step)


@TABLE.op("GRU")
def _gru(call: Call) -> Value:
    return _recurrent(call, 3, 1, ("Sigmoid", "Tanh"), _gru_step)


@TABLE.op("LSTM")
def _lstm(call: Call) -> Value:
    return lstm(call, call.tensor(0), _weights)


def lstm(call: Call, x: Tensor, weights: WeightsOf) -> list[Value]:
    """The results of an LSTM for x, with the weights of each direction."""
    return _recurrent(call, 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, x, weights)


def _recurrent(
    call: Call,
    gates: int,
    states: int,
    defaults: tuple[str, ...],
    step: Step,
    x: Tensor | None = None,
    weights: WeightsOf | None = None,
) -> list[Value]:
    """All steps of all directions: every h, the last h, and the last c of an LSTM."""
    x = call.tensor(0) if x is None else x
    if call.attr("layout", 0):
        x = call.apply("permute_dims", x, axes=(1, 0, 2))
    direction = call.attr("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    every: list[Tensor] = []
    last: list[list[Tensor]] = [[] for _ in range(states)]
    for k in range(count):
        own = (weights or _weights)(call, k)
        part = _direction(call, x, own, k, gates, count, defaults)
        start = [_initial(call, x, part, k, 5 + s) for s in range(states)]
        backward = direction == "reverse" or k == 1
        outputs, final = _run(call, part, start, backward, step)
        steps, batch, size = dims_of(outputs)
        every.append(call.reshape(outputs, (steps, 1, batch, size)))
        for kept, state in zip(last, final, strict=True):
            kept.append(call.reshape(state, (1, batch, size)))
    results = [_joined(call, every, 1), *(_joined(call, parts, 0) for parts in last)]
    if call.attr("layout", 0):
        results[0] = call.apply("permute_dims", results[0], axes=(2, 0, 1, 3))
        results[1:] = [call.apply("permute_dims", r, axes=(1, 0, 2)) for r in results[1:]]
    return list(results)


def _joined(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else call.apply("concat", *parts, axis=axis)


def _at(call: Call, value: Tensor, index: int) -> Tensor:
    """The slice of a tensor at a position of its first axis."""
    part = call.apply("slice", value, axis=0, begin=index, end=index + 1, step=1)
    return call.reshape(part, dims_of(value)[1:])


def part_of(call: Call, position: int, k: int, begin: int = 0, end: int | None = None) -> Tensor:
    """Rows of an operand for a direction. Known ones are constants of the loop's body."""
    known = array_of(call.value(position))
    if known is not None:
        return call.imp.tensor(known[k][begin:end] if known.ndim > 1 else known[k])
    part = _at(call, call.tensor(position), k)
    if begin == 0 and end is None:
        return part
    last = dims_of(part)[0] if end is None else end
    return call.apply("slice", part, axis=0, begin=begin, end=last, step=1)


def state_size(call: Call, size: ir.Expr) -> int:
    number = ir.const_int(size)
    if number is None:
        raise call.error("the size of the state is symbolic", "declare it as a number")
    return number


def _weights(call: Call, k: int) -> Weights:
    weight, recurrent = part_of(call, 1, k), part_of(call, 2, k)
    return Weights(
        lambda x: call.apply("linear", x, weight),
        lambda h: call.apply("linear", h, recurrent),
        recurrent,
        state_size(call, dims_of(recurrent)[1]),
    )


def _direction(
    call: Call,
    x: Tensor,
    weights: Weights,
    k: int,
    gates: int,
    count: int,
    defaults: tuple[str, ...],
) -> Direction:
    size = weights.size
    steps, batch, width = dims_of(x)
    products = weights.inputs(call.reshape(x, (ir.mul(steps, batch), width)))
    bias = None
    if call.has(3):
        first, bias = (part_of(call, 3, k, s, s + gates * size) for s in (0, gates * size))
        products = call.apply("add", products, first)
    products = call.reshape(products, (steps, batch, gates * size))
    peepholes = part_of(call, 7, k) if call.has(7) else None
    own = slice(k * len(defaults), (k + 1) * len(defaults))
    functions = _activations(call, call.attr("activations", defaults * count))[own]
    if len(functions) != len(defaults):
        raise call.error(
            f"each direction has {len(defaults)} activations, which the node does not list",
            "list those of all directions, or leave the attribute activations out",
        )
    return Direction(products, weights, bias, peepholes, functions)


def _initial(call: Call, x: Tensor, part: Direction, k: int, position: int) -> Tensor:
    """The state before the first step; zeros if it is not given."""
    if call.has(position):
        state = call.tensor(position)
        if call.attr("layout", 0):
            state = call.apply("permute_dims", state, axes=(1, 0, 2))
        return _at(call, state, k)
    shape = (dims_of(x)[1], ir.const(part.size, I64))
    return call.apply("full", shape=shape, fill_value=0, dtype=dtype_of(x))


def _run(
    call: Call, part: Direction, state: list[Tensor], backward: bool, step: Step
) -> tuple[Tensor, list[Tensor]]:
    """All steps; beyond the length of a sequence outputs are 0 and the state stays."""
    over = [part.products]
    lengths = None
    if call.has(4):
        lengths = call.cast(call.tensor(4), I64)
        lengths = call.reshape(lengths, (dims_of(lengths)[0], 1))
        end = dims_of(part.products)[0]
        over.append(call.apply("arange", begin=0, end=end, step=1, dtype="int64"))

    def one(state: list[Any], elements: list[Any]) -> tuple[list[Any], list[Any]]:
        new = step(call, part, elements[0], state)
        output = new[0]
        if lengths is not None:
            inside = call.apply("greater", lengths, elements[1])
            output = call.apply("where", inside, output, call.scalar(0, dtype_of(output)))
            new = [call.apply("where", inside, n, o) for n, o in zip(new, state, strict=True)]
        return new, [output]

    imp = call.imp
    *final, outputs = imp.loops.over(
        imp.builder, imp.inside, one, state, over, tensor=imp.tensor, reverse=backward
    )
    return outputs, final


def _gate(call: Call, value: Tensor, index: int, size: int) -> Tensor:
    axis = rank_of(value) - 1
    return call.apply("slice", value, axis=axis, begin=index * size, end=(index + 1) * size, step=1)


def _with_state(call: Call, part: Direction, h: Tensor) -> Tensor:
    """h · Rᵀ + bias."""
    product, bias = part.weights.states(h), part.recurrent_bias
    return product if bias is None else call.apply("add", product, bias)


def _rnn_step(call: Call, part: Direction, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    total = call.apply("add", x, _with_state(call, part, state[0]))
    return [part.functions[0](_clipped(call, total))]


def _gru_step(call: Call, part: Direction, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    """Gates z and r, then a candidate n: h' = (1 - z) · n + z · h."""
    (h,), size = state, part.size
    first, second = part.functions
    product = _with_state(call, part, h)

    def total(k: int) -> Tensor:
        return call.apply("add", _gate(call, x, k, size), _gate(call, product, k, size))

    z, r = (first(_clipped(call, total(k))) for k in range(2))
    if call.attr("linear_before_reset", 0):
        inner = call.apply("multiply", r, _gate(call, product, 2, size))
    else:
        weight = call.apply(
            "slice", part.weights.recurrent, axis=0, begin=2 * size, end=3 * size, step=1
        )
        inner = call.apply("linear", call.apply("multiply", r, h), weight)
        if part.recurrent_bias is not None:
            inner = call.apply("add", inner, _gate(call, part.recurrent_bias, 2, size))
    n = second(_clipped(call, call.apply("add", _gate(call, x, 2, size), inner)))
    kept = call.apply("multiply", z, h)
    rest = call.apply("subtract", call.scalar(1, dtype_of(z)), z)
    return [call.apply("add", call.apply("multiply", rest, n), kept)]


def _lstm_step(call: Call, part: Direction, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    """Gates i, o, f and a candidate; peepholes add weighted cells to the gates."""
    (h, c), size = state, part.size
    first, second, third = part.functions
    total = call.apply("add", x, _with_state(call, part, h))
    gates = [_gate(call, total, k, size) for k in range(4)]

    def peep(value: Tensor, cell: Tensor, k: int) -> Tensor:
        if part.peepholes is None:
            return value
        weighted = call.apply("multiply", cell, _gate(call, part.peepholes, k, size))
        return call.apply("add", value, weighted)

    i = first(_clipped(call, peep(gates[0], c, 0)))
    if call.attr("input_forget", 0):
        f = call.apply("subtract", call.scalar(1, dtype_of(i)), i)
    else:
        f = first(_clipped(call, peep(gates[2], c, 2)))
    candidate = second(_clipped(call, gates[3]))
    cell = call.apply("add", call.apply("multiply", f, c), call.apply("multiply", i, candidate))
    o = first(_clipped(call, peep(gates[1], cell, 1)))
    return [call.apply("multiply", o, third(cell)), cell]


def _clipped(call: Call, value: Tensor) -> Tensor:
    limit = call.attr("clip", 0.0)
    return call.apply("clip", value, min=-limit, max=limit) if limit else value


_PLAIN = {"Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softplus", "Tanh": "tanh"}
_WITH_ALPHA = {"Elu": ("elu", 1.0), "LeakyRelu": ("leaky_relu", 0.01)}
_USES_ALPHA = ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu")
_USES_BETA = ("Affine", "HardSigmoid", "ScaledTanh")


def _activations(call: Call, names: Sequence[str]) -> list[Function]:
    """The activations of all directions.

    Their parameters are listed in the order of the functions that take one: the first alpha is
    that of the first function with an alpha, wherever it stands.
    """
    alphas = iter(call.attr("activation_alpha", ()))
    betas = iter(call.attr("activation_beta", ()))
    found: list[Function] = []
    for name in names:
        alpha = next(alphas, None) if name in _USES_ALPHA else None
        beta = next(betas, None) if name in _USES_BETA else None
        found.append(_activation(call, name, alpha, beta))
    return found


def _activation(call: Call, name: str, alpha: float | None, beta: float | None) -> Function:
    """An activation with its parameters; those that are not given have the usual values."""
    if name in _PLAIN:
        return lambda v: call.apply(_PLAIN[name], v)
    if name == "Affine" and alpha is not None and beta is not None:
        a, b = alpha, beta
        return lambda v: call.apply(
            "add",
            call.apply("multiply", v, call.scalar(a, dtype_of(v))),
            call.scalar(b, dtype_of(v)),
        )
    if name in _WITH_ALPHA:
        row, usual = _WITH_ALPHA[name]
        factor = usual if alpha is None else alpha
        return lambda v: call.apply(row, v, alpha=factor)
    if name == "Softsign":
        one = 1
        return lambda v: call.apply(
            "divide",
            v,
            call.apply("add", call.apply("abs", v), call.scalar(one, dtype_of(v))),
        )
    raise call.error(f"the activation {name} is not supported", "use Tanh, Sigmoid or Relu")
