"""Copies of an analyzer share what they have worked out, and never what one of them learned."""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer


def _symbols(*names: str) -> list[ir.Var]:
    return [ir.Var(name, ir.dtype_of("int32")) for name in names]


def test_what_a_copy_learns_the_others_do_not_know() -> None:
    i, n = _symbols("i", "n")
    known = Analyzer()
    first, second = known.copy(), known.copy()
    first.bind(i, ir.Range(ir.const(0, "int32"), n))
    assert first.prove(i < n)
    assert not known.prove(i < n)
    assert not second.prove(i < n)


def test_copies_that_learn_the_same_differ_in_what_they_learn_next() -> None:
    i, n = _symbols("i", "n")
    known = Analyzer()
    first, second = known.copy(), known.copy()
    for each in (first, second):
        each.bind(i, ir.Range(ir.const(0, "int32"), n))
    second.learn(n <= 4)
    assert second.prove(i < 4)
    assert not first.prove(i < 4)
    third = known.copy()
    third.bind(i, ir.Range(ir.const(0, "int32"), n))
    assert not third.prove(i < 4)


def test_the_original_learns_on_after_a_copy_was_made() -> None:
    i, n = _symbols("i", "n")
    known = Analyzer({i: ir.Range(ir.const(0, "int32"), n)})
    before = known.copy()
    assert not known.prove(i < 4)
    known.learn(n <= 4)
    assert known.prove(i < 4)
    assert not before.prove(i < 4)


def test_an_assumption_ends_for_all() -> None:
    i, n = _symbols("i", "n")
    known = Analyzer({i: ir.Range(ir.const(0, "int32"), n)})
    for _ in range(2):
        with known.assume(n <= 4):
            assert known.prove(i < 4)
        assert not known.prove(i < 4)


def test_a_variable_forgotten_is_forgotten_every_time() -> None:
    i, j, n = _symbols("i", "j", "n")
    known = Analyzer(
        {
            i: ir.Range(ir.const(0, "int32"), n),
            j: ir.Range(ir.const(0, "int32"), ir.const(4, "int32")),
        }
    )
    for _ in range(2):
        less = known.without([i])
        assert not less.prove(i < n)
        assert less.prove(j < 4)
    assert known.without([n]).prove(j < 4)
    assert known.without(_symbols("k")).prove(i < n)


def test_a_fresh_start_knows_the_same_and_shares_nothing() -> None:
    i, n = _symbols("i", "n")
    known = Analyzer({i: ir.Range(ir.const(0, "int32"), n)})
    own = known.afresh()
    assert own.prove(i < n)
    own.learn(n <= 4)
    assert own.prove(i < 4)
    assert not known.prove(i < 4)
