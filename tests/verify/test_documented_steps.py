"""What the docstring of each primitive shows is proved, step by step, by other means."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.schedule import RECORDS, Schedule
from blockwright.script.ir import from_source
from blockwright.verify import verify
from tests.listings import literal_blocks

NOT_PROVED = {
    "offset_operand": "unknown",  # cancels sums of integers, which wrap
    "unsafe.assume_independent": "refuted",
    "unsafe.drop_predicate": "refuted",
    "unsafe.hide_buffer_access": "unknown",  # a call of external code
    "unsafe.set_dtype": "unknown",  # rounds in between
}
"""Steps whose examples are not proved, and what is found out about them."""


@pytest.mark.parametrize("name", sorted(n for n in RECORDS if not n.startswith("get_")))
def test_the_example_of_a_primitive(name: str) -> None:
    shown = literal_blocks(RECORDS[name].__doc__)
    parsed = from_source(shown["Before"])
    before = parsed if isinstance(parsed, ir.PrimFunc) else next(iter(parsed.functions.values()))
    sch = Schedule(before)
    exec(shown["Steps"], {"sch": sch})
    verdict = verify(before, sch.func)
    assert verdict.verdict == NOT_PROVED.get(name, "proved"), verdict.why
