"""Blockwright: the module compiled in this process, called with arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import blockwright as bw
from benchmarks.cases import find
from benchmarks.modules import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Compiled:
    """Compiled without a search; says which rule scheduled each kernel."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        bw.set_num_threads(options["threads"])
        self._rules: dict[str, str] = {}

    def about(self) -> dict[str, Any]:
        return {"version": bw.__version__, "rules": self._rules}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        case = find(point["family"], point["case"])
        arrays = case.arrays()
        exe = bw.compile(build(case), [torch.from_numpy(array) for array in arrays])
        scheduled = exe.stages["schedule_programs"]
        for name in exe.context.traces:
            self._rules[name] = str(scheduled[name].attrs.get("schedule_rule"))
        return lambda: exe(*arrays)
