"""Problems found while parsing. They are collected, so that one run tells about all of them."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

from blockwright.script.core.source import Script
from blockwright.support import BlockwrightError, Diagnostic, ScriptError
from blockwright.support.stack import has_room


class ParseProblem(Exception):
    """One problem at one place; stops the statement it is in, not the parse."""

    def __init__(
        self, code: str, message: str, node: ast.AST | None = None, help: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.node, self.help = code, message, node, help


class Poisoned(Exception):
    """A value was used whose definition has already been reported; nothing more to say."""


class Reporter:
    """Collects the problems of one parse."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.found: list[Diagnostic] = []
        self.notes: tuple[str, ...] = ()

    def add(self, problem: ParseProblem, where: ast.AST | None = None) -> None:
        node = problem.node if problem.node is not None else where
        span = self.script.span(node) if node is not None else None
        self.found.append(Diagnostic(problem.code, problem.message, span, problem.help, self.notes))

    @contextmanager
    def inside(self, script: Script, note: str) -> Generator[None]:
        """Meanwhile places are in `script`, and every problem carries the note."""
        before = self.script, self.notes
        self.script, self.notes = script, (note, *self.notes)
        try:
            yield
        finally:
            self.script, self.notes = before

    @contextmanager
    def statement(self, node: ast.AST) -> Generator[None]:
        """Problems inside belong to `node` unless they know their place better."""
        try:
            yield
        except ParseProblem as problem:
            self.add(problem, node)
        except Poisoned:
            if not self.found:
                self.add(ParseProblem("BW102", "a name is used in its own definition", node))
        except BlockwrightError as error:
            self.add(wrap(error), node)
        except Exception as error:  # noqa: BLE001  values of a script can raise anything
            self.add(raised(error), node)

    def finish(self) -> None:
        """Raise when anything was found."""
        if self.found:
            self.fail()

    def fail(self) -> NoReturn:
        result = sorted(
            self.found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)
        )
        raise ScriptError.collect(result)


def raised(error: Exception, node: ast.AST | None = None) -> ParseProblem:
    """What Python raised for a value that a construct cannot use, as a problem of the script."""
    if isinstance(error, RecursionError) and not has_room():
        raise error  # parsed again with a larger stack
    text = f"{type(error).__name__}: {error}"
    return ParseProblem("BW109", f"evaluating this in Python raised {text}", node)


def wrap(error: BlockwrightError, node: ast.AST | None = None) -> ParseProblem:
    """An error of the rooms below as a problem of the script that caused it."""
    code = error.code if error.code.startswith("BW1") else "BW107"
    return ParseProblem(code, error.message, node, error.help)
