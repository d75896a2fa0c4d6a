"""The rule for convolutions with channels first: vectors along lines of pixels."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.strategies.cpu.conv_nchw_plan import pays
from blockwright.strategies.match.blocks import contraction_of, leaf_blocks
from blockwright.strategies.match.planes import planes_of
from blockwright.target import Target
from tests.strategies.convolution_programs import convolution

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "padded": {"pad": 1},
    "no border": {},
    "dilated": {"pad": 2, "dilation": 2},
    "grouped": {"pad": 1, "groups": 2},
    "whole vectors": {"pad": 1, "width": 16, "filters": 8},
    "one filter more": {"pad": 1, "filters": 9},
    "one image": {"pad": 1, "batch": 1},
    "every second pixel": {"stride": 2, "filters": 24, "width": 33},
    "every third pixel, padded": {"stride": 3, "pad": 1, "filters": 40, "width": 46},
    "every second pixel, grouped": {"stride": 2, "groups": 2, "filters": 25},
    "one tap of every second pixel": {"kernel": 1, "stride": 2, "width": 37},
    "one tap": {"kernel": 1, "height": 3, "width": 5},
    "one tap, one line": {"kernel": 1, "height": 1, "width": 17, "filters": 7},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_it_computes_what_the_program_says(checks: Any, name: str) -> None:
    size = {"height": 4, "width": 13, "channels": 3, "filters": 3}
    result = checks.taken_by("conv_nchw", convolution(**(size | CONVOLUTIONS[name])), {})
    assert {"parallel", "vectorized", "unrolled"} <= set(checks.loop_kinds(result.func))


@pytest.mark.parametrize("width", [15, 16, 17, 19, 55, 57, 60])
@pytest.mark.parametrize("filters", [15, 17])
def test_lines_of_every_length_are_computed_natively(checks: Any, width: int, filters: int) -> None:
    x, f = checks.normal(2, 1, 5, 6, width), checks.normal(1, filters, 5, 3, 3, seed=1)
    bias, out = checks.normal(1, filters), np.empty((2, 1, filters, 6, width), "float32")
    checks.native(convolution(6, width, 5, filters, pad=1))(x, f, bias, out)
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (3, 4))
    exact = np.einsum("ngchwij,gfcij->ngfhw", windows, f.astype("float64"))
    exact = np.maximum(exact + bias[None, :, :, None, None], 0)
    # 45 products of normal numbers: the error is far below 45 * 2**-24 of their magnitude's sum
    np.testing.assert_allclose(out, exact, rtol=0, atol=45 * 2.0**-24 * 30)


@pytest.mark.parametrize("width", [33, 34, 47, 63, 129])
def test_lines_of_every_second_pixel_are_computed_natively(checks: Any, width: int) -> None:
    x, f = checks.normal(2, 1, 5, 7, width), checks.normal(1, 40, 5, 3, 3, seed=1)
    columns = (width - 3) // 2 + 1
    bias, out = checks.normal(1, 40), np.empty((2, 1, 40, 3, columns), "float32")
    func = convolution(7, width, 5, 40, stride=2)
    assert bw.strategies.apply_strategies(func, Target("x86-64-v3")).strategy == "conv_nchw"
    checks.native(func)(x, f, bias, out)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3), (3, 4))
    exact = np.einsum("ngchwij,gfcij->ngfhw", windows[:, :, :, ::2, ::2], f.astype("float64"))
    exact = np.maximum(exact + bias[None, :, :, None, None], 0)
    # 45 products of normal numbers: the error is far below 45 * 2**-24 of their magnitude's sum
    np.testing.assert_allclose(out, exact, rtol=0, atol=45 * 2.0**-24 * 30)


def test_the_last_tile_of_a_line_has_no_vectors_beyond_the_end() -> None:
    """Of tiles of six filters by two vectors: 56 pixels are three and one of one vector."""
    target = Target("x86-64-v3")
    func = convolution(16, 56, 16, 35, pad=1, batch=1)
    library = build(bw.strategies.apply_strategies(func, target).func, target)
    bodies = re.split(r"^\.L\w+:", library.source("asm"), flags=re.MULTILINE)
    assert {6, 12} <= {len(re.findall(r"\bvfmadd\w+", body)) for body in bodies}


def test_what_a_task_reads_is_its_own_copy(checks: Any) -> None:
    """No padded input is written for all tasks: it would leave the caches."""
    result = checks.taken_by("conv_nchw", convolution(40, 24, 3, 8, pad=1, batch=1))
    nests = result.func.root.body
    parallel = [n for n in ir.loops(nests) if n.kind is ir.ForKind.PARALLEL]
    assert len(parallel) == 2  # panels of the weights, and the tasks


REFUSED = {
    "contiguous": convolution(16, 23, 3, 6, stride=5),
    "less time": convolution(9, 9, 64, 64),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_why(checks: Any, reason: str) -> None:
    assert reason in checks.refusal("conv_nchw", REFUSED[reason])
    checks.taken_by("gemm", REFUSED[reason])


def test_a_matrix_product_is_left_to_the_gemm_rule(checks: Any) -> None:
    func = bw.from_source("""
@T.prim_func
def product(A: T.Buffer((20, 30), "float32"), B: T.Buffer((30, 40), "float32"),
            C: T.Buffer((20, 40), "float32")):
    for i, j, k in T.grid(20, 40, 30):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")
    assert "contiguous" in checks.refusal("conv_nchw", func)
    assert bw.strategies.apply_strategies(func, Target("x86-64-v3")).strategy == "gemm"


SHAPES: list[tuple[str, dict[str, int], str]] = [
    ("x86-64-v3", {"height": 56, "width": 56, "channels": 64, "filters": 4, "pad": 1}, "conv_nchw"),
    ("x86-64-v4", {"height": 56, "width": 56, "channels": 64, "filters": 4, "pad": 1}, "conv_nchw"),
    ("x86-64-v4", {"height": 56, "width": 56, "channels": 3, "filters": 16, "pad": 1}, "conv_nchw"),
    ("x86-64-v3", {"height": 7, "width": 7, "channels": 512, "filters": 512, "pad": 1}, "gemm"),
    ("x86-64-v4", {"height": 7, "width": 7, "channels": 512, "filters": 512, "pad": 1}, "gemm"),
    (
        "x86-64-v4",
        {"height": 14, "width": 14, "channels": 1024, "filters": 256, "kernel": 1},
        "gemm",
    ),
]


@pytest.mark.parametrize(("target", "shape", "strategy"), SHAPES)
def test_the_model_chooses_what_is_measured_to_be_faster(
    target: str, shape: dict[str, int], strategy: str
) -> None:
    """By a tenth to three times; convolutions for which both take about the same are left out."""
    func = convolution(**shape, batch=1)
    found = bw.strategies.strategy_for(func, Target(target, num_threads=1))
    assert found is not None
    assert found.name == strategy


def test_slow_lone_stores_favor_vectors_of_pixels() -> None:
    """The GEMM strategy stores the results of a vector of filters one by one."""
    target = Target("x86-64-v4", num_threads=1)
    block = next(b for b in leaf_blocks(convolution(28, 28, 64, 64, batch=1)) if contraction_of(b))
    roles = planes_of(block)
    assert not isinstance(roles, str)
    slow = Target(target, core=msgspec.structs.replace(target.core, lone_store_cycles=100.0))
    assert not pays(target, block, roles)
    assert pays(slow, block, roles)
