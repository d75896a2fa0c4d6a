"""The programs in the docstrings of graph passes: the pass turns the first into the second."""

from __future__ import annotations

import sys
import textwrap

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes import Pass, PassContext
from blockwright.target import Cache, Target
from tests.listings import literal_blocks

CACHES = (Cache(32 << 10), Cache(1 << 20), Cache(32 << 20, shared_by=2))
MACHINE = Target("x86-64-v3", num_threads=2, caches=CACHES)
PIPELINE = bw.default_pipeline(MACHINE)
FROM_NORMAL_FORM = PIPELINE.names[PIPELINE.names.index("flatten_tuples") + 1 :]
PASSES: dict[Pass, str] = {run: name for name, run in reversed(PIPELINE.passes)}


def listings(run: Pass) -> dict[str, str]:
    """Those of the pass, or else of its file."""
    own = literal_blocks(run.__doc__)
    return own if "Before" in own else literal_blocks(sys.modules[run.__module__].__doc__)


def parse(*functions: str) -> ir.IRModule:
    """A module of the functions of listings."""
    text = textwrap.indent("\n\n".join(functions), "    ")
    return bw.from_source(f"@I.ir_module\nclass Module:\n{text}\n")


def by_name(listing: str) -> dict[str, str]:
    """The functions of a listing."""
    parts = listing.split("\n\n")
    return {part.partition("def ")[2].partition("(")[0]: part for part in parts}


@pytest.mark.parametrize(("run", "name"), PASSES.items(), ids=PASSES.values())
def test_the_pass_does_what_its_docstring_shows(run: Pass, name: str) -> None:
    """Functions that it leaves as they are stand in the first listing only."""
    shown = listings(run)
    normal = PIPELINE.only("normalize") if name in FROM_NORMAL_FORM else PIPELINE.only()
    first, second = by_name(shown["Before"]), by_name(shown.get("After", ""))
    before = normal(parse(*first.values()), MACHINE)
    after = run(before, PassContext(MACHINE))
    kept = {n: first[n] for n, f in after.functions.items() if before.functions.get(n) is f}
    expected = normal(parse(*(kept | second).values()), MACHINE)
    assert set(after.functions) == set(expected.functions)
    assert after.attrs == expected.attrs
    for each, function in after.functions.items():  # one at a time: two may share variables
        ir.assert_structural_equal(function, expected[each])


REFUSED = [
    (run, words.split()[1], text)
    for run in PASSES
    for words, text in listings(run).items()
    if words.startswith("Refused ")
]


@pytest.mark.parametrize(("run", "code", "text"), REFUSED, ids=lambda value: str(value)[:5])
def test_the_pass_refuses_what_its_docstring_says(run: Pass, code: str, text: str) -> None:
    with pytest.raises(bw.BlockwrightError) as caught:
        run(parse(text), PassContext(MACHINE))
    assert caught.value.code == code
