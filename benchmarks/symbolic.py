"""Models compiled once for all sizes, compared with the same models compiled for each size.

Sizes are drawn at random from ranges of typical use. Both sides are ours and do the same
arithmetic; the comparison shows the cost of symbolic sizes: masked vectors and tiles, loop bounds
that are loaded, task counts computed at the call.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record
from benchmarks.built_for import NATIVE, built_for
from benchmarks.cases import Case, Input
from benchmarks.models import BASE, BERT_WORDS, GPT2_WORDS, MINILM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from blockwright.target import Target

MEDIAN, WORST = 1.05, 1.15
"""Bounds on a model's time with symbolic sizes, relative to known sizes."""
TOLERANCE = 1e-3
"""Largest difference of the two answers, which are the same sums in another order: logits of up to
a thousand products of random weights, each with a rounding error of 6e-8."""

_AT_ONCE = 10
"""Sizes per pair of processes: loaded code keeps its weights as long as its process lives."""


@dataclass(frozen=True)
class Model:
    """A model, its inputs with symbolic axes by name, and the range of each symbol."""

    name: str
    build: str
    inputs: tuple[tuple[int | str, ...], ...]
    ranges: Mapping[str, tuple[int, int]]
    settings: Mapping[str, Any]
    below: int = 0
    mask: bool = False

    def case(self, sizes: Mapping[str, int]) -> Case:
        """The case of given sizes."""
        shapes = [tuple(sizes.get(str(axis), axis) for axis in shape) for shape in self.inputs]
        arguments = [Input(tuple(map(int, shape))) for shape in shapes]
        if self.below:
            arguments[0] = replace(arguments[0], below=self.below)
        if self.mask:
            arguments[1] = replace(arguments[1], ones=True)
        return Case(self.name, self.build, tuple(arguments), self.settings, constant=True)

    def draw(self, count: int, seed: int) -> list[dict[str, int]]:
        """Random sizes, the same for the same seed."""
        random = np.random.default_rng(seed)
        return [
            {
                axis: int(random.integers(low, high, endpoint=True))
                for axis, (low, high) in self.ranges.items()
            }
            for _ in range(count)
        ]


TEXT = {"batch": (1, 8), "length": (8, 256)}
MODELS: tuple[Model, ...] = (
    Model("MiniLM", "transformer.bert", (("batch", "length"),) * 2, TEXT,
          {**MINILM, "pooled": True}, BERT_WORDS, mask=True),
    Model("BERT-base", "transformer.bert", (("batch", "length"),) * 2,
          {"batch": (1, 4), "length": (16, 192)}, BASE, BERT_WORDS, mask=True),
    Model("ViT-B/16", "transformer.vit", (("batch", 3, 224, 224),), {"batch": (1, 4)}, {}),
    Model("GPT-2 prefill", "transformer.gpt2", ((1, "length"),), {"length": (8, 256)}, BASE,
          GPT2_WORDS),
    Model("GPT-2 decode", "transformer.gpt2_step", ((1, 1), (12, 2, 1, 12, "past", 64)),
          {"past": (16, 768)}, BASE, GPT2_WORDS),
    Model("ResNet-50", "convnets.resnet50", (("batch", 3, 224, 224),), {"batch": (1, 8)}, {}),
    Model("MobileNetV2", "convnets.mobilenet_v2", (("batch", 3, 224, 224),), {"batch": (1, 8)}, {}),
)  # fmt: skip


class Compiled:
    """Ours, compiled for all sizes at once or anew for every point."""

    def __init__(self, options: Mapping[str, Any], symbolic: bool) -> None:
        import blockwright as bw

        bw.set_num_threads(options["threads"])
        self._target = built_for(options["target"])
        self._symbolic = symbolic
        self._made: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        return {"symbolic": self._symbolic}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        model = next(model for model in MODELS if model.name == point["model"])
        case = model.case(point["sizes"])
        arrays = case.arrays()
        if not self._symbolic:
            exe = compiled(case, None, self._target)
        else:
            if model.name not in self._made:
                sizes = {axis: min(low + 3, high) for axis, (low, high) in model.ranges.items()}
                self._made = {model.name: compiled(model.case(sizes), model, self._target)}
            exe = self._made[model.name]
        return lambda: exe(*arrays)


def compiled(case: Case, model: Model | None, target: Target) -> Any:
    """The case's module, compiled; with a model, for all sizes in its ranges."""
    import torch

    import blockwright as bw
    from benchmarks.modules import build

    dynamic = None
    if model is not None:
        dims = {
            axis: torch.export.Dim(axis, min=low, max=high)
            for axis, (low, high) in model.ranges.items()
        }
        dynamic = tuple(
            {place: dims[axis] for place, axis in enumerate(shape) if isinstance(axis, str)}
            for shape in model.inputs
        )
    examples = [torch.from_numpy(array) for array in case.arrays()]
    return bw.compile(
        build(case), examples, target=target, dynamic_shapes=dynamic, options={"fallback": "error"}
    )


PEERS = {
    "static": partial(Compiled, symbolic=False),
    "symbolic": partial(Compiled, symbolic=True),
}


def main(
    only: Sequence[str],
    shapes: int,
    threads: int,
    settings: harness.Settings,
    target: str = NATIVE,
) -> bool:
    """Time the models at random sizes, print a line for each; return whether the bounds hold.

    Sizes that miss their bound are timed once more: they miss it only if they do so both times.
    """
    options = {"threads": threads, "target": target}
    peers = [harness.Peer(name, options, sys.executable) for name in PEERS]
    timing = replace(settings, rounds=3, budget_s=0.3)
    before = harness.machine()
    found: list[dict[str, Any]] = []
    reached = True
    for model in MODELS:
        if only and not any(part.lower() in model.name.lower() for part in only):
            continue
        points = [{"model": model.name, "sizes": sizes} for sizes in model.draw(shapes, seed=0)]
        results = _timed(peers, points, threads, timing)
        missed = [at for at, result in enumerate(results) if _ratio(result) > WORST]
        for at, again in zip(
            missed, _timed(peers, [points[at] for at in missed], threads, timing), strict=True
        ):
            results[at] = min(results[at], again, key=_ratio)
        ratios = sorted(map(_ratio, results))
        middle, worst = statistics.median(ratios), ratios[-1]
        holds = middle <= MEDIAN and worst <= WORST
        reached &= holds
        print(
            f"{model.name}: median {middle:.3f} (bound {MEDIAN}), worst {worst:.3f} "
            f"(bound {WORST}) over {len(ratios)} sizes{'' if holds else ': missed'}",
            flush=True,
        )
        found += [result.as_json() for result in results]
    name = record.name_of("symbolic", threads, target)
    record.write(name, before, {"target": target, "points": found})
    return reached


def _timed(
    peers: Sequence[harness.Peer],
    points: Sequence[Mapping[str, Any]],
    threads: int,
    settings: harness.Settings,
) -> list[harness.PointResult]:
    results: list[harness.PointResult] = []
    for first in range(0, len(points), _AT_ONCE):
        results += harness.compare(
            "symbolic",
            peers,
            points[first : first + _AT_ONCE],
            threads=threads,
            tolerance=TOLERANCE,
            settings=settings,
            on_point=_show,
        )[0]
    return results


def _ratio(result: harness.PointResult) -> float:
    return result.ratio("symbolic", "static")


def _show(result: harness.PointResult) -> None:
    sizes = ", ".join(f"{axis} {size}" for axis, size in result.point["sizes"].items())
    times = ", ".join(
        f"{name} {timing.median * 1e3:.3f} ms ±{timing.spread:.0%}"
        for name, timing in result.timings.items()
    )
    print(f"  {result.point['model']}, {sizes}: {times}, ratio {_ratio(result):.3f}", flush=True)
