"""The programs in the docstrings of primitives: the steps turn the first into the second."""

from __future__ import annotations

import inspect

import pytest

from blockwright import ir
from blockwright.schedule import RECORDS, Schedule
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.unsafe import UNSAFE_PRIMITIVES
from blockwright.script.ir import from_source
from tests.listings import literal_blocks

DOCUMENTED = {name: literal_blocks(record.__doc__) for name, record in RECORDS.items()}
COMPOSITE = {"tile": literal_blocks(Schedule.tile.__doc__)}
REWRITING = sorted(name for name in RECORDS if not name.startswith("get_"))
UNCHECKABLE = ("unsafe.hide_buffer_access",)  # the "full" check is what they lie to


def function(text: str) -> ir.PrimFunc:
    parsed = from_source(text)
    return parsed if isinstance(parsed, ir.PrimFunc) else next(iter(parsed.functions.values()))


@pytest.mark.parametrize("name", [*REWRITING, *COMPOSITE])
def test_the_example_in_the_docstring_is_true(name: str) -> None:
    parts = (DOCUMENTED | COMPOSITE)[name]
    assert {"Before", "Steps"} <= parts.keys(), f"{name} shows no example"
    verify = "check" if name in UNCHECKABLE else "full"
    sch = Schedule(function(parts["Before"]), verify=verify)
    exec(parts["Steps"], {"sch": sch})
    if "After" in parts:
        ir.assert_structural_equal(sch.func, function(parts["After"]))


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_parameter_is_described(name: str) -> None:
    record = RECORDS[name]
    text = record.__doc__ or ""
    for field in record.__struct_fields__:
        assert f"    {field}" in inspect.cleandoc(text) or f"{field}:" in text, field


@pytest.mark.parametrize("listed", [PRIMITIVES, UNSAFE_PRIMITIVES])
def test_the_list_of_primitives_is_alphabetical(listed: tuple[type[Primitive], ...]) -> None:
    names = [record.method for record in listed]
    assert names == sorted(names)
