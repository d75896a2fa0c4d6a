"""Annotations under the names that they had earlier become the current ones."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.annotations import ANNOTATIONS
from blockwright.script import tir as T
from blockwright.support.former_names import FORMER_ANNOTATIONS


@T.prim_func
def copied(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi]


def test_former_names_lead_to_current_ones() -> None:
    assert set(FORMER_ANNOTATIONS.values()) <= ANNOTATIONS.keys()
    assert not set(FORMER_ANNOTATIONS) & ANNOTATIONS.keys()


@pytest.mark.parametrize(("former", "current"), FORMER_ANNOTATIONS.items())
def test_a_schedule_takes_both_names(former: str, current: str) -> None:
    sch = bw.Schedule(copied)
    loop = sch.get_loops("B")[0]
    sch.annotate(loop, former, 1)
    assert [dict(n.annotations) for n in ir.loops(sch.func.body)] == [{current: 1}]
    with pytest.raises(bw.ScheduleError) as caught:
        sch.annotate(loop, current, 1)
    assert caught.value.code == "BW319"
    sch.unannotate(loop, former)
    ir.assert_structural_equal(sch.func, copied)


def test_a_script_takes_both_names() -> None:
    text = copied.script()
    parsed = [
        bw.from_source(
            text.replace("range(64)", f'T.serial(64, annotations={{"{key}": 2}})').replace(
                "vi = ", f'T.block_attr({{"{key}": 2}})\n            vi = '
            )
        )
        for key in ("read_ahead", "prefetch_read")
    ]
    ir.assert_structural_equal(*parsed)
    assert parsed[0].script().count('"prefetch_read": 2') == 2
