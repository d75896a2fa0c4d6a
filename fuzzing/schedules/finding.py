"""What a failure is called, so that two of them can be told apart."""

from __future__ import annotations

from blockwright.support import BlockwrightError


class Finding(Exception):
    """A failure that knows what it is called: the symptom, and the words of the error."""

    def __init__(self, symptom: str, words: str) -> None:
        super().__init__(words)
        self.symptom = symptom


def symptom(error: BaseException) -> str:
    """What an error is called: its class and code, unless it knows better."""
    if isinstance(error, Finding):
        return error.symptom
    code = error.code if isinstance(error, BlockwrightError) else ""
    return f"{type(error).__name__} {code}".strip()
