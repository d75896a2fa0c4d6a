"""Print programs with syntax highlighting in a terminal or notebook."""

from __future__ import annotations

import io
import sys
from typing import ClassVar


class Shown:
    """Base of objects whose text is highlighted in terminals and notebooks."""

    language: ClassVar[str] = "python"

    def text(self) -> str:
        raise NotImplementedError

    def show(self) -> None:
        """Print the text, highlighted if the output is a terminal or notebook."""
        show(self.text(), self.language)

    def _repr_html_(self) -> str:
        return as_html(self.text(), self.language)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The MIME forms for a notebook, which shows the richest one it supports."""
        return {"text/plain": self.text(), "text/html": self._repr_html_()}


def show(text: str, language: str) -> None:
    """Write a text to standard output; plain if that is neither a terminal nor a notebook."""
    if not sys.stdout.isatty() and "ipykernel" not in sys.modules:
        sys.stdout.write(text + "\n")
        return
    from rich.console import Console  # imported on first use: rich is slow to import

    Console().print(_highlighted(text, language))


def as_html(text: str, language: str) -> str:
    """The text as a highlighted HTML fragment with inline styles only."""
    from rich.console import Console

    width = max(map(len, text.splitlines()), default=1)
    console = Console(record=True, file=io.StringIO(), width=width + 1)
    console.print(_highlighted(text, language), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _highlighted(text: str, language: str) -> object:
    from rich.syntax import Syntax

    return Syntax(text, language, theme="ansi_light", background_color="default")
