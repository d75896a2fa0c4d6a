"""Verdicts on programs with an error put in, compared with runs on many inputs."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.support import BlockwrightError
from blockwright.verify import Counterexample, verify
from blockwright.verify.prove.replay import differs
from fuzzing.feature_mutants import ALL, FEATURES
from fuzzing.mutants import mutant
from fuzzing.proofs.chunk import CHUNK, Verdicts
from fuzzing.proofs.features import feature_program

SIZES = (1, 2, 3, 6, 12)
"""Values of symbolic sizes. The smallest ones leave reductions without elements."""
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.1, float("inf"), float("-inf"), float("nan"), 1e30, 448.0)


def judge_features(first: int) -> Verdicts:
    """The verdicts on mutants of the programs of `CHUNK` seeds from `first` on, both ways."""
    result = Verdicts()
    for seed in range(first, first + CHUNK):
        chance = random.Random(seed)
        program = feature_program(seed)
        for _ in range(3):
            try:
                created = mutant(program, chance, FEATURES if chance.random() < 0.7 else ALL)
            except BlockwrightError:
                continue  # the changed program does not exist
            if created is None:
                continue
            name, other = created
            for before, after in ((program, other), (other, program)):
                _judge(result, f"seed {seed}", name, before, after)
    return result


def _judge(found: Verdicts, where: str, name: str, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    start = time.process_time()
    verdict = verify(before, after)
    found.note(name, verdict.verdict, verdict.why, time.process_time() - start)
    if verdict.verdict != "proved":
        return
    difference = difference_on_inputs(before, after)
    if difference:
        found.wrong.append(
            f"{where}: {name}: proved, but {difference}\n"
            f"--- before\n{before!r}\n--- after\n{after!r}"
        )


def difference_on_inputs(before: ir.PrimFunc, after: ir.PrimFunc, tries: int = 4) -> str:
    """How two programs differ for some arguments; empty if no tried ones show a difference."""
    symbolic = any(ir.const_int(n) is None for b in before.buffers for n in b.shape)
    for size in SIZES if symbolic else SIZES[:1]:
        for seed in range(tries):
            arrays = tuple(_array(b, size, seed) for b in before.buffers)
            example = Counterexample({}, (), arrays, "")
            try:
                text = differs(before, after, example)
            except BlockwrightError:
                continue  # the program before does not take these arguments
            if text is not None:
                return f"for n = {size} {text}" if symbolic else text
    return ""


def _array(buffer: ir.Buffer, size: int, seed: int) -> np.ndarray[Any, Any]:
    """Small numbers, special values in half of the arrays of floats, zeros among the integers."""
    shape = tuple(size if (n := ir.const_int(k)) is None else n for k in buffer.shape)
    rng = np.random.default_rng([seed, len(buffer.name), ord(buffer.name[0])])
    dtype = buffer.dtype
    if dtype.is_int:
        low, high = max(dtype.min_value, -3), min(dtype.max_value, 8)
        if seed % 2:
            low, high = max(dtype.min_value, 0), min(dtype.max_value, size)
        return rng.integers(low, high + 1, shape).astype(dtype.numpy())
    drawn: Any = rng.integers(-8, 9, shape) / 4
    if seed % 2:
        drawn = np.where(rng.random(shape) < 0.4, rng.choice(SPECIAL, shape), drawn)
    with np.errstate(all="ignore"):
        return drawn.astype(dtype.numpy())
