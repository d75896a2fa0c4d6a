"""Programs in docstrings."""

from __future__ import annotations

import inspect
import textwrap


def literal_blocks(docstring: str | None) -> dict[str, str]:
    """The literal blocks of a docstring by the words in front of them, `Before::` as "Before"."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line.endswith("::") and not line.startswith(" "):
            lines = found.setdefault(line[:-2], [])
        elif line and not line.startswith(" "):
            lines = []
        else:
            lines.append(line)
    return {words: textwrap.dedent("\n".join(block)).strip() for words, block in found.items()}
