"""Which convolutions are computed from Winograd's tiles, and what the compiled kernel is then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder, constant
from blockwright.passes import PassContext
from blockwright.passes.select.choose_implementations import choose_implementations
from blockwright.support import GraphError
from blockwright.target import Cache, Target

MACHINE = Target("x86-64-v3", num_threads=2)


def model(
    shape: tuple[Any, ...] = (1, 28, 28, 64),
    filters: int = 64,
    kernel: int = 3,
    constant_weight: bool = True,
    dtype: str = "float32",
    **attrs: Any,
) -> ir.IRModule:
    """relu(conv2d(x, w) + b), channels last."""
    builder = GraphBuilder()
    x = builder.param("x", _info(shape, dtype))
    size = (kernel, kernel, shape[3] // attrs.get("groups", 1), filters)
    weight = np.random.default_rng(0).standard_normal(size).astype(dtype)
    w = constant(weight, "w") if constant_weight else builder.param("w", _info(size, dtype))
    given: dict[str, Any] = {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"}
    y = builder.op("nn.conv2d", x, w, **(given | attrs))
    bias = np.random.default_rng(1).standard_normal(filters).astype(dtype)
    y = builder.op("relu", builder.op("add", y, constant(bias, "b")))
    return ir.IRModule({"main": builder.finish("main", y)})


def _info(shape: tuple[Any, ...], dtype: str) -> ir.TensorInfo:
    return ir.TensorInfo(
        tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape), ir.dtype_of(dtype)
    )


TILES = {"default": 0, None: 0, "winograd(tile=2)": 2, "winograd(tile=4)": 4}


def chosen(module: ir.IRModule, target: Target = MACHINE, **options: Any) -> int:
    """The edge of Winograd's tiles after the pass; 0 for the direct sum."""
    after = choose_implementations(module, PassContext(target, options))
    (text,) = (
        c.attrs.get("implementation")
        for c in ir.collect(after["main"], ir.GraphCall)
        if isinstance(c.op, ir.OpRef) and c.op.name == "nn.conv2d"
    )
    return TILES[text]


def test_a_dense_convolution_is_computed_from_tiles() -> None:
    assert chosen(model()) in (2, 4)


def test_it_can_be_forbidden() -> None:
    assert chosen(model(), disabled_implementations=["winograd"]) == 0
    assert chosen(model(), disabled_strategies=["winograd"]) == 0


DIRECT: dict[str, dict[str, Any]] = {
    "stride": {"strides": 2},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "kernel": {"kernel": 5},
    "weights that are no constants": {"constant_weight": False},
    "one channel": {"shape": (1, 28, 28, 1)},
    "a small image": {"shape": (1, 3, 3, 4), "filters": 4},
    "a symbolic size": {"shape": (1, ir.Var("h", ir.dtype_of("int64")), 28, 64)},
    "an empty batch": {"shape": (0, 28, 28, 64)},
}


@pytest.mark.parametrize("name", DIRECT)
def test_others_are_computed_directly(name: str) -> None:
    assert chosen(model(**DIRECT[name])) == 0


def test_filters_are_transformed_at_compile_time() -> None:
    module = model((1, 12, 12, 24), 40, implementation="winograd(tile=4)")
    compiled = bw.compile(module)
    kernels = [f for f in compiled.lowered.functions.values() if isinstance(f, ir.PrimFunc)]
    names = {b.name for f in kernels for b in ir.blocks(f.body)}
    assert not any("filter" in name for name in names)
    packed = [a.shape for a in compiled.lowered.attrs["constants"].values()]
    assert any(shape[:2] == (6, 6) for shape in packed)  # one matrix of filters per point


@pytest.mark.parametrize("size", [2, 4])
def test_what_follows_is_applied_to_the_tiles(size: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 11, 14, 24)).astype("float32")
    compiled = bw.compile(model(x.shape, 40, implementation=f"winograd(tile={size})"))
    assert compiled.context.notes == []
    expected = np.asarray(bw.compile(model(x.shape, 40, implementation="default"))(x))
    np.testing.assert_allclose(np.asarray(compiled(x)), expected, rtol=0, atol=2e-4)
    assert "winograd" in compiled.show("schedule")


def test_the_choice_and_what_was_expected_are_shown() -> None:
    compiled = bw.compile(model((1, 28, 28, 64), 64))
    (line,) = [one for one in compiled.show("programs").splitlines() if "predicted" in one]
    assert line.startswith("# conv2d: winograd(tile=")
    assert "; predicted: default " in line
    assert "µs, winograd(tile=2) " in line
    assert "µs, winograd(tile=4) " in line


@pytest.mark.parametrize(
    ("size", "shape"), [("in groups", (16, 16, 32)), ("in passes", (7, 7, 96))]
)
def test_one_kernel_takes_batches_of_any_size(size: str, shape: tuple[int, int, int]) -> None:
    """Tiles of all images are one axis; groups are parts of an image then."""
    module = model((ir.Var("n", ir.dtype_of("int64")), *shape), 48)
    assert chosen(module) == 4
    compiled = bw.compile(module)
    assert compiled.context.notes == []
    direct = bw.compile(module, options={"disabled_implementations": ["winograd"]})
    for images in (1, 2, 5):
        x = np.random.default_rng(images).standard_normal((images, *shape)).astype("float32")
        np.testing.assert_allclose(
            np.asarray(compiled(x)), np.asarray(direct(x)), rtol=0, atol=1e-3
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_transformed_in_float32(dtype: str) -> None:
    """The result is rounded once, so its error is that of the direct sum."""
    module = model((1, 14, 14, 24), 40, dtype=dtype)
    assert chosen(module) in (2, 4)
    x = np.random.default_rng(0).standard_normal((1, 14, 14, 24)).astype(dtype)
    tiles = bw.compile(module, target=MACHINE)
    assert "strategy winograd" in tiles.show("schedule")
    direct = bw.compile(module, target=MACHINE, options={"disabled_implementations": ["winograd"]})
    y, z = (np.asarray(run(x)).astype("float64") for run in (tiles, direct))
    step = 2.0 ** (-10 if dtype == "float16" else -7)
    np.testing.assert_allclose(y, z, rtol=step, atol=step)


def test_a_dot_product_instruction_makes_the_direct_sum_faster() -> None:
    machine = Target("x86-64-v4+avx512bf16", num_threads=2)
    for dtype, expected in (("bfloat16", False), ("float16", True)):
        assert bool(chosen(model(dtype=dtype), machine)) is expected


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "stride": ({"strides": 2}, "stride and dilation 1"),
    "groups": ({"groups": 2}, "one group"),
    "kernel": ({"kernel": 5}, "3 by 3"),
    "type": ({"dtype": "int32"}, "floating-point convolution"),
    "channels": ({"shape": (1, 6, 6, 1)}, "more than one channel"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_call_that_cannot_be_computed_so_is_an_error(name: str) -> None:
    attrs, reason = BAD[name]
    with pytest.raises(GraphError, match=reason) as caught:
        model(**attrs, implementation="winograd(tile=2)")
    assert caught.value.code == "BW419"


CACHES = (Cache(32 << 10, 8, 64, 1), Cache(512 << 10, 8, 64, 1))


def test_larger_tiles_are_taken_where_they_are_clearly_better() -> None:
    """Their filters are 2.25 times the bytes: 38 MB, which no cache holds, for few pixels."""
    caches = (*CACHES, Cache(32 << 20, 16, 64, 2))
    machine = Target("x86-64-v4", num_threads=2, caches=caches)
    for filters in (511, 512, 513):
        assert chosen(model((1, 7, 7, 512), filters), machine) == 2
    assert chosen(model((1, 56, 56, 64), 64), machine) == 4


def test_filters_from_memory_favor_small_tiles() -> None:
    """With more weights than any cache holds, filters are read from memory in each call."""
    caches = (Cache(32 << 10, 8, 64), Cache(1 << 20, 8, 64), Cache(64 << 20, 16, 64, 2))
    machine = Target("x86-64-v4", num_threads=2, caches=caches)
    assert chosen(model((1, 7, 7, 384), 384), machine) == 4
    last = Cache(4 << 20, 16, 64, 2)  # the weights are 5 MB
    assert chosen(model((1, 7, 7, 384), 384), Target(machine, caches=(*caches[:2], last))) == 2
