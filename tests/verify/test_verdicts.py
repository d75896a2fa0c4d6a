"""Verdicts: what they say, that they repeat, and what a schedule makes of them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

pytest.importorskip("islpy")

import blockwright as bw
from blockwright import ir
from blockwright.script.compute import Program
from blockwright.support import OptionError, ScheduleError
from blockwright.verify import Verdict, verify
from blockwright.verify.prove import proof
from blockwright.verify.prove.replay import differs
from fuzzing.proofs import chunk
from fuzzing.proofs.chunk import ProofSettings, judge
from tests.verify.pairs import matmul, program, tiled

SCALED = """
@T.prim_func
def main(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32"), s: T.float32,
         t: T.float32):
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * s + t
"""


def test_public_name_and_truth_value() -> None:
    assert bw.verify(matmul(), tiled())
    assert not bw.verify(matmul(), tiled(init=False))


def test_a_refutation_names_sizes_and_inputs() -> None:
    before, after = matmul("n"), tiled("n", guard="i0 * 8 + i1 < n and k0 * 8 + k1 < n - 9")
    verdict = verify(before, after)
    assert verdict.verdict == "refuted"
    example = verdict.counterexample
    assert example is not None
    n = example.sizes["n"]
    assert [a.shape for a in example.arrays] == [(n, n)] * 3
    assert differs(before, after, example) == example.difference
    assert differs(before, before, example) is None


def test_numbers_that_a_program_is_called_with_are_values() -> None:
    func = bw.from_source(SCALED)
    sch = bw.Schedule(func, verify="prove")
    sch.reorder(*reversed(sch.get_loops(sch.get_block("B"))))
    wrong = verify(func, bw.from_source(SCALED.replace("* s + t", "* t + s")))
    assert wrong.verdict == "refuted"
    assert wrong.counterexample is not None
    assert len(wrong.counterexample.scalars) == 2


def test_the_same_verdict_on_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "UNITS", 60_000)
    (found,) = {(v.verdict, v.why) for v in (verify(matmul(), tiled()) for _ in range(3))}
    assert found[0] == "unknown"
    assert found[1].startswith("the budget of operations is spent: ")


def test_what_is_not_decided_is_said() -> None:
    text = (
        "for i in range(8):\n    with T.block('C'):\n        vi = T.axis.spatial(8, i)\n"
        "        C[vi] = {value}"
    )
    a, b, c, d = (
        program("A[8]; C[8]", text.format(value=v))
        for v in (
            "A[vi] * T.float32(2)",
            "A[vi] + A[vi]",
            "(A[vi] + A[7 - vi]) + A[0]",
            "A[vi] + (A[7 - vi] + A[0])",
        )
    )
    verdict = verify(a, b)
    assert verdict.verdict == "unknown"
    assert "before and" in verdict.why
    assert verify(c, d).verdict == "unknown"  # no reduction: additions keep their order
    effects = program(
        "A[8]; C[8]",
        "T.evaluate(T.call_extern('int32', 'f', A.data))\n"
        "for i in range(8):\n    with T.block('C'):\n"
        "        vi = T.axis.spatial(8, i)\n        C[vi] = A[vi]",
    )
    verdict = verify(effects, a)
    assert verdict.verdict == "unknown"
    assert "call of call_extern" in verdict.why


def test_a_position_kept_in_two_places_is_not_decided() -> None:
    p = Program("least")
    x = p.param("x", (4, 8), "float32")
    made = p.reduce_tuple(
        ("low", "at"), (4,), (8,), lambda i, k: (x[i, k], k), "argmin", ("float32", "int64")
    )
    sch = bw.Schedule(p.finish(made, {"num_outputs": 2}))
    rows, _ = sch.get_loops(sch.get_block("low"))
    _, rest = sch.loop_partition(rows, [2])
    (update,) = sch.get_child_blocks(rest)
    sch.decompose_reduction(update, sch.get_loops(update)[1])
    before = sch.func
    sch.cache_inplace(update, "at", "global")  # some rows of `low` go with `at`, some with the copy
    verdict = verify(before, sch.func)
    assert verdict.verdict == "unknown"
    assert verdict.why == "at is sometimes updated jointly with a different buffer"


def test_other_arguments_are_not_compared() -> None:
    assert verify(matmul("20"), matmul("16")).verdict == "refuted"  # its call fails
    assert verify(matmul("20"), matmul("n")).verdict == "unknown"
    assert (
        verify(program("A[8]; C[8]", "for i in range(8):\n    C[i] = A[i]"), matmul()).verdict
        == "unknown"
    )


def test_what_is_no_program_and_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = ir.IRModule({})
    with pytest.raises(OptionError, match="cannot verify a IRModule") as caught:
        verify(matmul(), wrong)
    assert caught.value.code == "BW902"
    find = importlib.util.find_spec

    def without(name: str) -> Any:
        return None if name == "islpy" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(OptionError, match="islpy") as caught:
        verify(matmul(), tiled())
    assert caught.value.code == "BW926"
    assert "blockwright[prove]" in str(caught.value)


def test_a_schedule_whose_steps_are_proved() -> None:
    sch = bw.Schedule(matmul("n"), verify="prove")
    i, j, k = sch.get_loops(sch.get_block("C"))
    _, i1 = sch.split(i, [None, 8])
    k0, _ = sch.split(k, [None, 4])
    sch.reorder(k0, i1)
    sch.decompose_reduction(sch.get_block("C"), k0)
    sch.cache_read(sch.get_block("C"), 1, "local")
    sch.parallel(j)
    assert verify(matmul("n"), sch.func)


def test_a_step_that_is_refuted_is_refused() -> None:
    sch = bw.Schedule(tiled("20"), verify="prove")
    before = sch.func
    with pytest.raises(ScheduleError, match="changes what the program computes") as caught:
        sch.unsafe.drop_predicate(sch.get_block("C"))
    assert caught.value.code == "BW390"
    assert sch.func is before
    assert len(sch.trace) == 1  # get_block alone


def test_a_step_that_cannot_be_proved_is_refused() -> None:
    text = """
        B = T.alloc_buffer((8,), "float32")
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * T.float32(2)
        for i in range(8):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                C[vi] = B[vi]
    """
    sch = bw.Schedule(program("A[8]; C[8]", text), verify="prove")
    before = sch.func
    with pytest.raises(ScheduleError, match="cannot be proved") as caught:
        sch.unsafe.set_dtype(sch.get_block("B"), 0, "float16")
    assert caught.value.code == "BW391"
    assert sch.func is before


def test_a_judged_step_is_what_its_primitive_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what a move does first to make it possible, which the step may undo."""
    pairs: list[tuple[ir.PrimFunc, ir.PrimFunc]] = []

    def seen(before: ir.PrimFunc, after: ir.PrimFunc) -> Verdict:
        pairs.append((before, after))
        return Verdict("proved")

    monkeypatch.setattr(chunk, "verify", seen)
    judge(0, ProofSettings(only="merge_reduction", sizes="static"))
    blocks = [[len(ir.blocks(func.body)) for func in pair] for pair in pairs]
    assert blocks
    assert all(before == after + 1 for before, after in blocks)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", [0, 100, 200])
def test_random_steps_are_not_refuted(first: int) -> None:
    found = judge(first, ProofSettings(length=6))
    assert found.wrong == []
    verdicts = sum(
        (c for c in found.counts.values()), start=type(next(iter(found.counts.values())))()
    )
    assert verdicts["proved"] >= 0.8 * verdicts.total()


@pytest.mark.fuzz
@pytest.mark.parametrize("first", [300, 400])
def test_errors_put_into_random_programs_are_not_proved(first: int) -> None:
    assert judge(first, ProofSettings(length=6, mutants=True)).wrong == []
