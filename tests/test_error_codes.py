"""Every error code stands in the table, its family and the page; tests name those of steps."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from blockwright.support.codes import CODES, FAMILIES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "blockwright"
TABLE = SOURCE / "support" / "codes.py"
PAGE = ROOT / "docs" / "errors.md"
CODE = re.compile(r"\bBW\d{3}\b")

# The families whose codes an exception class may have.
CLASSES = {
    "ScriptError": "1",
    "IRError": "2",
    "ValidationError": "2",
    "ScheduleError": "3",
    "GraphError": "4",
    "ImporterError": "5",
    "BuildError": "6",
    "TargetError": "6",
    "ArgumentError": "7",
    "InterpretError": "7",
    "ArtefactError": "8",
    "StateError": "8",
    "OptionError": "9",
}


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def places() -> dict[str, list[str]]:
    """Where each code occurs in the sources, the table left out."""
    found: dict[str, list[str]] = {}
    for path, text in sources().items():
        if path != TABLE:
            for code in CODE.findall(text):
                found.setdefault(code, []).append(str(path.relative_to(ROOT)))
    return found


def raised() -> Iterator[tuple[str, str, str]]:
    """(what is called, code, place) of every call that is given a code by keyword."""
    for path, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            for keyword in node.keywords:
                if keyword.arg == "code":
                    for code in CODE.findall(ast.unparse(keyword.value)):
                        yield name, code, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_code_of_the_sources_is_in_the_table() -> None:
    missing = {code: where for code, where in places().items() if code not in CODES}
    assert not missing, "give them a sentence in support/codes.py"


def test_every_code_of_the_table_occurs_in_the_sources() -> None:
    assert set(CODES) <= set(places()), sorted(set(CODES) - set(places()))


def test_the_table_is_in_order_and_in_families() -> None:
    written = CODE.findall(TABLE.read_text(encoding="utf-8"))
    assert written == sorted(set(written)), "one line for each code, in order"
    assert list(CODES) == written
    assert {code[2] for code in CODES} == set(FAMILIES)


@pytest.mark.parametrize("code", CODES)
def test_a_rule_is_one_short_sentence(code: str) -> None:
    rule = CODES[code]
    assert rule[0].isupper()
    assert rule.endswith(".")
    assert rule.count(". ") == 0
    assert len(rule) <= 90


def test_no_two_codes_of_a_family_say_the_same() -> None:
    rules = [(code[2], rule) for code, rule in CODES.items()]
    assert len(rules) == len(set(rules))


def test_errors_carry_codes_of_their_family() -> None:
    wrong = [
        f"{where}: {name} with {code}"
        for name, code, where in raised()
        if (family := CLASSES.get(name)) is not None and code[2] != family
    ]
    assert not wrong


def test_refused_steps_carry_schedule_codes() -> None:
    wrong = [
        f"{where}: {code}"
        for name, code, where in raised()
        if name == "fail" and where.startswith("src/blockwright/schedule/") and code[2] != "3"
    ]
    assert not wrong


def test_every_schedule_code_is_tested() -> None:
    named: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path != Path(__file__):
            named.update(CODE.findall(path.read_text(encoding="utf-8")))
    untested = sorted(code for code in CODES if code[2] == "3" and code not in named)
    assert not untested, "write a test of the refusal under tests/schedule"


def test_the_page_is_generated_from_the_table() -> None:
    command = [sys.executable, "-m", "blockwright.support.error_page"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert PAGE.read_text(encoding="utf-8") == made, "run: make docs"
