"""Diagnostics of the parser, collected so that one run reports all of them."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

from blockwright.script.core.source import Script
from blockwright.support import BlockwrightError, Diagnostic, ScriptError
from blockwright.support.stack import has_room


class ParseProblem(Exception):
    """One problem at one location; aborts the statement, not the parse."""

    def __init__(
        self, code: str, message: str, node: ast.AST | None = None, help: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.node, self.help = code, message, node, help


class Poisoned(Exception):
    """Use of a name whose definition failed and was reported; not reported again."""


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
        """Within the context, locations refer to `script`, and every problem carries the note."""
        before = self.script, self.notes
        self.script, self.notes = script, (note, *self.notes)
        try:
            yield
        finally:
            self.script, self.notes = before

    @contextmanager
    def statement(self, node: ast.AST) -> Generator[None]:
        """Report problems raised inside, at `node` unless they have a location of their own."""
        try:
            yield
        except ParseProblem as problem:
            self.add(problem, node)
        except Poisoned:
            if not self.found:
                self.add(ParseProblem("BW102", "a name is used in its own definition", node))
        except BlockwrightError as error:
            self.add(wrap(error), node)
        except Exception as error:  # noqa: BLE001  spliced Python can raise anything
            self.add(raised(error), node)

    def finish(self) -> None:
        """Raise if any problem was reported."""
        if self.found:
            self.fail()

    def fail(self) -> NoReturn:
        result = sorted(
            self.found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)
        )
        raise ScriptError.collect(result)


def raised(error: Exception, node: ast.AST | None = None) -> ParseProblem:
    """Convert an exception of spliced Python code to a problem of the script."""
    if isinstance(error, RecursionError) and not has_room():
        raise error  # the caller parses again with a larger stack
    text = f"{type(error).__name__}: {error}"
    return ParseProblem("BW109", f"evaluating this in Python raised {text}", node)


def wrap(error: BlockwrightError, node: ast.AST | None = None) -> ParseProblem:
    """Convert an error of a lower layer to a problem of the script."""
    code = error.code if error.code.startswith("BW1") else "BW107"
    return ParseProblem(code, error.message, node, error.help)
