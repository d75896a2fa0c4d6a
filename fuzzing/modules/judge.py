"""Classify a program: same as PyTorch, refused, wrong, or internal error."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from fuzzing.eager.compare import (
    copied,
    difference,
    in_float64,
    integers_become_float64,
    leaves,
    same_bits,
)
from fuzzing.eager.outcome import Outcome, called, compiled, export
from fuzzing.eager.sizes import every_size_dynamic, other_sizes
from fuzzing.modules.program import ModuleProgram, RandomModule, Unspecified, run

_CALLS = 3
"""Number of calls of a module with state."""

_RUNS = 16
"""Number of runs by PyTorch with different rounding if results differ."""


def judge(program: ModuleProgram) -> Outcome:
    """Compile a program and compare it with PyTorch, also at other sizes if they are symbolic."""
    given = program.given
    if _eager(program, program.inputs, specified=True) is None:
        return Outcome("eager")
    shapes = (tuple(every_size_dynamic(t) for t in given),) if program.dynamic else None
    exported = export(RandomModule(program), tuple(copied(given)), shapes)
    if isinstance(exported, Outcome):
        return exported
    executable = compiled(exported)
    if isinstance(executable, Outcome):
        return executable
    verdict = _compare(program, executable, given)
    for step in (1, -1, 12) if program.dynamic else ():
        if verdict.what == "passed":
            other = other_sizes(exported, given, step)
            verdict = verdict if other is None else _compare(program, executable, other)
    return verdict


def _eager(
    program: ModuleProgram,
    inputs: Sequence[Any],
    seed: int | None = None,
    *,
    specified: bool = False,
) -> Any:
    chance = None if seed is None else torch.Generator().manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(program, inputs, chance, specified=specified)
    except (
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        ZeroDivisionError,
        Unspecified,
        NotImplementedError,
    ):
        return None


def _compare(program: ModuleProgram, executable: Any, given: list[torch.Tensor]) -> Outcome:
    """Judge a call, and two more where the module changes its buffers, which are then state.

    PyTorch begins each call with the buffers that the compiled module has. A call that PyTorch
    rejects passes.
    """
    state = dict(getattr(executable, "state", {}))
    for _ in range(_CALLS if state else 1):
        now = tuple(
            state[f"b{i}"].clone() if f"b{i}" in state else t for i, t in enumerate(program.inputs)
        )
        verdict = _compare_call(msgspec.structs.replace(program, inputs=now), executable, given)
        if verdict.what != "passed":
            return verdict
    return Outcome("passed")


def _compare_call(program: ModuleProgram, executable: Any, given: list[torch.Tensor]) -> Outcome:
    inputs = program.with_given(given)
    count = len(program.outputs)
    program = _with_inputs_as_outputs(program)
    expected = _eager(program, inputs, specified=True)
    if expected is None:
        return Outcome("passed")
    passed = copied(given)
    actual = called(executable, tuple(passed))
    if isinstance(actual, Outcome):
        return actual
    state = getattr(executable, "state", {})
    buffers = [state.get(f"b{i}", program.inputs[i]) for i in sorted(program.buffers)]
    for before, after, wanted in zip(given, passed, expected[count:], strict=False):
        if same_bits([before], [wanted]) and not same_bits([before], [after]):
            return Outcome("wrong", "inputs", "the call changed an input that PyTorch does not")
    with integers_become_float64():
        wide = _eager(program, in_float64(list(inputs)))
    result = [*leaves(actual), *passed, *copied(buffers)]
    text = difference(result, expected, wide)
    if text and "differs" in text:
        text = difference(result, expected, wide, _free(program, inputs, result, expected, wide))
    if not text:
        return Outcome("passed")
    return Outcome("wrong", "" if "differs" in text else "kind", text)


def _with_inputs_as_outputs(program: ModuleProgram) -> ModuleProgram:
    """The program whose outputs include the inputs, then the buffers, as they are after it."""
    given = (i for i in range(len(program.inputs)) if i not in program.buffers)
    outputs = (*program.outputs, *given, *sorted(program.buffers))
    return msgspec.structs.replace(program, outputs=outputs)


def _free(
    program: ModuleProgram, inputs: Sequence[Any], actual: Any, expected: Any, wide: Any
) -> list[Any]:
    """Masks of the elements to ignore.

    Either other roundings explain the difference, or our result is not finite and PyTorch's
    overflowed as well, so that its float64 run disagrees.
    """
    runs = [_eager(program, inputs, seed) for seed in range(_RUNS)]
    runs = [r for r in runs if r is not None]
    masks: list[Any] = []
    for number, (x, y) in enumerate(zip(actual, expected, strict=True)):
        others = torch.stack([y, *[r[number] for r in runs if r[number].shape == y.shape]])
        if not y.is_floating_point():
            masks.append((others != y).any(0))
            continue
        others, x = others.to(torch.float64), x.to(torch.float64)
        low, high = others.min(0).values, others.max(0).values
        span = 3 * (high - low)
        unsettled = ~torch.isfinite(others).all(0) & ~torch.isclose(
            others, others[:1].expand_as(others), equal_nan=True
        ).all(0)
        masks.append(unsettled | ((x >= low - span) & (x <= high + span)))
        if wide is not None and wide[number].shape == y.shape:
            overflown = ~torch.isclose(others[0], wide[number].to(torch.float64), 0.1, 0.1)
            masks[-1] |= overflown & ~torch.isfinite(x)
    return masks
