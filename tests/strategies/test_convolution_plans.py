"""Plans of the convolution strategies: ranked, stored as JSON, changed, applied, refused."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import Plan, Strategy, apply_plan, apply_strategies
from blockwright.strategies.cpu.conv_nchw import STRATEGY as CONV_NCHW
from blockwright.strategies.cpu.conv_nchw_plan import ConvNchwPlan
from blockwright.strategies.cpu.depthwise_pool import STRATEGY as DEPTHWISE_POOL
from blockwright.strategies.cpu.depthwise_pool_plan import DepthwisePoolPlan
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.separable_conv import STRATEGY as SEPARABLE_CONV
from blockwright.strategies.cpu.separable_conv_cost import SeparableConvPlan
from blockwright.strategies.cpu.winograd import STRATEGY as WINOGRAD
from blockwright.strategies.cpu.winograd_plan import WinogradPlan
from blockwright.strategies.strategy import NoDecision
from blockwright.target import Target
from blockwright.testing import assert_same_meaning
from tests.strategies.convolution_programs import operator

TARGET = Target("x86-64-v3", num_threads=2)
change = msgspec.structs.replace


def depthwise(size: int, channels: int, kernel: int = 3) -> ir.PrimFunc:
    """A depthwise convolution of a square image, with a border."""
    return operator(
        "nn.conv2d",
        (1, size, size, channels),
        (kernel, kernel, 1, channels),
        groups=channels,
        padding=kernel // 2,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )


def conv_nchw() -> ir.PrimFunc:
    return operator("nn.conv2d", (1, 3, 6, 19), (7, 3, 3, 3), padding=1)


def every_second_pixel() -> ir.PrimFunc:
    return operator("nn.conv2d", (1, 3, 4, 33), (24, 3, 3, 3), strides=2)


def phases() -> ir.PrimFunc:
    """A transposed depthwise convolution: four windows write parts of one result."""
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    name, shapes = "nn.conv2d_transpose", ((1, 5, 4, 9), (3, 3, 9, 1))
    return operator(name, *shapes, groups=9, strides=2, padding=1, **layouts)


def winograd() -> ir.PrimFunc:
    return operator(
        "nn.conv2d",
        (1, 8, 8, 3),
        (3, 3, 3, 4),
        padding=1,
        data_layout="NHWC",
        kernel_layout="HWIO",
        implementation="winograd(tile=2)",
    )


def separable(size: int = 8, channels: int = 8, filters: int = 12) -> ir.PrimFunc:
    """A window for each channel, and a product with a matrix."""
    p = Program("separable")
    x = p.param("X", (1, size, size, channels), "float32")
    taps = p.param("D", (3, 3, channels), "float32")
    w = p.param("W", (channels, filters), "float32")
    mid = p.reduce(
        "window",
        (1, size - 2, size - 2, channels),
        (3, 3),
        lambda n, i, j, c, a, b: x[n, i + a, j + b, c] * taps[a, b, c],
    )
    out = p.reduce(
        "product",
        (1, size - 2, size - 2, filters),
        (channels,),
        lambda n, i, j, f, c: mid[n, i, j, c] * w[c, f],
    )
    return p.finish([out])


CASES: dict[str, tuple[Strategy[Any, Any], ir.PrimFunc]] = {
    "channels first": (CONV_NCHW, conv_nchw()),
    "channels first, every second pixel": (CONV_NCHW, every_second_pixel()),
    "depthwise": (DEPTHWISE_POOL, depthwise(6, 9)),
    "phases of a transposed convolution": (DEPTHWISE_POOL, phases()),
    "separable": (SEPARABLE_CONV, separable()),
    "winograd": (WINOGRAD, winograd()),
}


def plans(case: str, count: int | None = None) -> list[Any]:
    strategy, func = CASES[case]
    return list(itertools.islice(strategy.plans(func, TARGET), count))


@pytest.mark.parametrize("case", CASES)
def test_the_first_plan_is_the_choice_without_tuning(case: str) -> None:
    strategy, func = CASES[case]
    result = apply_strategies(func, TARGET)
    (first,) = plans(case, 1)
    assert (result.strategy, result.plan) == (strategy.name, first)
    assert not isinstance(first, NoDecision)
    again = apply_plan(strategy, func, TARGET, first)
    assert again.trace.as_json() == result.trace.as_json()


@pytest.mark.parametrize("case", CASES)
def test_plans_are_stored_as_json(case: str) -> None:
    strategy, _ = CASES[case]
    for plan in plans(case, 40):
        assert strategy.plan_from_json(plan.to_json()) == plan


@pytest.mark.parametrize("case", CASES)
def test_other_plans_differ_and_compute_the_same(case: str) -> None:
    strategy, func = CASES[case]
    chosen = plans(case)
    assert len(set(chosen)) == len(chosen) > 4
    for plan in (chosen[1], chosen[len(chosen) // 2], chosen[-1]):
        assert_same_meaning(func, apply_plan(strategy, func, TARGET, plan).func)


@pytest.mark.parametrize("case", CASES)
def test_every_plan_schedules(case: str) -> None:
    """The checker accepts every plan, and no two of them lead to one schedule."""
    strategy, func = CASES[case]
    chosen = plans(case)
    apart = -(-len(chosen) // 8)
    results = [apply_plan(strategy, func, TARGET, plan) for plan in chosen[::apart]]
    assert len({str(result.trace.as_json()) for result in results}) == len(results)


@pytest.mark.parametrize("case", CASES)
def test_a_plan_decides_alone(case: str) -> None:
    """`apply` takes no decision from the machine: more threads lead to the same steps."""
    strategy, func = CASES[case]
    (plan,) = plans(case, 1)
    few, many = (
        apply_plan(strategy, func, Target("x86-64-v3", num_threads=n), plan).trace.as_json()
        for n in (1, 64)
    )
    assert few == many


def test_other_plans_run_natively(checks: Any) -> None:
    """Every second pixel of an image with channels first, against NumPy."""
    func = every_second_pixel()
    x, w = checks.normal(1, 3, 4, 33), checks.normal(24, 3, 3, 3, seed=1)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3), (2, 3))
    exact = np.einsum("nchwij,fcij->nfhw", windows[:, :, ::2, ::2], w.astype("float64"))
    native = Target("native")
    for plan in list(CONV_NCHW.plans(func, native))[:30:12]:
        out = np.empty(exact.shape, "float32")
        build(apply_plan(CONV_NCHW, func, native, plan).func, native)["main"](x, w, out)
        np.testing.assert_allclose(out, exact, rtol=0, atol=27 * 2.0**-24 * 30)


# -------------------------------------------------------------------------------------- single ones
def test_a_changed_tile_changes_a_channels_first_convolution() -> None:
    func = conv_nchw()
    (plan,) = plans("channels first", 1)
    assert isinstance(plan, ConvNchwPlan)
    changed = change(plan, tile=RegisterTile(2, 8, 8), steps=2, filters=3, vector_bits=128)
    result = apply_plan(CONV_NCHW, func, TARGET, changed)
    assert result.trace.as_json() != apply_plan(CONV_NCHW, func, TARGET, plan).trace.as_json()
    assert_same_meaning(func, result.func)


@pytest.mark.parametrize("terms", [None, 50])
def test_long_sums_of_a_window_are_split_as_the_plan_says(terms: int | None) -> None:
    p = Program("weighted")
    x, w = p.param("X", (2, 300, 8), "float32"), p.param("W", (300, 8), "float32")
    func = p.finish([p.reduce("sum", (2, 8), (300,), lambda i, c, k: x[i, k, c] * w[k, c])])
    (plan,) = itertools.islice(DEPTHWISE_POOL.plans(func, TARGET), 1)
    (window,) = plan.windows
    assert window.terms == 16
    changed = DepthwisePoolPlan((change(window, terms=terms),))
    result = apply_plan(DEPTHWISE_POOL, func, TARGET, changed)
    assert ("rfactor" in result.trace.as_python()) == (terms is not None)
    assert_same_meaning(func, result.func)


def test_the_input_of_a_winograd_convolution_can_be_made_in_tasks() -> None:
    """For every size of a group: whole rows, parts of them, and whole images."""
    strategy, func = CASES["winograd"]
    of_group = {p.group: p for p in plans("winograd") if p.group is not None}
    assert len(of_group) > 2
    assert not any(plan.input_in_task for plan in of_group.values())
    first, *_ = (
        apply_plan(strategy, func, TARGET, change(plan, input_in_task=True))
        for plan in of_group.values()
    )
    assert_same_meaning(func, first.func)


def test_a_single_task_computes_a_whole_image() -> None:
    """One thread, and weights that every task would read from far away."""
    one = Target("x86-64-v3", num_threads=1)
    (plan,) = itertools.islice(SEPARABLE_CONV.plans(separable(), one), 1)
    alone = change(
        plan, lines=6, window=change(plan.window, blocks=change(plan.window.blocks, rows=6))
    )
    result = apply_plan(SEPARABLE_CONV, separable(), one, alone)
    assert_same_meaning(separable(), result.func)
    large = apply_strategies(separable(9, 960, 320), one)
    assert (large.strategy, large.note) == ("separable_conv", "")
    assert large.plan is not None
    assert isinstance(large.plan, SeparableConvPlan)
    assert large.plan.lines == 7


# ----------------------------------------------------------------------------------------- refusals
def refused(case: str, plan: Plan) -> str:
    strategy, func = CASES[case]
    with pytest.raises(ScheduleError) as caught:
        apply_plan(strategy, func, TARGET, plan)
    assert caught.value.code == "BW342"
    assert caught.value.help
    return caught.value.message


def test_a_plan_for_another_number_of_windows_is_refused() -> None:
    (plan,) = plans("depthwise", 1)
    assert isinstance(plan, DepthwisePoolPlan)
    assert "for 2 windows; the program has 1" in refused(
        "depthwise", DepthwisePoolPlan(plan.windows * 2)
    )


def test_a_copy_of_data_that_is_read_in_place_is_refused() -> None:
    (plan,) = plans("phases of a transposed convolution", 1)
    first, *others = plan.windows
    wrong = change(first, blocks=change(first.blocks, copied=True))
    assert "blocks.copied=True" in refused(
        "phases of a transposed convolution", DepthwisePoolPlan((wrong, *others))
    )


def test_a_split_sum_in_an_unrolled_tile_is_refused() -> None:
    (plan,) = plans("depthwise", 1)
    (window,) = plan.windows
    assert window.tile.written_out
    assert "terms=16" in refused("depthwise", DepthwisePoolPlan((change(window, terms=16),)))


def test_lines_that_do_not_divide_an_image_are_refused() -> None:
    (plan,) = plans("separable", 1)
    assert isinstance(plan, SeparableConvPlan)
    assert "lines=4" in refused("separable", change(plan, lines=4))


@pytest.mark.parametrize(("group", "reason"), [(5, "does not divide the 16 tiles"), (None, "None")])
def test_groups_that_do_not_fit_are_refused(group: int | None, reason: str) -> None:
    grouped = [p for p in plans("winograd") if p.group is not None]
    assert isinstance(grouped[0], WinogradPlan)
    assert reason in refused("winograd", change(grouped[0], group=group))


@pytest.mark.parametrize("case", CASES)
def test_text_of_another_strategy_is_refused(case: str) -> None:
    strategy, _ = CASES[case]
    with pytest.raises(ScheduleError, match="not a plan of strategy") as caught:
        strategy.plan_from_json('{"group": 3}')
    assert caught.value.code == "BW340"
