"""What commands share: how errors, interrupts and closed pipes end them, where text goes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from blockwright.support import BlockwrightError

ERROR, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
# Colouring a text of megabytes takes longer than making it.
_MOST_HIGHLIGHTED = 400_000


@contextmanager
def command_session(debug: bool) -> Generator[None]:
    """Ends a command the way a shell expects, whatever happens inside.

    Errors of ours are printed with code and remedy, without a traceback unless `debug`. Any other
    exception is a defect and keeps its traceback.
    """
    try:
        yield
        sys.stdout.flush()
    except BlockwrightError as error:
        if debug:
            traceback.print_exc()
        print_error(error)
        raise typer.Exit(ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes standard output once more as it exits; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None


class _Console(Console):
    """A console that leaves closed pipes to `command_session`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Standard output: styled on a terminal, plain and never wrapped otherwise."""
    return _Console(highlight=False, soft_wrap=True)


def errors() -> Console:
    """Standard error, likewise."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def print_error(error: BlockwrightError) -> None:
    """Every diagnostic of an error, with codes and remedies marked."""
    text = Text(str(error))
    text.highlight_regex(r"error\[BW\d+\]", "bold red")
    text.highlight_regex(r"(?m)^  (help|note):", "bold cyan")
    errors().print(text)


def print_code(text: str, lexer: str) -> None:
    """Program text: coloured on a terminal, exactly as it is elsewhere."""
    console = output()
    if not text.endswith("\n"):
        text += "\n"
    if console.is_terminal and len(text) <= _MOST_HIGHLIGHTED:
        console.print(Syntax(text, lexer, theme="ansi_dark", background_color="default"))
    else:
        sys.stdout.write(text)


def size(count: int) -> str:
    """A number of bytes for people: "512 B", "3.4 KiB", "86.7 MiB"."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"
