"""The grammar page agrees with the node classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ir-grammar.md"


def test_page_is_generated_from_the_classes() -> None:
    # A process of its own: other rooms may have registered further operations in this one.
    command = [sys.executable, "-m", "blockwright.ir.grammar"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert PAGE.read_text(encoding="utf-8") == made, "run: python -m blockwright.ir.grammar"
