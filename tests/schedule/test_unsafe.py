"""The unsafe namespace: what it does, what it still refuses, how it stands in traces."""

from __future__ import annotations

import json

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.interp import interpret
from blockwright.schedule import RECORDS, Schedule, ScheduleError, Trace
from blockwright.script.ir import from_source
from blockwright.support import ValidationError

SOURCE = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * T.float32(3)
    for i in range(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + T.float32(1)
"""
SCATTER = """
@T.prim_func
def main(P: T.Buffer((8,), "int32"), A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.opaque(8, i)
            B[P[vi]] = A[vi]
"""


def program(source: str = SOURCE) -> ir.PrimFunc:
    parsed = from_source(source)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def test_unsafe_steps_stand_only_in_their_namespace(sch: Schedule) -> None:
    names = [name for name in RECORDS if name.startswith("unsafe.")]
    assert names
    for name in names:
        method = name.removeprefix("unsafe.")
        assert hasattr(sch.unsafe, method)
        checked_form = method == "annotate_buffer_access"  # the same, without what is vouched for
        assert hasattr(sch, method) == checked_form


def test_a_buffer_of_another_type_rounds_its_values(sch: Schedule) -> None:
    b = sch.get_block("B")
    sch.unsafe.set_dtype(b, "B", "float16")
    assert sch.alive(b)
    x = np.linspace(0, 1, 16, dtype="float32")
    out = np.zeros(16, "float32")
    interpret(sch.func, x, out)
    wanted = (x * np.float32(3)).astype("float16").astype("float32") + np.float32(1)
    np.testing.assert_array_equal(out, wanted)
    before = sch.func
    sch.unsafe.set_dtype(b, 0, "float16")
    assert sch.func is before


def test_a_scatter_runs_in_parallel_on_the_callers_word() -> None:
    sch = Schedule(program(SCATTER))
    (i,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError):
        sch.parallel(i)
    sch.unsafe.assume_independent(i)
    order = np.random.default_rng(0).permutation(8).astype("int32")
    x, out = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    interpret(sch.func, order, x, out, order="reverse")
    np.testing.assert_array_equal(out[order], x)


def test_a_hidden_access_is_a_lie_that_validation_finds(sch: Schedule) -> None:
    c = sch.get_block("C")
    with pytest.raises(ScheduleError) as caught:
        sch.unsafe.hide_buffer_access(c, "read", [0])
    assert caught.value.code == "BW309"
    trusting = Schedule(program())
    trusting.unsafe.hide_buffer_access(trusting.get_block("C"), "read", [0])
    with pytest.raises(ValidationError):
        check_well_formed(trusting.func)


def test_traces_name_the_namespace(sch: Schedule) -> None:
    (i,) = sch.get_loops(sch.get_block("C"))
    sch.unsafe.assume_independent(i, "vectorized")
    sch.unsafe.set_dtype(sch.get_block("B"), 0, "float16")
    assert "sch.unsafe.assume_independent(l1, kind='vectorized')" in sch.trace.as_python()
    again, third = Schedule(program()), Schedule(program())
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)
    data = json.loads(json.dumps(sch.trace.as_json()))
    third.replay(Trace.from_json(data, RECORDS, third.func))
    ir.assert_structural_equal(third.func, sch.func)


@pytest.mark.parametrize(
    ("name", "args", "code", "words"),
    [
        ("set_dtype", ("B", "half"), "BW304", "is not a scalar element type"),
        ("set_dtype", ("B", "float32x4"), "BW304", "is not a scalar element type"),
        ("set_dtype", (3, "float16"), "BW320", "there is no number 3"),
        ("hide_buffer_access", ("both", [0]), "BW304", "not a kind of access"),
        ("hide_buffer_access", ("read", [4]), "BW320", "position 4 does not exist"),
    ],
)
def test_what_has_no_meaning_is_refused(
    sch: Schedule, name: str, args: tuple[object, ...], code: str, words: str
) -> None:
    before = sch.func
    with pytest.raises(ScheduleError, match=rf"unsafe\.{name}: .*{words}") as caught:
        getattr(sch.unsafe, name)(sch.get_block("B"), *args)
    assert caught.value.code == code
    assert sch.func is before


def test_a_parameter_keeps_its_type(sch: Schedule) -> None:
    with pytest.raises(ScheduleError) as caught:
        sch.unsafe.set_dtype(sch.get_block("C"), 0, "float16")
    assert caught.value.code == "BW321"


def test_the_kind_of_a_loop_is_chosen_once(sch: Schedule) -> None:
    (i,) = sch.get_loops(sch.get_block("C"))
    with pytest.raises(ScheduleError, match="is not a loop kind") as caught:
        sch.unsafe.assume_independent(i, "warp")
    assert caught.value.code == "BW304"
    sch.parallel(i)
    with pytest.raises(ScheduleError, match="is parallel already") as caught:
        sch.unsafe.assume_independent(i)
    assert caught.value.code == "BW312"


def test_the_root_block_has_no_predicate(sch: Schedule) -> None:
    with pytest.raises(ScheduleError) as caught:
        sch.unsafe.drop_predicate(sch.get_block("root"))
    assert caught.value.code == "BW311"
