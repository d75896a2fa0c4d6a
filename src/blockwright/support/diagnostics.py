"""Diagnostic records: error code, message, source span and suggested fix.

Records hold data only; `render_diagnostics` turns them into text. Terminals, notebooks and tests
can thus present the same record differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

_LINE_END = re.compile("\r\n|\r|\n")


@lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    """Split a text at the line ends of Python's tokenizer: LF, CR LF and CR.

    `str.splitlines` also splits at form feeds and at U+2028, which would shift all later lines.
    Cached because the parser reads a line for every node.
    """
    return _LINE_END.split(text)


class SourceFile(msgspec.Struct, frozen=True, eq=False):
    """Text that a program was parsed from. `first_line` is the line of the file where it starts."""

    name: str
    text: str
    first_line: int = 1

    def line(self, number: int) -> str:
        """Return the text of line `number` of the file, or "" if it is out of range."""
        lines = _lines(self.text)
        index = number - self.first_line
        return lines[index] if 0 <= index < len(lines) else ""


class Span(msgspec.Struct, frozen=True, eq=False):
    """A range of source text. Lines count from 1, columns from 0 as in Python's `ast`."""

    source: SourceFile
    line: int
    column: int
    end_line: int
    end_column: int

    def location(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column + 1}"


class LateText:
    """Text that is formatted lazily, because most rejections are never printed."""

    def __init__(self, write: Callable[[], str]) -> None:
        self._write = write

    def __str__(self) -> str:
        return self._write()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # pickle the text, not the objects it is formatted from


class Diagnostic(msgspec.Struct, frozen=True, eq=False):
    """One problem: a stable code, a message, and optionally a span, a suggested fix and notes."""

    code: str
    message: str
    span: Span | None = None
    help: str | None = None
    notes: tuple[str | LateText, ...] = ()


def _excerpt(span: Span) -> list[str]:
    """Return the source line and a line of carets that underlines the span."""
    text = span.source.line(span.line)
    if not text:
        return []
    end = span.end_column if span.end_line == span.line else len(text)
    width = max(1, end - span.column)
    gutter = f"{span.line:>5} | "
    return [gutter + text, " " * (len(gutter) + span.column) + "^" * width]


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """Render diagnostics as plain text that can be encoded, in the given order."""
    out: list[str] = []
    for item in diagnostics:
        where = f"{item.span.location()}: " if item.span is not None else ""
        out.append(f"{where}error[{item.code}]: {item.message}")
        if item.span is not None:
            out.extend(_excerpt(item.span))
        out.extend(f"  note: {note}" for note in item.notes)
        if item.help is not None:
            out.append(f"  help: {item.help}")
    return "\n".join(out).encode(errors="backslashreplace").decode()
