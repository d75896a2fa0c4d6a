"""Names of failures, to tell them apart."""

from __future__ import annotations

from blockwright.support import BlockwrightError


class Finding(Exception):
    """A failure with a name: the symptom, and the text of the error."""

    def __init__(self, symptom: str, words: str) -> None:
        super().__init__(words)
        self.symptom = symptom


def symptom(error: BaseException) -> str:
    """The name of an error: that of a `Finding`, else its class and code."""
    if isinstance(error, Finding):
        return error.symptom
    code = error.code if isinstance(error, BlockwrightError) else ""
    return f"{type(error).__name__} {code}".strip()
