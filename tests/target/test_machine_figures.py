"""Figures of machines are fields of the target, documented, and what choices depend on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import blockwright
from blockwright.strategies.cpu.depthwise_pool_cost import window_plan
from blockwright.strategies.cpu.depthwise_pool_shape import WindowShape
from blockwright.strategies.cpu.winograd_cost import Convolution, best_grouping
from blockwright.target import Cache, Core, Target

ROOMS = ("cost", "strategies", "passes", "lower", "codegen/llvm")
_FIGURE = re.compile(r"[Cc]ycles|CYCLE|LATENCY|BANDWIDTH")


def constants(text: str) -> Iterator[str]:
    """Lines that define a module's numeric constants, with the comments before and behind them."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and any(
            isinstance(part, ast.Constant) and isinstance(part.value, int | float)
            for part in ast.walk(node)
        ):
            first = node.lineno - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            yield "\n".join(lines[first : node.end_lineno])


def test_constants_are_found_with_their_comments() -> None:
    text = "A = 3\n# cycles\n# of a task\n_T = 4000\nB: float = 1.5  # cycles per line\n"
    assert [bool(_FIGURE.search(one)) for one in constants(text)] == [False, True, True]


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_room_defines_times_of_a_machine(room: str) -> None:
    """By name or comment: a number of cycles is a figure of the machine, see `target.core`."""
    root = Path(blockwright.__file__).parent / room
    found = [
        f"{path.name}: {one}"
        for path in sorted(root.rglob("*.py"))
        for one in constants(path.read_text(encoding="utf-8"))
        if _FIGURE.search(one)
    ]
    assert not found


def test_every_figure_of_a_core_is_documented() -> None:
    described = Core.__doc__ or ""
    named = re.findall(r"^        ([a-z_0-9, ]+):", described, re.MULTILINE)
    assert {name for names in named for name in names.split(", ")} == set(Core.__struct_fields__)


def with_figures(name: str, **figures: float) -> Target:
    target = Target(name, num_threads=2)
    return Target(target, core=msgspec.structs.replace(target.core, **figures))


def test_choices_follow_the_figures() -> None:
    """Tasks that are cheap to hand out are smaller; filters from slow memory take longer."""
    shape = WindowShape(
        144, 56, along=3, taps=9, weighted=True, rows=56, row_reach=3, width=58, pitch=576,
        one_axis=False, source="border",
    )  # fmt: skip
    tasks = [
        window_plan(with_figures("x86-64-v3", task_dispatch_cycles=cycles), shape, 32)[1]
        for cycles in (0, 1_000_000)
    ]
    assert tasks[0].rows * tasks[0].groups < tasks[1].rows * tasks[1].groups
    conv = Convolution(1, 7, 7, 512, 512, uncached=True)
    fast, slow = (
        best_grouping(with_figures("x86-64-v3", dram_bandwidth=rate), conv, 4).seconds
        for rate in (64.0, 4.0)
    )
    assert fast < slow


@pytest.mark.parametrize(
    ("sharing", "private"),
    [((1, 1, 4), 2), ((2, 2, 16), 2), ((1, 4), 1), ((1, 1, 1), 2), ((1,), 1)],
)
def test_private_caches(sharing: tuple[int, ...], private: int) -> None:
    """Caches of one core, with one or two threads; the last level counts as shared."""
    caches = tuple(Cache(1 << (15 + 4 * k), shared_by=n) for k, n in enumerate(sharing))
    assert Target("x86-64-v3", caches=caches).private_caches == private
