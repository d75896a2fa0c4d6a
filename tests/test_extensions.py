"""Files that define an operator, a strategy, a primitive or a pass are part of the compiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blockwright.lower import LOWERING
from blockwright.ops.table import OPERATORS
from blockwright.passes import default_pipeline
from blockwright.schedule import RECORDS
from blockwright.strategies import STRATEGIES

SOURCE = Path(__file__).parents[1] / "src" / "blockwright"


def defining(folder: str, pattern: str) -> dict[str, list[str]]:
    """Module → what its lines that match the pattern define."""
    found: dict[str, list[str]] = {}
    for path in sorted((SOURCE / folder).rglob("*.py")):
        names = re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
        if names:
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            found[".".join(parts)] = names
    return found


def test_every_file_of_operators_is_listed() -> None:
    files = defining("ops", r"^(ROWS)\b")
    rules = (getattr(row.deduce, "func", row.deduce) for row in OPERATORS.values())
    rows = {rule.__module__ for rule in rules}
    assert rows <= files.keys() | {"blockwright.ops.common", "blockwright.ops.binary_row"}
    for name in files:
        module = __import__(name, fromlist=["ROWS"])
        assert all(OPERATORS[row.name] is row for row in module.ROWS), name


def test_every_strategy_is_listed() -> None:
    files = defining("strategies", r"^(STRATEGY)\b")
    assert {s.apply.__module__ for s in STRATEGIES} == files.keys()


@pytest.mark.parametrize("folder", ["schedule/primitive", "schedule/unsafe"])
def test_every_file_of_primitives_defines_one(folder: str) -> None:
    files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"__init__"}
    package = "blockwright." + folder.replace("/", ".")
    records = [r for r in RECORDS.values() if r.__module__.startswith(package)]
    assert sorted(r.__module__.rpartition(".")[2] for r in records) == sorted(files)


def test_every_pass_is_in_its_pipeline() -> None:
    for folder, decorator, pipeline in (
        ("passes", "(?:graph|function|program)_pass", default_pipeline().passes),
        ("lower", "lowering_pass", LOWERING),
    ):
        marked = {
            f"{module}.{name}"
            for module, names in defining(folder, rf"^@{decorator}\ndef (\w+)").items()
            for name in names
        }
        assert {f"{run.__module__}.{run.__name__}" for _, run in pipeline} == marked
