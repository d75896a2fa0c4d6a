"""Convolutions, pools and what uses them run channels-last; layout changes stay at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder, shape_value

F32 = ir.dtype_of("float32")
RNG = np.random.default_rng(11)
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def tensor(*shape: Any) -> ir.TensorInfo:
    dims = tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
    return ir.TensorInfo(dims, F32, len(dims))


def number(dim: ir.Expr) -> int:
    value = ir.const_int(dim)
    assert value is not None
    return value


def permutes(module: ir.IRModule) -> list[tuple[str, tuple[int, ...]]]:
    """What is permuted, and how."""
    return [
        (b.value.args[0].name, b.value.attrs["axes"])
        for b in module["main"].bindings
        if b.value.op.name == "permute_dims"
    ]


def layouts(module: ir.IRModule) -> set[str]:
    """Layouts of convolutions and pools."""
    calls = [b.value for b in module["main"].bindings if b.value.op.name.startswith("nn.")]
    return {c.attrs.get("data_layout", c.attrs.get("layout", "first")) for c in calls}


@pytest.fixture
def convert(run: Any, evaluate: Any) -> Callable[..., ir.IRModule]:
    """The function after the pass, which must mean the same on random inputs."""

    def convert_(b: GraphBuilder, result: ir.GraphExpr) -> ir.IRModule:
        module = run(ir.IRModule({"main": b.finish("main", result)}), "normalize")
        converted = run(module, "channels_last")
        given = [array(*map(number, p.info.shape)) for p in module["main"].params]
        wanted, found = evaluate(module, *given), evaluate(converted, *given)
        assert np.shape(found) == np.shape(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        return run(converted, "eliminate_common", "eliminate_dead")

    return convert_


def bottleneck(b: GraphBuilder, x: Any, inner: int, outer: int, stride: int = 1) -> Any:
    channels = number(x.tensor_info.shape[1])
    y = b.op("relu", b.op("nn.conv2d", x, array(inner, channels, 1, 1)))
    y = b.op("nn.conv2d", y, array(inner, inner, 3, 3), padding=1, strides=stride)
    y = b.op("relu", b.op("add", y, array(inner, 1, 1)))
    y = b.op("nn.conv2d", y, array(outer, inner, 1, 1))
    if channels != outer:
        x = b.op("nn.conv2d", x, array(outer, channels, 1, 1), strides=stride)
    return b.op("relu", b.op("add", y, x))


def resnet(b: GraphBuilder, x: Any) -> Any:
    x = b.op("relu", b.op("nn.conv2d", x, array(8, 3, 7, 7), strides=2, padding=3))
    x = b.op("nn.max_pool2d", x, pool_size=3, strides=2, padding=1)
    for inner, outer, stride in ((4, 16, 1), (4, 16, 1), (8, 32, 2)):
        x = bottleneck(b, x, inner, outer, stride)
    x = b.op("flatten", b.op("nn.adaptive_avg_pool2d", x, output_size=1), start=1)
    return b.op("linear", x, array(10, 32), array(10))


class TestNetworks:
    def test_a_residual_network_changes_its_input_alone(self, convert: Any) -> None:
        b = GraphBuilder()
        module = convert(b, resnet(b, b.param("x", tensor(1, 3, 32, 32))))
        assert permutes(module) == [("x", TO_LAST)]
        assert layouts(module) == {"NHWC"}

    def test_batch_and_image_may_be_symbolic(self, run: Any) -> None:
        b = GraphBuilder()
        n, h = ir.var("n", "int64"), ir.var("h", "int64")
        y = b.op("nn.conv2d", b.param("x", tensor(n, 3, h, 40)), array(64, 3, 7, 7), padding=3)
        y = b.op("nn.max_pool2d", b.op("relu", y), pool_size=3, strides=2, padding=1)
        y = b.op("mean", bottleneck(b, bottleneck(b, y, 4, 16), 4, 16), axes=(2, 3))
        module = run(ir.IRModule({"main": b.finish("main", y)}), "normalize", "channels_last")
        assert permutes(module) == [("x", TO_LAST)]
        assert module["main"].ret_info.shape[0] is n

    def test_inverted_residuals(self, convert: Any) -> None:
        b = GraphBuilder()
        x = b.param("x", tensor(2, 8, 9, 7))
        y = b.op("clip", b.op("nn.conv2d", x, array(24, 8, 1, 1)), min=0.0, max=6.0)
        y = b.op("nn.conv2d", y, array(24, 1, 3, 3), padding=1, groups=24)
        y = b.op("nn.conv2d", b.op("clip", y, min=0.0, max=6.0), array(8, 24, 1, 1))
        module = convert(b, b.op("mean", b.op("add", x, y), axes=(2, 3)))
        assert permutes(module) == [("x", TO_LAST)]

    def test_an_encoder_and_decoder_with_skip_connections(self, convert: Any) -> None:
        b = GraphBuilder()
        x = b.param("x", tensor(1, 3, 16, 16))
        top = b.op("relu", b.op("nn.conv2d", x, array(8, 3, 3, 3), padding=1))
        low = b.op("nn.max_pool2d", top, pool_size=2)
        low = b.op("relu", b.op("nn.conv2d", low, array(16, 8, 3, 3), padding=1))
        up = b.op("nn.conv2d_transpose", low, array(16, 8, 2, 2), strides=2)
        joined = b.op("concat", top, up, axis=1)
        padded = b.op("pad", joined, pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))
        out = b.op("nn.conv2d", padded, array(4, 16, 3, 3))
        module = convert(b, b.op("softmax", out, axis=1))
        assert permutes(module) == [("x", TO_LAST), ("softmax_last", TO_FIRST)]

    def test_gates_computed_from_means(self, convert: Any) -> None:
        """Squeeze and excitation; the gate has one element per channel."""
        b = GraphBuilder()
        x = b.param("x", tensor(2, 8, 6, 6))
        y = b.op("silu", b.op("nn.conv2d", x, array(64, 8, 3, 3), padding=1))
        gate = b.op("mean", y, axes=(2, 3), keepdims=True)
        gate = b.op("relu", b.op("nn.conv2d", gate, array(4, 64, 1, 1)))
        gate = b.op("sigmoid", b.op("nn.conv2d", gate, array(64, 4, 1, 1)))
        y = b.op("nn.conv2d", b.op("multiply", y, gate), array(8, 64, 1, 1))
        module = convert(b, b.op("mean", y, axes=(2, 3)))
        assert permutes(module) == [("x", TO_LAST)]

    def test_patches_become_tokens_without_a_copy(self, convert: Any) -> None:
        """Vision transformers join the spatial axes and put the channels last themselves."""
        b = GraphBuilder()
        x = b.param("x", tensor(1, 3, 16, 16))
        y = b.op("nn.conv2d", x, array(128, 3, 4, 4), strides=4)
        y = b.op("reshape", y, shape_value((1, 128, 16)))
        tokens = b.op("permute_dims", y, axes=(0, 2, 1))
        module = convert(b, b.op("linear", tokens, array(8, 128)))
        assert permutes(module) == [("x", TO_LAST)]

    def test_what_is_written_channels_last_already(self, convert: Any) -> None:
        """Layer norms over channels between convolutions, as in ConvNeXt."""
        b = GraphBuilder()
        x = b.param("x", tensor(1, 8, 8, 8))
        y = b.op("nn.conv2d", x, array(8, 1, 7, 7), padding=3, groups=8)
        y = b.op("layer_norm", b.op("permute_dims", y, axes=TO_LAST), array(8), array(8))
        y = b.op("gelu", b.op("linear", y, array(32, 8)))
        y = b.op("permute_dims", b.op("linear", y, array(8, 32)), axes=TO_FIRST)
        y = b.op("nn.conv2d", b.op("add", x, y), array(8, 1, 7, 7), padding=3, groups=8)
        module = convert(b, b.op("mean", y, axes=(2, 3)))
        assert permutes(module) == [("x", TO_LAST)]


def _conv(b: GraphBuilder, x: Any) -> Any:
    """Enough of a convolution to be worth two layout changes."""
    return b.op("nn.conv2d", x, array(64, 32, 7, 7), padding=3)


FOLLOWERS: dict[str, Callable[[GraphBuilder, Any], Any]] = {
    "vector of channels": lambda b, x: b.op("add", x, array(64, 1, 1)),
    "full constant": lambda b, x: b.op("multiply", x, array(1, 64, 6, 5)),
    "constant over space": lambda b, x: b.op("add", x, array(6, 5)),
    "one number": lambda b, x: b.op("maximum", x, array(1, 1, 1, 1)),
    "row computed at run time": lambda b, x: b.op("add", x, b.op("exp", b.params[1])),
    "batch norm": lambda b, x: b.op("nn.batch_norm", x, *(array(64),) * 3, np.ones(64, "float32")),
    "group norm": lambda b, x: b.op("nn.group_norm", x, array(64), array(64), num_groups=4),
    "instance norm": lambda b, x: b.op("nn.instance_norm", x),
    "slopes": lambda b, x: b.op("nn.prelu", x, array(64)),
    "slice of channels": lambda b, x: b.op("slice", x, axis=1, begin=3, end=40, step=2),
    "slice of rows": lambda b, x: b.op("slice", x, axis=-2, begin=1),
    "flip": lambda b, x: b.op("flip", x, axis=(1, 3)),
    "repeat": lambda b, x: b.op("repeat", x, axis=2, repeats=2),
    "reflection": lambda b, x: b.op("pad", x, pad_width=((0, 0), (0, 0), (1, 2), (2, 1)),
                                    pad_mode="reflect"),
    "maximum of channels": lambda b, x: b.op("max", x, axes=1, keepdims=True),
    "gate, spread": lambda b, x: b.op("multiply", x, b.op(
        "broadcast_to", b.op("max", x, axes=(2, 3), keepdims=True), shape_value((2, 64, 6, 5)))),
    "where": lambda b, x: b.op("where", b.op("greater", x, scalar=0.0), x, scalar=-1.0),
    "average pool": lambda b, x: b.op("nn.avg_pool2d", x, pool_size=3, padding=1, strides=1),
    "adaptive pool": lambda b, x: b.op("nn.adaptive_max_pool2d", x, output_size=(3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWERS)
def test_operators_run_channels_last(name: str, convert: Any) -> None:
    """Between two convolutions, nothing is permuted but the input and the output."""
    b = GraphBuilder()
    x, row = b.param("x", tensor(2, 32, 6, 5)), b.param("row", tensor(5))
    y = FOLLOWERS[name](b, _conv(b, x))
    channels = number(y.tensor_info.shape[1])
    y = b.op("nn.conv2d", y, array(16, channels, 3, 3), padding=1)
    module = convert(b, y)
    assert [v for v, _ in permutes(module)] == ["x", "conv2d1_last"]
    assert row in module["main"].params


REDUCTIONS: list[tuple[dict[str, Any], int]] = [
    ({"axes": (2, 3)}, 0),  # (n, c): no order to restore
    ({"axes": 1}, 0),  # (n, h, w)
    ({"axes": None}, 0),
    ({"axes": (0, 2, 3)}, 0),
    ({"axes": 2}, 1),  # (n, w, c) is (n, c, w) channels-last
    ({"axes": 0}, 1),  # (h, w, c) is no order of ours: the operand changes
]


@pytest.mark.parametrize(("attrs", "changes"), REDUCTIONS)
def test_reductions(attrs: dict[str, Any], changes: int, convert: Any) -> None:
    b = GraphBuilder()
    y = b.op("sum", _conv(b, b.param("x", tensor(2, 32, 6, 5))), **attrs)
    assert len(permutes(convert(b, y))) == 1 + changes


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_spatial_axes(rank: int, convert: Any) -> None:
    b, size = GraphBuilder(), (9, 8, 7)[:rank]
    x = b.param("x", tensor(2, 6, *size))
    y = b.op(f"nn.conv{rank}d", x, array(64, 3, *(5,) * rank), padding=2, groups=2)
    y = b.op(f"nn.max_pool{rank}d", b.op("relu", y), pool_size=2)
    y = b.op(f"nn.conv{rank}d_transpose", y, array(64, 4, *(2,) * rank), strides=2, groups=8)
    module = convert(b, b.op("mean", y, axes=tuple(range(2, rank + 2))))
    assert len(permutes(module)) == 1
    assert all(layout.endswith("C") for layout in layouts(module))


class TestFixedOrders:
    def test_a_flattened_image_is_read_as_it_lies(self, convert: Any) -> None:
        """The weights of the linear layer are permuted instead, at compile time."""
        b = GraphBuilder()
        y = b.op("nn.max_pool2d", _conv(b, b.param("x", tensor(2, 32, 6, 6))), pool_size=2)
        y = b.op("flatten", y, start=1)
        left, right = b.op("linear", y, array(10, 576)), b.op("matmul", y, array(576, 10))
        module = convert(b, b.op("add", left, right))
        assert permutes(module) == [("x", TO_LAST)]

    def test_a_flattened_image_that_others_read_is_permuted(self, convert: Any) -> None:
        b = GraphBuilder()
        y = b.op("flatten", _conv(b, b.param("x", tensor(2, 32, 6, 6))), start=1)
        module = convert(
            b,
            b.op(
                "add",
                b.op("linear", y, array(10, 2304)),
                b.op("sum", b.op("tanh", y), axes=1, keepdims=True),
            ),
        )
        assert [axes for _, axes in permutes(module)] == [TO_LAST, TO_FIRST]

    def test_another_permutation_is_made_at_once(self, convert: Any) -> None:
        b = GraphBuilder()
        y = b.op("permute_dims", _conv(b, b.param("x", tensor(2, 32, 6, 5))), axes=(1, 0, 3, 2))
        assert permutes(convert(b, y)) == [("x", TO_LAST), ("conv2d_last", (3, 0, 2, 1))]

    def test_weights_that_are_arguments_keep_their_layout(self, convert: Any) -> None:
        b = GraphBuilder()
        x, w = b.param("x", tensor(1, 16, 12, 12)), b.param("w", tensor(64, 16, 5, 5))
        module = convert(b, b.op("mean", b.op("nn.conv2d", x, w, padding=2), axes=(2, 3)))
        (conv, _) = [b.value for b in module["main"].bindings if b.value.op.name != "permute_dims"]
        assert conv.attrs["data_layout"] == "NHWC"
        assert conv.args[1] is w
        assert conv.attrs.get("kernel_layout", "OIHW") == "OIHW"


class TestDecisions:
    def test_a_convolution_that_gains_less_than_it_costs_stays(
        self, convert: Any, context: Any
    ) -> None:
        b = GraphBuilder()
        module = convert(
            b, b.op("nn.conv2d", b.param("x", tensor(1, 8, 32, 32)), array(8, 8, 1, 1))
        )
        assert permutes(module) == []
        (line,) = context.decisions["channels_last"]
        assert "as written: nn.conv2d; layout changes would move 131 kB" in line

    def test_the_same_convolution_runs_channels_last_on_such_data(self, convert: Any) -> None:
        """The model's own permutations are saved."""
        b = GraphBuilder()
        x = b.op("permute_dims", b.param("x", tensor(1, 32, 32, 8)), axes=TO_FIRST)
        y = b.op("permute_dims", b.op("nn.conv2d", x, array(8, 8, 1, 1)), axes=TO_LAST)
        module = convert(b, y)
        assert permutes(module) == []
        assert layouts(module) == {"NHWC"}

    def test_regions_are_decided_one_by_one(self, convert: Any, context: Any) -> None:
        b = GraphBuilder()
        x, z = b.param("x", tensor(2, 32, 12, 12)), b.param("z", tensor(2, 8, 32, 32))
        heavy = b.op("mean", _conv(b, x), axes=(2, 3))
        light = b.op("sum", b.op("nn.conv2d", z, array(8, 8, 1, 1)), axes=2)
        light = b.op("sum", b.op("flatten", light, start=1), axes=1, keepdims=True)
        module = convert(b, b.op("add", heavy, light))
        kept, given_up = context.decisions["channels_last"]
        assert permutes(module) == [("x", TO_LAST)]
        assert "channels-last: nn.conv2d, mean; layout changes left: x (2×32×12×12)" in kept
        assert "as written: nn.conv2d" in given_up

    def test_transposes_of_other_models_are_left_alone(self, run: Any) -> None:
        b = GraphBuilder()
        q, k = b.param("q", tensor(2, 7, 16)), b.param("k", tensor(2, 9, 16))
        y = b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1)))
        module = ir.IRModule({"main": b.finish("main", b.op("softmax", y))})
        assert run(module, "channels_last")["main"] is module["main"]


def _grow(b: GraphBuilder, values: list[ir.GraphVar], rng: np.random.Generator) -> None:
    """Add an operator on some values of rank 4: whatever fits their shapes."""
    x = values[rng.integers(len(values))]
    n, c, h, w = map(number, x.tensor_info.shape)
    like = [v for v in values if [*map(number, v.tensor_info.shape)] == [n, c, h, w]]
    other = like[rng.integers(len(like))]
    choices: list[Callable[[], ir.GraphVar]] = [
        lambda: b.op("nn.conv2d", x, array(16, c, 3, 3), padding=1),
        lambda: b.op("nn.conv2d", x, array(c, 1, 3, 3), padding=1, groups=c),
        lambda: b.op("nn.conv2d", x, array(h, c, 1, 1)),
        lambda: b.op("nn.conv2d_transpose", x, array(c, 4, 1, 1)),
        lambda: b.op("nn.max_pool2d", x, pool_size=3, strides=1, padding=1),
        lambda: b.op("nn.adaptive_avg_pool2d", x, output_size=(h, 1)),
        lambda: b.op("add", x, other),
        lambda: b.op("multiply", array(c, 1, w), x),
        lambda: b.op("subtract", x, b.op("mean", other, axes=(2, 3), keepdims=True)),
        lambda: b.op("concat", x, other, x, axis=1),
        lambda: b.op(
            "concat", ir.TupleExpr((x, other), info=ir.TupleInfo((x.info, other.info))), axis=2
        ),
        lambda: b.op("softmax", x, axis=int(rng.integers(4))),
        lambda: b.op("permute_dims", x, axes=TO_LAST),
        lambda: b.op("permute_dims", x, axes=TO_FIRST),
        lambda: b.op("permute_dims", x, axes=tuple(map(int, rng.permutation(4)))),
        lambda: b.op("reshape", x, shape_value((n, c, h * w, 1))),
        lambda: b.op("reshape", x, shape_value((n, h, c, w))),
        lambda: b.op("linear", x, array(5, w)),
        lambda: b.op("flip", x, axis=int(rng.integers(4))),
        lambda: b.op("broadcast_to", b.op("sum", x, axes=1, keepdims=True), shape=(n, 3, h, w)),
        lambda: b.op("expand_dims", b.op("max", x, axes=2), axis=int(rng.integers(4))),
    ]
    values.append(choices[rng.integers(len(choices))]())


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_mean_the_same(seed: int, convert: Any, monkeypatch: Any) -> None:
    """Even when every region is converted, whatever it costs."""
    import blockwright.passes.layout.channels_last as room

    rng = np.random.default_rng(seed)
    if seed % 2:
        monkeypatch.setattr(room, "is_worth_it", lambda region: True)
    b = GraphBuilder()
    values = [b.param("x", tensor(2, 6, 5, 4)), b.param("y", tensor(2, 6, 5, 4))]
    for _ in range(12):
        _grow(b, values, rng)
    small = [b.op("tanh", v) for v in values]
    flat = [b.op("flatten", v) for v in [*small[-3:], small[0]]]
    convert(b, b.op("concat", *flat))
