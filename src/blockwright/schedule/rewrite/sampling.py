"""Sample tile sizes, uniformly over all ordered factorizations of an extent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from blockwright import ir
from blockwright.analysis.validate.well_formed import MOST_LOOPS
from blockwright.schedule.engine.state import StepState


def prime_powers(number: int) -> dict[int, int]:
    """The prime factorization of a number: prime → exponent."""
    result: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            result[prime] = result.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        result[number] = result.get(number, 0) + 1
    return result


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    result = [1]
    for prime, power in prime_powers(number).items():
        result = [d * prime**k for d in result for k in range(power + 1)]
    return sorted(result)


def count_tiles(extent: int, parts: int) -> int:
    """The number of ordered factorizations of an extent into `parts` factors."""
    if parts == 0:
        return int(extent == 1)
    return math.prod(math.comb(e + parts - 1, parts - 1) for e in prime_powers(extent).values())


def draw_tile(
    random: Random, extent: int, parts: int, allowed: Callable[[int], bool] = lambda d: True
) -> list[int]:
    """Sample an ordered factorization uniformly; `allowed` restricts the innermost factor."""
    if parts == 1:
        return [extent]
    inner = [d for d in divisors(extent) if allowed(d)]
    weights = [count_tiles(extent // d, parts - 1) for d in inner]
    (last,) = random.choices(inner, weights)
    return [*draw_tile(random, extent // last, parts - 1), last]


def constant_extent(state: StepState, loop: ir.For) -> int:
    """The constant, positive extent of a loop; fails if there is none."""
    result = ir.const_int(loop.extent)
    if result is None:
        state.fail(
            f"the extent of loop {loop.loop_var.name} is symbolic: its divisors are not known",
            code="BW354",
            guilty=[loop],
            help="use sample_imperfect_tile, whose tiles need not divide",
        )
    if result < 1:
        state.fail(
            f"loop {loop.loop_var.name} does not run",
            code="BW318",
            guilty=[loop],
            help="choose a loop with an extent of at least 1",
        )
    return result


def require_parts(state: StepState, parts: int, minimum: int = 1) -> None:
    """Require a number of factors that a tile can have."""
    if not minimum <= parts <= MOST_LOOPS:
        state.fail(
            f"cannot sample a tile of {parts} factors",
            code="BW304",
            help=f"request {minimum} to {MOST_LOOPS}",
        )


def require_decision(
    state: StepState, loop: ir.For, decision: Sequence[int], fits: bool, rule: str
) -> None:
    """Require that a given decision is one that could have been sampled."""
    if not fits:
        state.fail(
            f"the decision {list(decision)} for loop {loop.loop_var.name} breaks a rule: {rule}",
            code="BW318",
            guilty=[loop],
            help="pass decision=None to sample another one",
        )
