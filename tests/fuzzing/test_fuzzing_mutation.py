"""The mutation test makes the faults it says, takes them back, and its nets catch them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.schedule.primitive.split import Split
from blockwright.script.ir import from_source
from fuzzing.mutation.bank import Bank
from fuzzing.mutation.nets import Catch, examine
from fuzzing.mutation.page import ARGUED, Result, page, problems
from fuzzing.mutation.sites import Mutant, modules, mutants
from fuzzing.mutation.switch import find, switched_on

SPLIT = "blockwright.schedule.primitive.split"
PROGRAM = """
@T.prim_func
def main(A: T.Buffer((10,), "float32"), B: T.Buffer((10,), "float32")):
    for i in range(10):
        with T.block("B"):
            vi = T.axis.spatial(10, i)
            B[vi] = A[vi] * T.float32(2)
"""


def schedule() -> Schedule:
    func = from_source(PROGRAM)
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func)


def one(kind: str, text: str) -> Mutant:
    return next(m for m in mutants(SPLIT) if m.kind == kind and text in m.key)


@pytest.fixture(scope="module")
def bank() -> Bank:
    """Uses of split: one that needs a predicate, and one that is refused."""
    bank = Bank()
    with bank.recording("here"):
        sch = schedule()
        (loop,) = sch.get_loops("B")
        sch.split(loop, [None, 4])
        sch = schedule()
        (loop,) = sch.get_loops("B")
        with pytest.raises(Exception, match="BW318"):
            sch.split(loop, [2, 4])
    return bank


def test_a_fault_is_there_inside_and_gone_outside() -> None:
    mutant = one("precondition", "BW318")
    function = find(importlib.import_module(SPLIT), mutant.function)
    code = function.__code__
    with switched_on(mutant):
        assert function.__code__ is mutant.code is not code
        assert function is Split.apply or function.__qualname__.startswith("Split.")
    assert function.__code__ is code


def test_a_precondition_left_out_is_caught(bank: Bank) -> None:
    """Factors whose product is too small leave instances out."""
    found = [m for m in mutants(SPLIT) if m.kind == "precondition"]
    reached = [m for m in found if bank.refused_at(SPLIT, m.line)]
    assert reached
    for mutant in reached:
        catch = examine(mutant, bank.refused_at(SPLIT, mutant.line))
        assert catch.differs, mutant.key
        assert catch.refuted, mutant.key
        assert not catch.missed


def test_a_range_that_is_one_off_is_caught(bank: Bank) -> None:
    mutant = one("range", "extent of ir.Range(ir.const(0, dtype), extents[k]) -1")
    catch = examine(mutant, bank.uses_at(SPLIT, mutant.line))
    assert catch.caught


def test_uses_are_known_by_the_lines_that_they_run_through(bank: Bank) -> None:
    """A fault on a line that no use runs through is not reached, whatever else runs."""
    path = str(importlib.import_module(SPLIT).__file__)
    run = {line for file, line in bank.accepted.uses if file == path}
    assert one("range", "extent of ir.Range(ir.const(0, dtype), extents[k]) -1").line in run
    refusals = {m.line for m in mutants(SPLIT) if "state.fail" in m.key or "BW318" in m.key}
    assert refusals
    assert not refusals & run


def test_a_use_that_does_not_repeat_blames_no_fault(bank: Bank) -> None:
    mutant = one("range", "extent of ir.Range(ir.const(0, dtype), extents[k]) -1")
    use, *_ = bank.uses_at(SPLIT, mutant.line)
    assert use.repeats()
    other = msgspec.structs.replace(use, after=use.func)
    assert examine(mutant, [other]) == Catch()


def test_the_tests_of_a_place_are_known(bank: Bank) -> None:
    """Those that took a step of the primitive, or were refused there: here the test that came
    first, with the bank."""
    mutant = one("range", "extent of ir.Range(ir.const(0, dtype), extents[k]) -1")
    (name,) = bank.tests_at(SPLIT, mutant.line, refused=False)
    assert name.startswith("tests/fuzzing/test_fuzzing_mutation.py::")
    refused = [m.line for m in mutants(SPLIT) if m.kind == "precondition"]
    assert [name] in [bank.tests_at(SPLIT, line, refused=True) for line in refused]
    assert bank.tests_at(SPLIT, 1, refused=True) == []


def test_tests_of_few_steps_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    with bank.recording("here"):
        for name, steps in (("long", 3), ("short", 1), ("middle", 2)):
            monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{name} (call)")
            sch = schedule()
            for _ in range(steps):
                sch.split(sch.get_loops("B")[0], [None, 5])
    line = one("range", "extent of ir.Range(ir.const(0, dtype), extents[k]) -1").line
    assert bank.tests_at(SPLIT, line, refused=False) == ["short", "middle", "long"]


def test_every_fault_has_a_name_and_fits_its_function() -> None:
    keys: list[str] = []
    for module in modules():
        for mutant in mutants(module):
            code = find(importlib.import_module(module), mutant.function).__code__
            assert code.co_freevars == mutant.code.co_freevars
            keys.append(mutant.key)
    assert len(keys) == len(set(keys))
    argued = json.loads(ARGUED.read_text(encoding="utf-8"))
    assert argued.keys() <= set(keys), "argued, and no fault any more"
    assert all(reason.strip() for reason in argued.values())


def test_what_no_net_holds_must_be_argued_and_nothing_else() -> None:
    alive = Result("a", SPLIT, "range", Catch(tried=2, proved=2))
    idle = Result("d", SPLIT, "range", Catch(tried=2, unchanged=2))
    unreached = Result("e", SPLIT, "precondition", Catch())
    held = Result("b", SPLIT, "range", Catch(tried=2, refuted=1, differs=1))
    wrong = Result("c", SPLIT, "range", Catch(tried=1, differs=1, proved=1, missed=1))
    assert problems([alive, held], {"a": "harmless"}, whole=True) == []
    assert problems([alive, held], {}, whole=True) == ["survives, and is not argued: a"]
    assert problems([idle, unreached], {}, whole=True) == [
        "no effect, and is not argued: d",
        "not reached, and is not argued: e",
    ]
    assert problems([held], {"a": "gone"}, whole=True) == ["argued, and caught: a"]
    assert problems([held], {"a": "gone"}, whole=False) == []
    assert "proved, and differs" in problems([wrong], {}, whole=True)[0]
    text = page([alive, held], {"a": "harmless"}, ["tests"], 3)
    assert "**harmless**" in text
    assert "| range | 2 | 0 | 1 | 1 | 1 | 0 | 1 | 0 | 0 |" in text
    assert "## Not reached\n\nNone." in text
    text = page([idle, unreached], {"d": "cut again"}, ["tests"], 3)
    assert "## No effect\n\n**cut again**\n\n- `d`" in text
    assert "## Not reached\n\n**Not argued yet.**\n\n- `e`" in text
    assert "proved: 0.\n" in text
    assert "proved: 1.\n\n- `c`" in page([wrong], {}, ["tests"], 3)


def test_a_run_of_some_modules_keeps_what_is_known_of_others(tmp_path: Path) -> None:
    """A long run may be done in parts; the page is made of all of them."""
    file = tmp_path / "results.json"
    first, *_ = mutants("blockwright.schedule.primitive.fuse")
    old = [
        Result(first.key, first.module, first.kind, Catch(tried=7)),
        Result("primitive.split:Gone: range: x", SPLIT, "range", Catch(tried=9)),
    ]
    file.write_bytes(msgspec.json.encode(old))
    command = [
        sys.executable,
        "-m",
        "fuzzing.mutation",
        "--programs",
        "0",
        "--tests",
        "--only",
        "split",
        "--json",
        str(file),
    ]
    subprocess.run(command, check=False, capture_output=True, timeout=300)
    found = {r.key: r for r in msgspec.json.decode(file.read_bytes(), type=list[Result])}
    assert found.pop(first.key) == old[0]
    assert found.keys() == {m.key for m in mutants(SPLIT)}


def test_what_is_settled_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    names = [m.key for m in mutants(SPLIT)]
    caught = Result(names[0], SPLIT, "range", Catch(tried=7, refuted=3))
    survived = Result(names[1], SPLIT, "range", Catch(tried=7, proved=3))
    assert (caught.settled, survived.settled) == (True, False)
    assert not Result("x", SPLIT, "range", Catch(tried=3, unchanged=3)).settled
    assert not Result("x", SPLIT, "range", Catch()).settled
    assert not Result("x", SPLIT, "range", Catch(tried=2, missed=1, differs=1)).settled
    file.write_bytes(msgspec.json.encode([caught, survived]))
    command = [
        sys.executable,
        "-m",
        "fuzzing.mutation",
        "--programs",
        "0",
        "--tests",
        "--only",
        "split",
        "--unsettled",
        "--json",
        str(file),
    ]
    subprocess.run(command, check=False, capture_output=True, timeout=300)
    found = {r.key: r for r in msgspec.json.decode(file.read_bytes(), type=list[Result])}
    assert found[caught.key] == caught
    assert found[survived.key].catch.tried == 0  # no use of it is known here
    assert found.keys() == set(names)
