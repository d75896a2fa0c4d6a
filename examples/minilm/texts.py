"""The texts that ship with the example: sentences to search, and queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Text:
    """One line of a text file: a subject and a sentence, separated by a tab."""

    subject: str
    sentence: str


def read_texts(name: str) -> list[Text]:
    """Read ``corpus`` or ``queries`` from the folder of the example."""
    path = Path(__file__).with_name(f"{name}.txt")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Text(*line.split("\t")) for line in lines if line.strip()]
