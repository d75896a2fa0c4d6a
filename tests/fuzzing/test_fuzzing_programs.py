"""Random low-level programs: fixed seeds, and faults that are put in."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from blockwright import ir
from fuzzing.programs import campaign
from fuzzing.programs.campaign import play
from fuzzing.programs.draw import draw, script
from fuzzing.programs.judge import judge_text
from fuzzing.schedules import lowering
from fuzzing.statements import Statement

HEAD = """@I.ir_module
class Module:
    @T.prim_func
    def main(J: T.Buffer((12,), "int32"), A: T.Buffer((12,), "int32"), k: T.int32):
        """


def test_programs_mean_the_same_at_every_stage() -> None:
    found = [play(seed).verdict.what for seed in range(4)]
    assert set(found) <= {"passed", "refused"}
    assert found.count("passed") > 2


def test_seeds_stand_for_programs_with_every_construct() -> None:
    texts = [script(draw(seed)) for seed in range(150)]
    assert texts[:5] == [script(draw(seed)) for seed in range(5)]
    together = "\n".join(texts)
    for words in (
        "T.checked_index", "T.checked_divisor", "T.atomic_", "T.Let(", "elem_offset=", "strides=",
        "T.address_of", "Module.f1(", "tir.noalias", "T.alloc_buffer", "break", "continue",
        "while ", "T.ret()", "assert ", "T.where", "T.init()", "T.parallel", "T.vectorized",
        "T.unroll", "T.if_then_else", "T.Select", "tir_var_lower_bound", "2147483647",
        ", 2):",
    ):  # fmt: skip
        assert words in together, words


def test_a_pass_that_goes_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = HEAD + (
        "for i in range(T.min(J[(k << 7) % 12], 8)):\n            J[i + 4] = 9\n"
        "            A[i] = A[i] + 1\n"
    )
    assert judge_text(text, 1).what == "passed"
    passes = [entry for entry in lowering.LOWERING if entry[0] != "fix_sorts"]
    monkeypatch.setattr(lowering, "LOWERING", passes)
    verdicts = [judge_text(text, seed).symptom for seed in range(1, 9)]
    assert "wrong AssertionError after lower_blocks" in verdicts


def test_what_does_not_matter_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(func: ir.PrimFunc, *others: Any) -> ir.PrimFunc:
        def change(node: ir.Node) -> ir.Node | None:
            seven = isinstance(node, ir.IntImm) and node.value == 7
            return ir.const(8, node.dtype) if seven else None

        return func.replace(body=ir.rewrite_bottom_up(func.body, change))

    lines = ("J[0] = 3", "A[1] = 7", "A[2] = J[1]")
    main = Statement(HEAD.splitlines()[3].strip(), [Statement(x) for x in lines], nests=True)
    program = [Statement("@T.prim_func"), main]
    monkeypatch.setattr(campaign, "draw", lambda seed: program)
    monkeypatch.setattr("fuzzing.programs.judge.with_call_checks", wrong)
    found = play(0)
    assert found.verdict.what == "wrong"
    assert "A[1] = 7" in found.script
    assert not {"J[0] = 3", "A[2] = J[1]"} & {line.strip() for line in found.script.splitlines()}
    ast.parse(found.script)
