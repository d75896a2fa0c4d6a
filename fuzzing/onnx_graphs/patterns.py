"""Groups of nodes as exporters write them, which rewrites of the compiler look for."""

from __future__ import annotations

from fuzzing.onnx_graphs.drawer import Drawer, Value
from fuzzing.onnx_graphs.operators import draws


def _chain(d: Drawer, value: Value | None, *steps: tuple[str, Value | None]) -> Value | None:
    """Operators one after another; the second operand of each, if any, is given."""
    for op, other in steps:
        if value is None:
            return None
        value = d.add(op, [value, other] if other else [value])
    return value


def _number(d: Drawer, value: float, like: Value) -> Value:
    return d.constant(value, like.dtype)


@draws(2)
def gelu(d: Drawer) -> Value | None:
    x = d.pick_float()
    if x is None or x.dtype == "float64":  # ONNX Runtime rounds Erf to float32
        return None
    inner = _chain(
        d, x, ("Div", _number(d, 2**0.5, x)), ("Erf", None), ("Add", _number(d, 1, x)), ("Mul", x)
    )
    return inner and d.add("Mul", [inner, _number(d, 0.5, x)])


@draws(2)
def swish(d: Drawer) -> Value | None:
    x = d.pick_float()
    gate = x and d.add("Sigmoid", [x])
    if x is None or gate is None:
        return None
    return d.add("Mul", [x, gate] if d.maybe(0.5) else [gate, x])


@draws(2)
def written_norm(d: Drawer) -> Value | None:
    """A layer norm or an RMS norm in its parts."""
    x = d.pick_float(2)
    if x is None or not x.is_fixed(-1):
        return None
    axes = d.constant([-1])

    def mean(value: Value) -> Value | None:
        if d.opset >= 18:
            return d.add("ReduceMean", [value, axes])
        return d.add("ReduceMean", [value], axes=[-1])

    centre = mean(x) if d.maybe(0.6) else None
    apart = d.add("Sub", [x, centre]) if centre else x
    squares = apart and d.add("Pow", [apart, _number(d, 2, x)])
    variance = squares and mean(squares)
    shifted = variance and d.add("Add", [variance, _number(d, 1e-2, x)])
    root = shifted and d.add("Sqrt", [shifted])
    if apart is None or root is None:
        return None
    result = d.add("Div", [apart, root])
    scaled = result and d.add("Mul", [result, d.numbers_like(x, [-1])])
    return scaled and d.add("Add", [scaled, d.numbers_like(x, [-1])])


@draws(2)
def attention(d: Drawer) -> Value | None:
    """Attention of two heads: projections, scores, softmax, context."""
    x = d.pick(lambda v: v.rank == 3 and v.dtype == "float32" and v.is_fixed(2))
    if x is None:
        return None
    width, heads = 4, 2
    parts: list[Value] = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        weights = d.constant(d.array((x.shape[2], heads * width), "float32") / 4, "float32")
        projected = d.add("MatMul", [x, weights])
        shaped = projected and d.add(
            "Reshape", [projected, d.constant([0, -1, heads, width])], exact=True
        )
        part = shaped and d.add("Transpose", [shaped], exact=True, perm=list(perm))
        if part is None:
            return None
        parts.append(part)
    scores = d.add("MatMul", parts[:2])
    scaled = scores and d.add("Div", [scores, _number(d, 2, x)])
    weights = scaled and d.add("Softmax", [scaled], axis=-1)
    context = weights and d.add("MatMul", [weights, parts[2]])
    turned = context and d.add("Transpose", [context], perm=[0, 2, 1, 3])
    return turned and d.add("Reshape", [turned, d.constant([0, 0, heads * width])])


@draws(2)
def folded_norm(d: Drawer) -> Value | None:
    """A convolution, a batch norm and an activation."""
    x = d.pick(lambda v: v.rank == 4 and v.dtype == "float32" and v.is_fixed(1) and v.shape[1] < 9)
    if x is None:
        return None
    out = d.chance.choice((2, 4, 8))
    weights = d.constant(d.array((out, x.shape[1], 3, 3), "float32"), "float32")
    y = d.add("Conv", [x, weights], exact=True, pads=[1, 1, 1, 1])
    more = [d.constant(d.array((out,), "float32"), "float32") for _ in range(3)]
    variance = d.constant(d.numbers.uniform(0.5, 2, out), "float32")
    y = y and d.add("BatchNormalization", [y, *more, variance], epsilon=1e-3)
    return y and d.add(d.chance.choice(("Relu", "HardSwish", "Sigmoid")), [y])


@draws(2)
def inverses(d: Drawer) -> Value | None:
    """Moves that cancel, or nearly: two transposes, a reshape back, slices that join again."""
    x = d.pick(lambda v: v.rank >= 2)
    if x is None:
        return None
    kind = d.chance.choice(("transposes", "squeezes", "halves"))
    if kind == "transposes":
        order = d.chance.sample(range(x.rank), x.rank)
        back = [order.index(axis) for axis in range(x.rank)]
        back = d.chance.sample(back, x.rank) if d.maybe(0.5) else back
        y = d.add("Transpose", [x], exact=True, perm=order)
        y = y and (d.add("Relu", [y], exact=True) if d.maybe(0.3) else y)
        return y and d.add("Transpose", [y], exact=True, perm=back)
    if kind == "squeezes":
        axes = d.constant([d.chance.randint(0, x.rank)])
        y = d.add("Unsqueeze", [x, axes], exact=True)
        return y and d.add("Squeeze", [y, axes], exact=True)
    axis = d.axis(x)
    at, last, along = d.constant([1]), d.constant([2**62]), d.constant([axis])
    first = d.add("Slice", [x, d.constant([0]), at, along], exact=True)
    second = d.add("Slice", [x, at, last, along], exact=True)
    if first is None or second is None:
        return None
    parts = [first, second] if d.maybe(0.5) else [second, first]
    return d.add("Concat", parts, exact=True, axis=axis)


@draws(1)
def rotation(d: Drawer) -> Value | None:
    """Halves of the last axis are swapped, one of them negated, as in rotary embeddings."""
    x = d.pick(lambda v: v.is_float and v.rank >= 2 and v.is_fixed(-1) and v.shape[-1] % 2 == 0)
    if x is None or not x.shape[-1]:
        return None
    half = x.shape[-1] // 2
    along = d.constant([-1])
    low = d.add("Slice", [x, d.constant([0]), d.constant([half]), along], exact=True)
    high = d.add("Slice", [x, d.constant([half]), d.constant([2 * half]), along], exact=True)
    turned = high and d.add("Neg", [high], exact=True)
    joined = turned and low and d.add("Concat", [turned, low], exact=True, axis=-1)
    if joined is None:
        return None
    cosine, sine = d.numbers_like(x, [-1]), d.numbers_like(x, [-1])
    a, b = d.add("Mul", [x, cosine], exact=True), d.add("Mul", [joined, sine], exact=True)
    return a and b and d.add("Add", [a, b], exact=True)
