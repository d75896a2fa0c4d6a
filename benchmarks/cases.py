"""Cases of the comparison with peers: a module, its inputs, and the minimum work."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Input:
    """One argument of a module: normal numbers, integers below ``below``, or ones."""

    shape: tuple[int, ...]
    below: int = 0
    ones: bool = False

    def draw(self, random: np.random.Generator) -> NDArray[Any]:
        if self.ones:
            return np.ones(self.shape, np.int64)
        if self.below:
            return random.integers(0, self.below, self.shape, np.int64)
        return random.standard_normal(self.shape, np.float32)


@dataclass(frozen=True)
class Case:
    """One line of the comparison.

    Attributes:
        build: "file.function" in `benchmarks.modules`; called with ``settings`` it builds the torch
            module. Its weights are random and the same on every call.
        flops: floating-point operations of the plain method; None: counted by PyTorch.
        moved: bytes of inputs, outputs and weights, each once; None: counted.
        constant: whether an operand is a weight that is known at compile time.
        formats: memory formats that PyTorch is timed with; the better one counts.
        limit: bound on ours / best peer, for cases with their own bound.
        model: whether it is a whole model. Its compilation must not take longer than
            `torch.compile`'s, and a second compilation no longer than `report.WARM_S`.
        code_limit: bound on the bytes of object code, for cases with such a bound.
    """

    name: str
    build: str
    inputs: tuple[Input, ...]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flops: float | None = None
    moved: int | None = None
    constant: bool = False
    formats: tuple[str, ...] = ("contiguous",)
    limit: float | None = None
    model: bool = False
    code_limit: int | None = None

    def arrays(self) -> list[NDArray[Any]]:
        """The inputs, the same on every call and in every process."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [one.draw(random) for one in self.inputs]


def table(name: str) -> tuple[Case, ...]:
    """The cases of a comparison: "operators" or "models"."""
    if name == "operators":
        from benchmarks.operators import CASES
    else:
        from benchmarks.models import CASES
    return CASES


def find(family: str, name: str) -> Case:
    """A case by its full name."""
    return next(case for case in table(family) if case.name == name)


def selected(cases: Sequence[Case], parts: Sequence[str]) -> list[Case]:
    """The cases whose names contain one of ``parts``, ignoring case; all if ``parts`` is empty."""
    low = [part.lower() for part in parts]
    return [case for case in cases if not low or any(part in case.name.lower() for part in low)]
