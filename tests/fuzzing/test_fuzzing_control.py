"""Random programs whose control flow reads what they write: fixed seeds, and faults put in."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from blockwright import ir
from fuzzing.control.campaign import play
from fuzzing.control.draw import draw, script


def test_programs_mean_the_same_in_compiled_code() -> None:
    found = [play(seed) for seed in range(12)]
    assert {result.verdict.what for result in found} <= {"passed", "refused"}
    assert sum(result.verdict.what == "passed" for result in found) > 9


def test_seeds_stand_for_programs_with_every_construct() -> None:
    texts = [script(draw(seed)) for seed in range(100)]
    assert texts[:5] == [script(draw(seed)) for seed in range(5)]
    together = "\n".join(texts)
    for words in (
        "T.vectorized", "T.parallel", "T.where", "T.match_buffer", "T.alloc_buffer", "else:",
        "T.decl_buffer", "T.atomic_min", "T.axis.opaque", "in range(T.min(",
    ):  # fmt: skip
        assert words in together, words


def _no_value_of(*_: object) -> bool:
    return False


def _nothing_changes(func: ir.PrimFunc) -> Callable[..., bool]:
    return _no_value_of


def test_masks_that_are_evaluated_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.lower.vectorize._Body._reads_any", _no_value_of)
    assert _finding("T.vectorized")


def test_bounds_that_are_evaluated_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.lower.blocks.changes_in", _nothing_changes)
    assert _finding("", first=14)


def _finding(words: str, first: int = 0) -> bool:
    """Whether one of some programs is a finding, with a script that shows it."""
    for seed in range(first, first + 60):
        if words not in script(draw(seed)):
            continue
        result = play(seed)
        if result.verdict.is_finding:
            ast.parse(result.script)
            assert words in result.script
            return True
    return False
