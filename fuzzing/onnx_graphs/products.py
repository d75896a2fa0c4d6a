"""Products, convolutions, windows, norms of images, resampling, quantization."""

from __future__ import annotations

from typing import Any

from fuzzing.onnx_graphs.drawer import Drawer, Value
from fuzzing.onnx_graphs.operators import draws


def _weights(d: Drawer, shape: list[int], dtype: str) -> Value:
    return d.constant(d.array(shape, dtype), dtype)


@draws(5)
def product(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1 and v.dtype in ("float32", "float64", "int32", "int64"))
    if x is None:
        return None
    other: Value | None
    if x.is_fixed(-1) and d.maybe(0.6):
        lead = d.chance.choice(([], [], [1], [2]))
        other = _weights(d, [*lead, x.shape[-1], d.chance.choice((1, 3, 8, 16))], x.dtype)
    else:
        other = d.pick(lambda v: v.dtype == x.dtype and v.rank >= 1 and _fit(x, v))
    return other and d.add("MatMul", [x, other], exact=True)


def _fit(x: Value, y: Value) -> bool:
    return x.shape[-1] == (y.shape[-2] if y.rank > 1 else y.shape[0])


@draws(2)
def gemm(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank == 2 and v.dtype in ("float32", "float64"))
    if x is None:
        return None
    turned, flipped = d.maybe(0.3), d.maybe(0.5)
    depth = 0 if turned else 1
    if not x.is_fixed(depth):
        return None
    width = d.chance.choice((1, 4, 7))
    shape = [x.shape[depth], width]
    y = _weights(d, shape[::-1] if flipped else shape, x.dtype)
    bias = d.chance.choice((None, [], [1], [width], [1, width]))
    c = None if bias is None else _weights(d, bias, x.dtype)
    attrs: dict[str, Any] = {"transA": int(turned), "transB": int(flipped)}
    scale: dict[str, Any] = {"alpha": 0.5, "beta": 2.0} if d.maybe(0.4) else {}
    return d.add("Gemm", [x, y, c], exact=True, **attrs, **scale)


@draws(2)
def einsum(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype == "float32" and v.rank in (2, 3))
    if x is None:
        return None
    if x.rank == 2:
        equation = d.chance.choice(("ij->ji", "ij->i", "ij,ij->j", "ij,kj->ik", "ij,ik->jk"))
    else:
        forms = ("bij->bji", "bij,bkj->bik", "bij,bij->b", "...j->...", "bij->j")
        equation = d.chance.choice(forms)
    return d.add("Einsum", [x] * (equation.count(",") + 1), exact=True, equation=equation)


def _image(d: Drawer, axes: tuple[int, ...] = (3, 4)) -> Value | None:
    return d.pick(
        lambda v: v.rank in axes and v.dtype == "float32" and v.is_fixed(1) and v.shape[1] <= 16
    )


def _windows(d: Drawer, x: Value, kernel: list[int]) -> dict[str, Any]:
    """Attributes of a window: strides, dilations and pads of each axis."""
    attrs: dict[str, Any] = {}
    if d.maybe(0.5):
        attrs["strides"] = [d.chance.randint(1, 2) for _ in kernel]
    if d.maybe(0.3):
        attrs["dilations"] = [d.chance.randint(1, 2) for _ in kernel]
    if d.maybe(0.2) and "dilations" not in attrs:  # ONNX Runtime ignores dilations there
        attrs["auto_pad"] = d.chance.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif d.maybe(0.6):
        attrs["pads"] = [d.chance.randint(0, k // 2) for k in [*kernel, *kernel]]
    return attrs


@draws(4)
def convolution(d: Drawer) -> Value | None:
    x = _image(d)
    if x is None:
        return None
    channels, kernel = x.shape[1], [d.chance.randint(1, 3) for _ in x.shape[2:]]
    group = d.chance.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    out = group * d.chance.choice((1, 2, 4))
    weights = _weights(d, [out, channels // group, *kernel], x.dtype)
    bias = _weights(d, [out], x.dtype) if d.maybe(0.6) else None
    attrs: dict[str, Any] = {"group": group, **_windows(d, x, kernel)}
    return d.add("Conv", [x, weights, bias], exact=True, **attrs)


@draws(1)
def transposed_convolution(d: Drawer) -> Value | None:
    x = _image(d)
    if x is None:
        return None
    channels, kernel = x.shape[1], [d.chance.randint(1, 3) for _ in x.shape[2:]]
    group = d.chance.choice((1, channels))
    weights = _weights(d, [channels, d.chance.choice((1, 2)), *kernel], x.dtype)
    attrs: dict[str, Any] = {"group": group}
    if d.maybe(0.6):
        strides = [d.chance.randint(1, 2) for _ in kernel]
        attrs |= {"strides": strides, "output_padding": [d.chance.randrange(s) for s in strides]}
    if d.maybe(0.5):
        attrs["pads"] = [d.chance.randint(0, k // 2) for k in [*kernel, *kernel]]
    return d.add("ConvTranspose", [x, weights], exact=True, **attrs)


@draws(3)
def pool(d: Drawer) -> Value | None:
    x = _image(d)
    if x is None:
        return None
    op = d.chance.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        return d.add(op, [x], exact=op == "GlobalMaxPool")
    kernel = [d.chance.randint(1, 3) for _ in x.shape[2:]]
    attrs = _windows(d, x, kernel)
    if op != "MaxPool" and d.opset < 19:
        attrs.pop("dilations", None)
    if d.maybe(0.4) and "auto_pad" not in attrs and (op != "LpPool" or d.opset >= 18):
        attrs["ceil_mode"] = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = d.chance.randrange(2)
    return d.add(op, [x], exact=op == "MaxPool", kernel_shape=kernel, **attrs)


@draws(2)
def image_norm(d: Drawer) -> Value | None:
    x = _image(d, (2, 3, 4))
    if x is None:
        return None
    channels = x.shape[1]
    scale, bias, mean = (_weights(d, [channels], x.dtype) for _ in range(3))
    op = d.chance.choice(("BatchNormalization", "InstanceNormalization", "LRN"))
    if op == "BatchNormalization":
        variance = d.constant(d.numbers.uniform(0.5, 2, channels), x.dtype)
        return d.add(op, [x, scale, bias, mean, variance], epsilon=1e-3)
    if op == "InstanceNormalization":
        return d.add(op, [x, scale, bias], epsilon=1e-2)
    return d.add(op, [x], size=d.chance.choice((1, 3, 5)), alpha=0.01, bias=1.5)


@draws(2)
def resize(d: Drawer) -> Value | None:
    x = _image(d)
    if x is None:
        return None
    mode = d.chance.choice(("nearest", "linear", "cubic") if x.rank == 4 else ("nearest", "linear"))
    turn = d.chance.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": turn}
    if mode == "nearest":
        attrs["nearest_mode"] = d.chance.choice(("floor", "ceil", "round_prefer_floor"))
    scales = [1.0, 1.0, *(d.chance.choice((0.5, 2.0, 1.5, 1.0)) for _ in x.shape[2:])]
    empty = None
    if d.maybe(0.6) and turn != "align_corners":  # ONNX Runtime rounds the scaled size
        return d.add("Resize", [x, empty, d.constant(scales, "float32")], **attrs)
    if not (x.is_fixed(0) and x.is_fixed(1)):
        return None
    sizes = [*x.shape[:2], *(d.chance.randint(1, 9) for _ in x.shape[2:])]
    return d.add("Resize", [x, empty, None, d.constant(sizes)], **attrs)


@draws(2)
def quantized(d: Drawer) -> Value | None:
    """Quantize and convert back, per tensor or channel."""
    x = d.pick(lambda v: v.dtype == "float32" and v.exact and v.rank >= 1)
    if x is None:
        return None
    dtype = d.chance.choice(("int8", "uint8"))
    axis = d.axis(x)
    channels = [x.shape[axis]] if x.is_fixed(axis) and d.maybe(0.5) else []
    scale = d.constant(d.numbers.choice([0.25, 0.5, 1.0], channels), "float32")
    zero = d.constant(d.numbers.integers(0, 6, channels), dtype)
    attrs: dict[str, Any] = {"axis": axis} if channels else {}
    q = d.add("QuantizeLinear", [x, scale, zero], exact=True, **attrs)
    return q and d.add("DequantizeLinear", [q, scale, zero], exact=True, **attrs)


@draws(1)
def integer_product(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype in ("int8", "uint8") and v.rank >= 2 and v.is_fixed(-1))
    if x is None:
        return None
    dtype = d.chance.choice(("int8", "uint8"))
    y = _weights(d, [x.shape[-1], 5], dtype)
    zeros = [d.constant(2, x.dtype), d.constant(3, dtype)] if d.maybe(0.5) else []
    return d.add("MatMulInteger", [x, y, *zeros], exact=True)


@draws(1)
def dynamic_quantized(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype == "float32")
    if x is None:
        return None
    made = d.add("DynamicQuantizeLinear", [x], 3)
    if made is None:
        return None
    q, scale, zero = d.values[-3:]
    del d.values[-3:]  # elements may be rounded apart
    return d.add("DequantizeLinear", [q, scale, zero])


@draws(1)
def choice(d: Drawer) -> Value | None:
    """Branches that compute with values of the graph."""
    from onnx import helper

    x = d.pick_float(1)
    condition = d.pick(lambda v: v.dtype == "bool" and all(a.size == 1 for a in v.arrays))
    if x is None:
        return None
    test = condition or d.constant([d.maybe(0.5)], "bool")
    first, second = d.chance.sample(("Neg", "Abs", "Relu", "Identity"), 2)
    graphs = [
        helper.make_graph(
            [helper.make_node(op, [x.name], [f"branch_{n}"])],
            f"branch{n}",
            [],
            [helper.make_empty_tensor_value_info(f"branch_{n}")],
        )
        for n, op in enumerate((first, second))
    ]
    attrs: dict[str, Any] = {"then_branch": graphs[0], "else_branch": graphs[1]}
    return d.add("If", [test], exact=True, captures=[x], **attrs)


@draws(1)
def recurrent(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank == 3 and v.dtype == "float32" and v.is_fixed(2))
    if x is None:
        return None
    op, gates = d.chance.choice((("RNN", 1), ("GRU", 3), ("LSTM", 4)))
    direction = d.chance.choice(("forward", "reverse", "bidirectional"))
    ways, hidden = 1 + (direction == "bidirectional"), 3
    scale = 0.25
    shapes = [[ways, gates * hidden, x.shape[2]], [ways, gates * hidden, hidden]]
    shapes += [[ways, 2 * gates * hidden]] if d.maybe(0.6) else []
    more = [d.constant(scale * d.array(s, "float32"), "float32") for s in shapes]
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if op == "GRU":
        attrs["linear_before_reset"] = d.chance.randrange(2)
    used = [True, d.maybe(0.5), *([d.maybe(0.5)] if op == "LSTM" else [])]
    return d.add(op, [x, *more], used, **attrs)
