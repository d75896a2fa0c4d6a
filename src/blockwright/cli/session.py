"""Shared by all commands: exit status on errors and interrupts, and console output."""

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
# Characters above which text is not highlighted: highlighting takes longer than compiling.
_MOST_HIGHLIGHTED = 400_000


@contextmanager
def command_session(debug: bool) -> Generator[None]:
    """Context manager that turns errors and interrupts into an exit status.

    A `BlockwrightError` is printed with its code and help, and with a traceback only if `debug`.
    Any other exception is an internal error and keeps its traceback.
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
        # Python flushes standard output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None


class _Console(Console):
    """Console that leaves the handling of closed pipes to `command_session`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Console for standard output: styled on a terminal, otherwise plain and never wrapped."""
    return _Console(highlight=False, soft_wrap=True)


def errors() -> Console:
    """Console for standard error, styled in the same way."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def print_error(error: BlockwrightError) -> None:
    """Print every diagnostic of an error, with codes and help highlighted."""
    text = Text(str(error))
    text.highlight_regex(r"error\[BW\d+\]", "bold red")
    text.highlight_regex(r"(?m)^  (help|note):", "bold cyan")
    errors().print(text)


def print_code(text: str, lexer: str) -> None:
    """Print program text: highlighted on a terminal, otherwise unchanged."""
    console = output()
    if not text.endswith("\n"):
        text += "\n"
    if console.is_terminal and len(text) <= _MOST_HIGHLIGHTED:
        console.print(Syntax(text, lexer, theme="ansi_dark", background_color="default"))
    else:
        sys.stdout.write(text)


def size(count: int) -> str:
    """Format a number of bytes: "512 B", "3.4 KiB", "86.7 MiB"."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"
