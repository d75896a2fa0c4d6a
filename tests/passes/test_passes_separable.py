"""Which depthwise convolutions are computed along with the 1×1 convolution of their result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.passes import PassContext, default_pipeline
from blockwright.target import Cache, Target

CACHES = (Cache(32 << 10), Cache(1 << 20), Cache(32 << 20, 16, 64, 2))
MACHINE = Target("x86-64-v3", num_threads=2, caches=CACHES)
LAST: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
FUSION = {"normalize", "legalize", "annotate_patterns", "fuse_ops", "fuse_tir"}


def model(
    size: int, channels: int, filters: int, images: Any = 1, kernel: int = 1, again: bool = False
) -> ir.IRModule:
    """A depthwise 3×3 convolution, ReLU6, and a convolution of its result; with `again`, the
    result is another one of the model too."""
    builder = GraphBuilder()
    x = builder.param("x", _info((images, size, size, channels)))
    depthwise = builder.param("depthwise", _info((3, 3, 1, channels)))
    pointwise = builder.param("pointwise", _info((kernel, kernel, channels, filters)))
    y = builder.op("nn.conv2d", x, depthwise, padding=1, groups=channels, **LAST)
    y = builder.op("clip", y, min=0.0, max=6.0)
    z = builder.op("nn.conv2d", y, pointwise, **LAST)
    result = ir.TupleExpr((y, z)) if again else z
    return ir.IRModule({"main": builder.finish("main", result)})


def _info(shape: tuple[Any, ...]) -> ir.TensorInfo:
    dims = tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
    return ir.TensorInfo(dims, ir.dtype_of("float32"))


def kernels(module: ir.IRModule, callees: Any, **options: Any) -> int:
    """How many kernels compute a model."""
    fusion = default_pipeline(MACHINE).only(*FUSION)
    return len(callees(fusion(module, PassContext(MACHINE, options))))


@pytest.mark.parametrize("images", [1, 16, ir.Var("n", ir.dtype_of("int64"))])
def test_one_kernel_where_a_model_expects_it_to_be_faster(callees: Any, images: Any) -> None:
    assert kernels(model(28, 192, 32, images), callees) == 1


def test_two_kernels_where_lines_do_not_share_out_among_the_threads(callees: Any) -> None:
    """Seven lines for two threads: one of them would wait for an eighth of its time."""
    assert kernels(model(7, 960, 320), callees) == 2


def test_two_kernels_where_the_result_is_wanted_too(callees: Any) -> None:
    assert kernels(model(28, 192, 32, again=True), callees) == 2


def test_two_kernels_where_the_product_slides_as_well(callees: Any) -> None:
    assert kernels(model(28, 192, 32, kernel=3), callees) == 2


def test_it_can_be_forbidden(callees: Any) -> None:
    assert kernels(model(28, 192, 32), callees, disabled_strategies=["separable_conv"]) == 2


def test_the_kernel_computes_what_two_do() -> None:
    rng = np.random.default_rng(0)
    shapes = ((2, 28, 28, 192), (3, 3, 1, 192), (1, 1, 192, 32))
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    module = model(28, 192, 32, 2)
    one = bw.compile(module)
    assert "separable_conv\n#   not winograd: the contraction is not between transforms" in (
        one.show("schedule")
    )
    assert "one pass; predicted" in one.show("programs")
    assert one.context.notes == []
    two = bw.compile(module, options={"disabled_strategies": ["separable_conv"]})
    np.testing.assert_allclose(
        np.asarray(one(*inputs)), np.asarray(two(*inputs)), rtol=1e-4, atol=1e-3
    )
