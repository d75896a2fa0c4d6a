"""Validity and behaviour: what schedules make is valid, and what is valid does not race."""

from __future__ import annotations

import os

import pytest

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.support import InterpretError
from blockwright.testing.check import assert_same_meaning
from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player

SEEDS = range(400 if os.environ.get("BLOCKWRIGHT_FUZZ") else 24)
OFTEN = ("bind", "parallel", "split", "decompose_reduction", "atomic_update", "compute_at")
# Where a buffer lives may stand until the kernels around it are complete: not drawn here.
WITHOUT_SCOPES = {name: move for name, move in MOVES.items() if name != "set_scope"}


def scheduled(seed: int) -> Player:
    """A random program with loops run in parallel, bound, and updated atomically."""
    player = Player(random_program(seed), WITHOUT_SCOPES, seed, OFTEN)
    player.play(12)
    return player


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_makes_valid_programs(seed: int) -> None:
    """No step makes what the validator refuses: both look at the same program from two sides."""
    player = scheduled(seed)
    found = [d for d in find_violations(player.sch.func) if d.code != "BW238"]
    assert not found, f"{found[0].code}: {found[0].message}\n{player.sch.trace}"


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", SEEDS)
def test_a_valid_program_does_not_race(seed: int) -> None:
    """In any order of its parallel loops, watched by the interpreter."""
    player = scheduled(seed)
    if find_violations(player.sch.func):
        return
    code = _run(player.program, player.sch.func, seed)
    assert code in (None, "BW757"), player.sch.func  # the latter: threads that wait for each other


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", SEEDS)
def test_loops_made_parallel_against_the_rules_are_found(seed: int) -> None:
    """A loop is made parallel without asking. Where a run shows a race, the validator knew."""
    program = random_program(seed)
    for loop in ir.loops(program.body):
        if ir.is_const_int(loop.extent, 1):
            continue
        func = _in_parallel(program, loop)
        code = _run(program, func, seed)
        assert code in (None, "BW756")
        if code is not None:
            assert "BW240" in [d.code for d in find_violations(func)], func


def _run(before: ir.PrimFunc, after: ir.PrimFunc, seed: int) -> str | None:
    """The code of the error that the interpreter reports; None when both do the same."""
    try:
        assert_same_meaning(before, after, seed=seed)
    except InterpretError as error:
        return error.code
    return None


def _in_parallel(func: ir.PrimFunc, loop: ir.For) -> ir.PrimFunc:
    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.For) and node.loop_var is loop.loop_var:
            return node.replace(kind=ir.ForKind.PARALLEL)
        return None

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))
