"""Draw random programs: inputs of eight types, and calls that PyTorch accepts."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch

from fuzzing.eager.special import special_values
from fuzzing.modules.calls import CALLS, Draft
from fuzzing.modules.program import (
    ModuleProgram,
    Unspecified,
    apply,
    check_cast,
    check_range,
)

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_WEIGHTS = (8, 2, 3, 3, 3, 3, 2, 2)
_SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
_MOST_ELEMENTS = 4096
_TRIES = 60


def draw(seed: int) -> ModuleProgram:
    """Draw the program of a seed."""
    chance = random.Random(seed)
    dynamic = chance.random() < 0.4
    rank = chance.choice((0, 1, 2, 2, 3, 3, 4))
    shape = [chance.choice(_SIZES[1 if dynamic else 0 :]) for _ in range(rank)]
    dtype = chance.choices(DTYPES, _WEIGHTS)[0]
    draft = Draft(chance)
    for number in range(chance.randint(1, 3)):
        same = number == 0 or chance.random() < 0.6
        mine = dtype if same else chance.choices(DTYPES, _WEIGHTS)[0]
        tensor = _tensor(chance, _related(chance, shape), mine)
        draft.add_input(tensor, buffer=number > 0 and chance.random() < 0.4)
    wanted, tries = chance.randint(2, 10), 0
    while len(draft.calls) < wanted and tries < _TRIES:
        tries += 1
        _try(draft, chance)
    return ModuleProgram(
        tuple(draft.inputs),
        frozenset(draft.buffers),
        tuple(draft.calls),
        _outputs(draft, chance),
        dynamic,
    )


def _try(draft: Draft, chance: random.Random) -> None:
    """Draw one call; keep it if PyTorch accepts it and the result is small."""
    names, weights = zip(*((c, w) for c, w in CALLS.items()), strict=True)
    before = draft.mark()
    try:
        call = chance.choices(names, weights)[0](draft)
        check_cast(call, draft.values)
        check_range(call, draft.values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = apply(call, draft.values)
    except (
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        ZeroDivisionError,
        Unspecified,
        NotImplementedError,
    ):
        draft.reset(before)
        return
    if (
        not isinstance(result, torch.Tensor)
        or result.numel() > _MOST_ELEMENTS
        or result.dtype not in DTYPES
    ):
        draft.reset(before)
        return
    draft.calls.append(call)
    draft.values.append(result)


def _outputs(draft: Draft, chance: random.Random) -> tuple[int, ...]:
    """Indices of the outputs: the last value, and some others that are not inputs."""
    first, last = len(draft.inputs), len(draft.values) - 1
    others = [i for i in range(first, last) if chance.random() < 0.25]
    return (*others, last) if last >= first else (last,)


def _related(chance: random.Random, shape: list[int]) -> list[int]:
    """The shape itself, or one that broadcasts to it."""
    if chance.random() < 0.6:
        return list(shape)
    return [n if chance.random() < 0.6 else 1 for n in shape[chance.randint(0, len(shape)) :]]


def _tensor(chance: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Small integers, or multiples of 1/4 for floats; a third of the tensors has special values."""
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    low, high = (0, 9) if dtype is torch.uint8 else (-16, 17)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    result = torch.randint(low, high, shape, generator=generator)
    matches: Any = (result / 4).to(dtype) if dtype.is_floating_point else result.to(dtype)
    if chance.random() < 0.34 and matches.numel():
        values = special_values(dtype)
        flat = matches.view(-1)
        for _ in range(chance.randint(1, 3)):
            flat[chance.randrange(matches.numel())] = values[chance.randrange(len(values))]
    return matches
