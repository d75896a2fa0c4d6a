"""Blockwright: the module compiled in this process, called with arrays."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import blockwright as bw
from benchmarks.cases import find
from benchmarks.modules import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Compiled:
    """Compiled without a search.

    `about` has the seconds that the cost model expects of a call, and the rule of each kernel.

    With the option `fallback`, all rules but the last are left out: what a program gets that no
    rule knows. Nothing is remembered from earlier runs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._cache = tempfile.TemporaryDirectory()
        os.environ["BLOCKWRIGHT_CACHE_DIR"] = self._cache.name
        bw.set_num_threads(options["threads"])
        self._disabled = _all_but_last() if options.get("fallback") else ()
        self._rules: dict[str, str] = {}
        self._expected: Callable[[], float] | None = None

    def about(self) -> dict[str, Any]:
        expected = self._expected() if self._expected else None
        return {"version": bw.__version__, "rules": self._rules, "expected_s": expected}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        case = find(point["family"], point["case"])
        arrays = case.arrays()
        examples = [torch.from_numpy(array) for array in arrays]
        if point.get("format") == "channels_last":
            examples = [_channels_last(one) for one in examples]
        exe = bw.compile(build(case), examples, options={"disabled_rules": self._disabled})
        scheduled = exe.stages["schedule_programs"]
        for name in exe.context.traces:
            self._rules[name] = str(scheduled[name].attrs.get("schedule_rule"))
        self._expected = partial(exe.estimate, *examples)
        return lambda: exe(*examples)


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.contiguous(memory_format=orders[value.ndim]) if value.ndim in orders else value


def _all_but_last() -> tuple[str, ...]:
    from blockwright.rules import RULES

    return tuple(rule.name for rule in RULES[:-1])
