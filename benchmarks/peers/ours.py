"""Blockwright: the module compiled in this process, called with arrays."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import blockwright as bw
from benchmarks.built_for import NATIVE, built_for
from benchmarks.cases import find
from benchmarks.modules import build
from blockwright import ir
from blockwright.passes.host.instrument_host import host_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Compiled:
    """Our compiler, without a search.

    `about` has the target, the seconds per call that the cost model expects, the strategy of each
    kernel, the bytes of object code, the libraries that a call runs through, and the compile cache.

    With the option `fallback`, all strategies but the last are disabled, as for a program that no
    other strategy matches. With `direct`, convolutions are plain sums. The compile cache is empty,
    unless `cache` names one. `target` is the target to build for.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._own = None if "cache" in options else tempfile.TemporaryDirectory()
        self._cache: str = options["cache"] if self._own is None else self._own.name
        os.environ["BLOCKWRIGHT_CACHE_DIR"] = self._cache
        bw.set_num_threads(options["threads"])
        disabled = _all_but_last() if options.get("fallback") else ()
        direct = ["winograd"] if options.get("direct") else []
        self._options = {
            "disabled_strategies": disabled,
            "disabled_implementations": direct,
            "fallback": "error",
        }
        self._target = built_for(options.get("target", NATIVE))
        self._about: dict[str, Any] = {}
        self.made_s = 0.0
        self._expected: Callable[[], float] | None = None

    def about(self) -> dict[str, Any]:
        expected = self._expected() if self._expected else None
        told = {
            "version": bw.__version__,
            "target": str(self._target),
            "cache": self._cache,
            "expected_s": expected,
        }
        return {**told, **self._about}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        case = find(point["family"], point["case"])
        arrays = case.arrays()
        examples = [torch.from_numpy(array) for array in arrays]
        if point.get("format") == "channels_last":
            examples = [_channels_last(one) for one in examples]
        start = time.perf_counter()
        module = build(case)
        self.made_s = time.perf_counter() - start
        exe = bw.compile(module, examples, target=self._target, options=self._options)
        scheduled = exe.stages["schedule_programs"]
        calls = host_calls(exe.lowered["main"])
        self._about = {
            "rules": {name: str(scheduled[name].attrs.get("schedule_strategy"))
                      for name in exe.context.traces},
            "code_bytes": sum(len(made) for _, made in exe.library.compiled.objects),
            "external": [str(call.args[0].value) for call in calls
                         if call.op == "call_packed" and isinstance(call.args[0], ir.StringImm)],
        }  # fmt: skip
        self._expected = partial(exe.estimate, *examples)
        return lambda: exe(*examples)


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.contiguous(memory_format=orders[value.ndim]) if value.ndim in orders else value


def _all_but_last() -> tuple[str, ...]:
    from blockwright.strategies import STRATEGIES

    return tuple(rule.name for rule in STRATEGIES[:-1])
