"""Conditionals and while loops as frames, for the IR builder and for Python helpers.

Scripts use the Python statements `if` and `while` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.ir import Expr, Stmt
from blockwright.script.tir.builder import Builder, FrameOf, StatementFrame
from blockwright.script.tir.values import to_expr
from blockwright.support import ScriptError


class IfFrame(StatementFrame):
    """`with T.If(c):` around `with T.Then():` and `with T.Else():`."""

    def __init__(self, condition: Expr) -> None:
        super().__init__()
        self.condition = condition
        self.branches: dict[str, Stmt] = {}

    def finished(self, builder: Builder) -> None:
        if self.items or "T.Then" not in self.branches:
            raise ScriptError(
                "T.If must contain T.Then, optionally T.Else, and nothing else", code="BW108"
            )
        builder.emit(ir.IfThenElse(self.condition, *self.branches.values(), span=self.span))


def If(
    condition: Any, then: Callable[[], Any] | None = None, orelse: Callable[[], Any] | None = None
) -> Any:
    """A conditional: `T.Then()` and `T.Else()` inside `with T.If(c):`, or functions that emit."""
    test = to_expr(condition)
    if then is None:
        return IfFrame(test)
    with IfFrame(test):
        with Then():
            then()
        if orelse is not None:
            with Else():
                orelse()
    return None


def Then() -> FrameOf:
    """The branch that runs if the condition of the enclosing `T.If` is true."""
    return _branch("T.Then")


def Else() -> FrameOf:
    """The branch that runs if the condition of the enclosing `T.If` is false."""
    return _branch("T.Else")


def _branch(word: str) -> FrameOf:
    frame = Builder.current(word).frame(IfFrame, word, "directly in T.If")
    if word in frame.branches or (word == "T.Else") != bool(frame.branches):
        raise ScriptError(
            f"{word} occurs twice or too early",
            code="BW108",
            help="first T.Then, then at most one T.Else",
        )

    def done(body: Stmt) -> None:
        frame.branches[word] = body

    return FrameOf(done)


def While(condition: Any) -> FrameOf:
    """A loop that repeats its body while the condition is true."""
    test, builder = to_expr(condition), Builder.current("T.While")
    span = builder.span
    return FrameOf(lambda body: builder.emit(ir.While(test, body, span=span)))


__all__ = ["Else", "If", "Then", "While"]
