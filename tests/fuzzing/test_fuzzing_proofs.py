"""Proofs of programs with an error put in: none is wrong, and the search finds faulty proofs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify.model import memory, operators
from blockwright.verify.prove import proof
from blockwright.verify.prove.safety import CheckedAccess, Safety
from fuzzing.proofs.features import feature_program
from fuzzing.proofs.wrong import difference_on_inputs, judge_features

OWN_APART = Safety._apart  # pyright: ignore[reportPrivateUsage]


def test_programs_are_reproducible_and_do_not_differ_from_themselves() -> None:
    for seed in range(12):
        func = feature_program(seed)
        assert ir.structural_equal(func, feature_program(seed))
        assert difference_on_inputs(func, func, tries=1) == ""


@pytest.mark.parametrize("first", [0, 2000, 3000])
def test_no_proof_of_a_mutant_is_wrong(first: int) -> None:
    found = judge_features(first)
    assert found.steps > 8
    assert found.wrong == []


def _stores_only(stmts: Any, root: memory.Root) -> set[ir.Buffer]:
    return {root(s.buffer) for stmt in stmts for s in ir.collect(stmt, ir.BufferStore)}


def _nothing(*_: Any) -> None: ...


def _unchanged(func: ir.PrimFunc, *_: Any) -> ir.PrimFunc:
    return func


def _all_lanes(self: Safety, touches: list[CheckedAccess], loop: Any) -> bool:
    return loop.kind is ir.ForKind.VECTORIZED and all(
        t.writes and t.statement.combiner for t in touches
    )


def _but_atomic(buffer: ir.Buffer, touches: list[CheckedAccess], loop: str) -> None:
    if not all(t.statement.atomic for t in touches):
        OWN_APART(buffer, touches, loop)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any], int]] = {
    "only stores change memory": (memory, "written", _stores_only, 25),
    "assertions are not compared": (proof, "_require_failures", _nothing, 5),
    "conditions on data protect nothing": (proof, "require_demands", _nothing, 15),
    "no reduction is empty": (proof, "with_empty_reductions", _unchanged, 25),
    "lanes always combine": (Safety, "_combine", _all_lanes, 195),
    "operands of atomic updates are atomic": (Safety, "_apart", staticmethod(_but_atomic), 25),
    "all types have a negative zero": (operators, "_has", lambda *_: True, 205),
}
"""A fault of the verifier, where it is put in, and the first of five programs that show it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_verifier_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, faulty, first = FAULTS[fault]
    operators._carries.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(where, name, faulty)
    try:
        assert judge_features(first).wrong
    finally:
        operators._carries.cache_clear()  # pyright: ignore[reportPrivateUsage]
