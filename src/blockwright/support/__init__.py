"""Diagnostics and exceptions. The lowest layer: independent of the IR."""

from blockwright.support.diagnostics import (
    Diagnostic,
    LateText,
    SourceFile,
    Span,
    render_diagnostics,
)
from blockwright.support.errors import (
    ArgumentError,
    ArtefactError,
    BlockwrightError,
    BlockwrightWarning,
    BuildError,
    GraphError,
    ImporterError,
    InterpretError,
    IRError,
    OptionError,
    ScheduleError,
    ScriptError,
    TargetError,
    ValidationError,
    coded_message,
)

__all__ = [
    "ArgumentError",
    "ArtefactError",
    "BlockwrightError",
    "BlockwrightWarning",
    "BuildError",
    "Diagnostic",
    "GraphError",
    "IRError",
    "ImporterError",
    "InterpretError",
    "LateText",
    "OptionError",
    "ScheduleError",
    "ScriptError",
    "SourceFile",
    "Span",
    "TargetError",
    "ValidationError",
    "coded_message",
    "render_diagnostics",
]
