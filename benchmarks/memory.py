"""The memory of a call: planned, measured, and what other ways to allocate would take.

Models are compiled once for all sizes in a range. At five sizes each, the bytes that the code takes
in a call on one thread are counted and must be exactly those of the memory plan. It is compared
with four ways to allocate, each value at its actual size, results included:

- unshared: every value of the compiled graph has memory of its own; freed memory is not used again;
- pooled: a freed block serves a later value of the same size, as in pools of run-time systems;
- live: freed after the last use and used again without loss: the peak of the bytes alive together;
- operators: the same for the graph before operators are fused, as it runs without a compiler: one
  kernel for each operator, which allocates its result. Temporary buffers of a kernel are not
  counted, and views take no memory. This is given with and without the results of the call, which
  the caller keeps: without them, the plan takes its arena.

The first three are `MemoryUse`: sums of the sizes of the values that the plan places.

``python -m benchmarks.memory [--small] [NAME…]``
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.built_for import NATIVE, built_for
from benchmarks.models import BERT_WORDS, LARGE
from benchmarks.modules import build
from benchmarks.symbolic import MODELS as TIMED
from benchmarks.symbolic import Model, compiled
from blockwright import ir
from blockwright.passes.host.liveness import live_ranges
from blockwright.passes.host.size_order import exact_bytes
from blockwright.passes.host.size_text import size_text
from blockwright.passes.rewrite import graph_functions
from blockwright.runtime.sizes import bind_symbols, evaluate_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHAPES = 5
BEFORE_FUSION = "annotate_patterns"  # the first pass of the fusion stage
WORDS = 32000
LLAMA: dict[str, Any] = {"layers": 2, "width": 2048, "heads": 32, "shared": 4, "hidden": 5632}
"""The widths of a model of 1.1 billion numbers with 22 layers. Its activations take the memory of
one layer, except for the keys and values that a step returns."""

MODELS: tuple[Model, ...] = (
    *TIMED,
    Model("BERT-large", "transformer.bert", (("batch", "length"),) * 2,
          {"batch": (1, 4), "length": (16, 192)}, LARGE, BERT_WORDS, mask=True),
    Model("Llama prefill", "llama.llama", ((1, "length"),), {"length": (8, 256)}, LLAMA, WORDS),
    Model("Llama decode", "llama.llama_step", ((1, 1), (2, 2, 1, 4, "past", 64)),
          {"past": (16, 768)}, LLAMA, WORDS),
    Model("U-Net", "vision.unet", (("batch", 3, 64, 64),), {"batch": (1, 8)},
          {"width": 16, "levels": 4}),
    Model("Mixer", "vision.mixer", (("batch", 3, 224, 224),), {"batch": (1, 8)},
          {"side": 224, "width": 256, "layers": 4}),
)  # fmt: skip

_TEXT = {"layers": 1, "width": 32, "heads": 2, "hidden": 64, "words": 100}
_SHORT = {"layers": 1, "width": 32, "heads": 2, "shared": 1, "hidden": 48, "words": 100}
SMALL: tuple[Model, ...] = (
    Model("MiniLM", "transformer.bert", (("batch", "length"),) * 2,
          {"batch": (1, 4), "length": (2, 40)}, {**_TEXT, "pooled": True}, 100, mask=True),
    Model("BERT-base", "transformer.bert", (("batch", "length"),) * 2,
          {"batch": (1, 4), "length": (2, 40)}, _TEXT, 100, mask=True),
    Model("BERT-large", "transformer.bert", (("batch", "length"),) * 2,
          {"batch": (1, 4), "length": (2, 40)}, {**_TEXT, "layers": 2}, 100, mask=True),
    Model("ViT-B/16", "transformer.vit", (("batch", 3, 32, 32),), {"batch": (1, 9)},
          {"layers": 1, "width": 32, "heads": 2, "hidden": 64, "side": 32}),
    Model("GPT-2 prefill", "transformer.gpt2", ((1, "length"),), {"length": (2, 60)}, _TEXT, 100),
    Model("GPT-2 decode", "transformer.gpt2_step", ((1, 1), (1, 2, 1, 2, "past", 16)),
          {"past": (2, 60)}, _TEXT, 100),
    Model("Llama prefill", "llama.llama", ((1, "length"),), {"length": (2, 60)}, _SHORT, 100),
    Model("Llama decode", "llama.llama_step", ((1, 1), (1, 2, 1, 1, "past", 16)),
          {"past": (2, 60)}, _SHORT, 100),
    Model("ResNet-50", "convnets.resnet50", (("batch", 3, 32, 32),), {"batch": (1, 6)},
          {"width": 8, "depths": (1, 1)}),
    Model("MobileNetV2", "convnets.mobilenet_v2", (("batch", 3, 32, 32),), {"batch": (1, 6)},
          {"stages_used": 2}),
    Model("U-Net", "vision.unet", (("batch", 3, 16, 16),), {"batch": (1, 6)},
          {"width": 4, "levels": 2}),
    Model("Mixer", "vision.mixer", (("batch", 3, 32, 32),), {"batch": (1, 6)},
          {"side": 32, "width": 16, "layers": 1}),
)  # fmt: skip
"""The same architectures with little work."""


@dataclass(frozen=True)
class Row:
    """A call: its sizes, and bytes.

    Attributes:
        measured: taken by the code; planned: what the plan says.
        use: what the values alone take, as planned and with other allocators (`MemoryUse`).
        operators: what they take if operators are not fused.
        arena: what the plan takes besides the results; apart: `operators` without the results.
        values: sizes of the values, for allocators that serve several calls.
        error: largest difference to PyTorch, relative to the largest number.
    """

    sizes: dict[str, int]
    measured: int
    planned: int
    use: Any
    operators: int
    arena: int
    apart: int
    values: Counter[int]
    error: float


def rows(model: Model, shapes: int = SHAPES, target: str = NATIVE) -> list[Row]:
    """The model compiled for all sizes, called at some of them."""
    import blockwright as bw

    largest = {axis: high for axis, (_, high) in model.ranges.items()}
    module = build(model.case(largest))
    bw.set_num_threads(1)
    first = {axis: min(low + 3, high) for axis, (low, high) in model.ranges.items()}
    exe = compiled(model.case(first), model, built_for(target))
    result: list[Row] = []
    for sizes in (largest, *model.draw(shapes - 1, seed=0)):
        arrays = model.case(sizes).arrays()
        plan = exe.memory_plan
        use = plan.use(*arrays)
        measured, planned = exe.measure_memory(*arrays), plan.activation_bytes(*arrays)
        assert plan.upper_bound is not None
        assert planned <= plan.upper_bound
        error = _error(exe(*arrays), module, arrays)
        symbols = bind_symbols(
            [
                (p.shape, array.shape)
                for p, array in zip(exe.signature.parameters, arrays, strict=True)
            ]
        )
        with_results, apart = (operators(exe, symbols, results) for results in (True, False))
        arena, pool = evaluate_size(plan.arena, symbols), plan.pool(*arrays)
        result.append(Row(sizes, measured, planned, use, with_results, arena, apart, pool, error))
    return result


def operators(exe: Any, symbols: Mapping[str, int], results: bool) -> int:
    """Bytes that a call takes if each operator allocates its result, freed after its last use.

    Arguments: `results` of the call are counted, or not.
    """
    run = next(run for run in exe.passes.runs if run.name == BEFORE_FUSION)
    (function,) = (f for _, f in graph_functions(run.before) if "global_symbol" in f.attrs)
    live = live_ranges(function, run.before)
    end = len(function.bindings)
    changes = [0] * (end + 1)
    for value, first in live.first.items():
        info = value.info
        if isinstance(info, ir.TensorInfo) and (results or value not in live.results):
            size = evaluate_size(size_text(exact_bytes(info)), symbols)
            changes[first] += size
            changes[end if value in live.results else live.last[value] + 1] -= size
    return max(itertools.accumulate(changes))


def _error(found: Any, module: Any, arrays: Sequence[Any]) -> float:
    import torch

    with torch.inference_mode():
        expected = module(*(torch.from_numpy(array) for array in arrays))
    pairs = (
        zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    )
    return max(
        float(np.abs(ours - theirs.numpy()).max() / theirs.abs().max()) for ours, theirs in pairs
    )


def over_calls(found: Sequence[Row]) -> tuple[int, int]:
    """Bytes for all calls in turn: the largest plan, and a pool that keeps freed blocks for values
    of the same size."""
    pool = Counter[int]()
    for row in found:
        pool |= row.values
    return max(row.use.planned for row in found), sum(size * n for size, n in pool.items())


def main(names: Sequence[str], small: bool, target: str = NATIVE) -> bool:
    """Print a line for each call, and how much less the plans take; whether all plans are exact."""
    exact = True
    for model in SMALL if small else MODELS:
        if names and not any(name.lower() in model.name.lower() for name in names):
            continue
        found = rows(model, target=target)
        print(f"{model.name}")
        for row in found:
            exact &= row.measured == row.planned
            sizes = ", ".join(f"{axis} {size}" for axis, size in row.sizes.items())
            print(
                f"  {sizes}: measured {row.measured}, planned {row.planned}; values "
                f"{row.use.planned}: {_less(row.use.planned, row.use.unshared)} than unshared, "
                f"{_less(row.use.planned, row.use.pooled)} than pooled, "
                f"{_less(row.use.planned, row.use.live)} than live, "
                f"{_less(row.use.planned, row.operators)} than operators; without results "
                f"{row.arena}: {_less(row.arena, row.apart)} than operators",
                flush=True,
            )
        planned, pooled = over_calls(found)
        print(f"  all calls: {planned}, {_less(planned, pooled)} than a pool", flush=True)
    if not exact:
        print("missed: a measured peak is not the planned one")
    return exact


def _less(ours: int, other: int) -> str:
    return f"{100 * (1 - ours / max(other, 1)):.1f} % less"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models whose names contain NAME")
    parser.add_argument("--small", action="store_true", help="small models of the same kinds")
    parser.add_argument("--target", default=NATIVE, help="instruction set (native)")
    options = parser.parse_args()
    sys.exit(0 if main(options.names, options.small, options.target) else 1)
