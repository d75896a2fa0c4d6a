"""Exception hierarchy. Every error that reaches users is a `BlockwrightError` with a stable code.

`blockwright.support.codes` lists the codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from blockwright.support.diagnostics import Diagnostic, LateText, Span, render_diagnostics

_CODED = re.compile(r"\A\s*(BW\d{3}): (.*?)(?:\nhelp: (.*))?\s*\Z", re.DOTALL)


def coded_message(text: str) -> tuple[str, str, str | None] | None:
    """Parse "BW704: ...\\nhelp: ..." into code, message and help; None if the text has no code."""
    result = _CODED.match(text)
    return (result[1], result[2], result[3]) if result else None


class BlockwrightError(Exception):
    """Base of all errors.

    Attributes:
        code: stable identifier such as ``"BW701"``.
        help: a suggested fix, or None.
        diagnostics: all problems found; at least one.
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
        """Combine several problems into one exception with the code of the first."""
        first = diagnostics[0]
        return cls(first.message, code=first.code, help=first.help, diagnostics=diagnostics)


class BlockwrightWarning(UserWarning):
    """Warning about a correct result; `code` is a stable identifier as in `BlockwrightError`."""

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
    """A script could not be parsed."""

    default_code = "BW100"


class IRError(BlockwrightError):
    """Invalid use of an IR node, such as comparing expressions with `==`."""

    default_code = "BW200"


class ValidationError(BlockwrightError):
    """A program is not well formed; lists all problems."""

    default_code = "BW210"


class ScheduleError(BlockwrightError):
    """A schedule step is illegal; the program is unchanged."""

    default_code = "BW300"


class GraphError(BlockwrightError):
    """A graph function or operator call is invalid."""

    default_code = "BW400"


class ImporterError(BlockwrightError):
    """A model cannot be imported; lists all unsupported operators."""

    default_code = "BW500"


class BuildError(BlockwrightError):
    """Lowering, code generation or linking failed."""

    default_code = "BW600"


class TargetError(BlockwrightError):
    """A target is unknown, or this machine cannot run its code."""

    default_code = "BW650"


class ArgumentError(BlockwrightError, TypeError, ValueError):
    """A compiled function was called with invalid arguments."""

    default_code = "BW700"


class InterpretError(BlockwrightError):
    """The reference interpreter found an error, such as an out-of-bounds access or a race."""

    default_code = "BW750"


class ArtefactError(BlockwrightError):
    """A saved artefact is damaged, from a newer version, or for another processor."""

    default_code = "BW800"


class StateError(BlockwrightError):
    """The state of an executable is in use, or a value does not fit a variable of it."""

    default_code = "BW850"


class OptionError(BlockwrightError, ValueError):
    """A command-line or API option has an invalid value."""

    default_code = "BW900"
