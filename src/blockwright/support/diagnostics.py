"""Diagnostic records: what went wrong, where in the source, and what to do about it.

A record holds facts only. Rendering to text happens in `render_diagnostics`, so that a terminal,
a notebook and a test can each show the same record in their own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec


@lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    """Kept, because a parser asks for a line at every node."""
    return text.splitlines()


class SourceFile(msgspec.Struct, frozen=True, eq=False):
    """The text a program was parsed from; `first_line` is where `text` starts in the file."""

    name: str
    text: str
    first_line: int = 1

    def line(self, number: int) -> str:
        """The text of line `number`, counted as the file counts it; empty when out of range."""
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
    """A text that is written when somebody reads it: refusals are many, readers are few."""

    def __init__(self, write: Callable[[], str]) -> None:
        self._write = write

    def __str__(self) -> str:
        return self._write()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # what it is written from need not travel


class Diagnostic(msgspec.Struct, frozen=True, eq=False):
    """One problem: a stable code, one sentence, and optionally place, remedy and further notes."""

    code: str
    message: str
    span: Span | None = None
    help: str | None = None
    notes: tuple[str | LateText, ...] = ()


def _excerpt(span: Span) -> list[str]:
    """The source line with a caret run below it."""
    text = span.source.line(span.line)
    if not text:
        return []
    end = span.end_column if span.end_line == span.line else len(text)
    width = max(1, end - span.column)
    gutter = f"{span.line:>5} | "
    return [gutter + text, " " * (len(gutter) + span.column) + "^" * width]


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """Plain text for a list of diagnostics, in source order as given."""
    out: list[str] = []
    for item in diagnostics:
        where = f"{item.span.location()}: " if item.span is not None else ""
        out.append(f"{where}error[{item.code}]: {item.message}")
        if item.span is not None:
            out.extend(_excerpt(item.span))
        out.extend(f"  note: {note}" for note in item.notes)
        if item.help is not None:
            out.append(f"  help: {item.help}")
    return "\n".join(out)
