"""All uses of Blockwright's API in the example: compile, call, save."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import blockwright as bw
from examples.minilm.model import Inputs, as_tensors, dynamic_shapes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch


@dataclass
class Stages:
    """Progress callback of the compiler: (stage, steps done, total steps). Records times."""

    report: Callable[[str, int, int], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _current: str = ""
    _since: float = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._current:
            self.close()
            self._current, self._since = stage, time.perf_counter()
        if self.report is not None:
            self.report(stage, done, total)

    def close(self) -> None:
        """Add the time since the last change of stage to that stage."""
        if self._current:
            spent = time.perf_counter() - self._since
            self.seconds[self._current] = self.seconds.get(self._current, 0.0) + spent
        self._current = ""


@dataclass(frozen=True)
class Compiled:
    """A compiled model, with the seconds of compilation in total and by stage.

    The first stage, "import", converts the exported program to a graph function.
    """

    executable: bw.CompiledModel
    seconds: float
    stages: dict[str, float]

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """Embed one padded batch of token ids and mask."""
        return self.executable(*as_tensors(inputs))

    def save(self, path: Path) -> None:
        """Write the artefact, creating its folder if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.executable.save(path)


def compile_program(
    program: torch.export.ExportedProgram,
    *,
    threads: int = 2,
    report: Callable[[str, int, int], None] | None = None,
) -> Compiled:
    """Compile an exported program once, for all shapes in its ranges, for this machine."""
    bw.set_num_threads(threads)
    stages = Stages(report)
    start = time.perf_counter()
    executable = bw.compile(
        program, target="native", dynamic_shapes=dynamic_shapes(), progress=stages
    )
    seconds = time.perf_counter() - start
    stages.close()
    imported = executable.context.timings["import"]
    return Compiled(executable, seconds, {"import": imported, **stages.seconds})
