"""Every line of the porting table runs, and leaves the meaning of the program as it was."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import blockwright as bw
from blockwright.script import te
from blockwright.testing import assert_same_meaning

PAGE = (Path(__file__).parents[2] / "docs/porting-te.md").read_text()
SETUP = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| (.+?) \| `(.+?)`(?: \(.*\))? \|$", PAGE, re.MULTILINE)


def names() -> dict[str, Any]:
    found: dict[str, Any] = {"bw": bw, "te": te}
    assert SETUP is not None
    exec(SETUP[1], found)
    return found


def test_the_table_is_read_completely() -> None:
    assert len(ROWS) == PAGE.count("\n| ") - 1  # without the heading


@pytest.mark.parametrize(("before", "code"), ROWS, ids=[code for _, code in ROWS])
def test_row(before: str, code: str) -> None:
    env = names()
    func = env["func"]
    sch = env["sch"] = bw.Schedule(func)
    block = env["block"] = sch.get_block("C")
    env["i"], env["j"], env["k"] = sch.get_loops(block)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, env)
    assert_same_meaning(func, env["sch"].func, seed=0)
