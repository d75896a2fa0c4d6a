"""The exception hierarchy. Every error a user can meet is a `BlockwrightError` with a stable code.

`blockwright.support.codes` says what each code stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from blockwright.support.diagnostics import Diagnostic, LateText, Span, render_diagnostics

_CODED = re.compile(r"\A\s*(BW\d{3}): (.*?)(?:\nhelp: (.*))?\s*\Z", re.DOTALL)


def coded_message(text: str) -> tuple[str, str, str | None] | None:
    """Code, message and remedy of a text such as "BW704: ...\\nhelp: ..."; None without a code."""
    result = _CODED.match(text)
    return (result[1], result[2], result[3]) if result else None


class BlockwrightError(Exception):
    """Base of all errors.

    Attributes:
        code: stable identifier such as ``"BW701"``.
        help: what to do instead, when there is something to say.
        diagnostics: every problem found; at least one.
    """

    default_code = "BW000"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        help: str | None = None,
        span: Span | None = None,
        notes: Sequence[str | LateText] = (),
        diagnostics: Sequence[Diagnostic] | None = None,
    ) -> None:
        self.code = code or self.default_code
        self.message = message
        self.help = help
        if diagnostics is None:
            diagnostics = (Diagnostic(self.code, message, span, help, tuple(notes)),)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__(message)

    def __str__(self) -> str:
        return render_diagnostics(self.diagnostics)

    @classmethod
    def collect(cls, diagnostics: Sequence[Diagnostic]) -> Self:
        """One exception for several problems; its code is the first problem's."""
        first = diagnostics[0]
        return cls(first.message, code=first.code, help=first.help, diagnostics=diagnostics)


class BlockwrightWarning(UserWarning):
    """Something a user should know of a result that is right; `code` is as of an error."""

    def __init__(self, message: str, *, code: str, help: str) -> None:
        self.code = code
        self.help = help
        self.message = message
        super().__init__(f"[{code}] {message}\n  help: {help}")

    def __reduce__(self) -> tuple[object, ...]:
        return _warning, (self.message, self.code, self.help)


def _warning(message: str, code: str, help: str) -> BlockwrightWarning:
    return BlockwrightWarning(message, code=code, help=help)


class ScriptError(BlockwrightError):
    """A program text that does not parse."""

    default_code = "BW100"


class IRError(BlockwrightError):
    """A node used in a way that has no meaning, such as comparing expressions with `==`."""

    default_code = "BW200"


class ValidationError(BlockwrightError):
    """A program that is not well formed; lists all problems."""

    default_code = "BW210"


class ScheduleError(BlockwrightError):
    """An illegal schedule step; the program stays as it was."""

    default_code = "BW300"


class GraphError(BlockwrightError):
    """A graph function or operator call that is not valid."""

    default_code = "BW400"


class ImporterError(BlockwrightError):
    """A model that cannot be imported; lists all uncovered operators."""

    default_code = "BW500"


class BuildError(BlockwrightError):
    """Lowering, code generation or linking failed."""

    default_code = "BW600"


class TargetError(BlockwrightError):
    """An unknown target or one this machine cannot serve."""

    default_code = "BW650"


class ArgumentError(BlockwrightError, TypeError, ValueError):
    """A compiled function was called with arguments it cannot take."""

    default_code = "BW700"


class InterpretError(BlockwrightError):
    """The reference interpreter found an out-of-bounds, uninitialised or failed assertion."""

    default_code = "BW750"


class ArtefactError(BlockwrightError):
    """A saved artefact that is damaged, from a newer version, or for another processor."""

    default_code = "BW800"


class OptionError(BlockwrightError, ValueError):
    """A command-line or API option outside its allowed values."""

    default_code = "BW900"
