"""How tiles are drawn: uniformly over all ways to write an extent as a product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from blockwright import ir
from blockwright.schedule.engine.state import StepState


def prime_powers(number: int) -> dict[int, int]:
    """The primes in a number with their exponents."""
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
    """All divisors, the smallest first."""
    result = [1]
    for prime, power in prime_powers(number).items():
        result = [d * prime**k for d in result for k in range(power + 1)]
    return sorted(result)


def count_tiles(extent: int, parts: int) -> int:
    """In how many ways an extent is a product of so many factors, order counting."""
    if parts == 0:
        return int(extent == 1)
    return math.prod(math.comb(e + parts - 1, parts - 1) for e in prime_powers(extent).values())


def draw_tile(
    random: Random, extent: int, parts: int, allowed: Callable[[int], bool] = lambda d: True
) -> list[int]:
    """Factors of an extent, each tile as likely as any other; `allowed` restricts the innermost."""
    if parts == 1:
        return [extent]
    inner = [d for d in divisors(extent) if allowed(d)]
    weights = [count_tiles(extent // d, parts - 1) for d in inner]
    (last,) = random.choices(inner, weights)
    return [*draw_tile(random, extent // last, parts - 1), last]


def constant_extent(state: StepState, loop: ir.For) -> int:
    """The extent of a loop whose perfect tiles can be listed."""
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


def require_parts(state: StepState, parts: int, least: int = 1) -> None:
    if parts < least:
        state.fail(
            f"a tile of {parts} factors is asked for",
            code="BW304",
            help=f"ask for at least {least}",
        )


def require_decision(
    state: StepState, loop: ir.For, decision: Sequence[int], fits: bool, rule: str
) -> None:
    """A decision that is given is one that could have been drawn."""
    if not fits:
        state.fail(
            f"the decision {list(decision)} for loop {loop.loop_var.name} breaks a rule: {rule}",
            code="BW318",
            guilty=[loop],
            help="give decision=None to draw another one",
        )
