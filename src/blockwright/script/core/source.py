"""Locate the source text of a script and the Python names that it may use.

A decorator receives a function or class object; its definition is found in its file by line number,
so that spans are lines and columns of that file. Text without a file is passed as a string.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import sys
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any

from blockwright.support import ScriptError, SourceFile, Span
from blockwright.support.stack import has_room

_SAFE_BUILTINS = (
    "abs",
    "bool",
    "dict",
    "enumerate",
    "float",
    "int",
    "len",
    "list",
    "max",
    "min",
    "range",
    "reversed",
    "str",
    "sum",
    "tuple",
    "zip",
    "sorted",
)


class Script:
    """Source text of a program, with the enclosing Python names.

    Attributes:
        trusted: whether the text is part of an executed Python file. Text passed as data can only
            access the dialects and a few harmless builtins.
    """

    def __init__(
        self, file: SourceFile, node: ast.AST, env: Mapping[str, Any], trusted: bool = True
    ) -> None:
        self.file, self.node, self.trusted = file, node, trusted
        self.env = dict(env)

    @property
    def function(self) -> ast.FunctionDef:
        """The definition, for the text of a function."""
        assert isinstance(self.node, ast.FunctionDef)
        return self.node

    def span(self, node: ast.AST) -> Span:
        line = getattr(node, "lineno", 1)
        end_line = getattr(node, "end_lineno", None) or line
        start = self._column(line, getattr(node, "col_offset", 0))
        end = self._column(end_line, getattr(node, "end_col_offset", None) or 0)
        return Span(self.file, line, start, end_line, end)

    def _column(self, line: int, offset: int) -> int:
        """Convert a byte offset of `ast` to a column in characters."""
        text = self.file.line(line)
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))

    @property
    def builtins(self) -> Mapping[str, Any]:
        if self.trusted:
            return vars(builtins)
        return {name: getattr(builtins, name) for name in _SAFE_BUILTINS}


@functools.lru_cache(maxsize=64)
def _parse(name: str, text: str) -> tuple[SourceFile, ast.Module]:
    file = SourceFile(name, text)
    try:
        return file, ast.parse(text)
    except (MemoryError, RecursionError) as error:  # nesting limits of Python's parser
        if isinstance(error, RecursionError) and not has_room():
            raise
        raise ScriptError(
            "Python's parser refuses the text: an expression or statement is nested too deeply",
            code="BW101",
            help="assign intermediate results to names",
        ) from None
    except UnicodeEncodeError as error:
        raise ScriptError(
            f"the text holds {text[error.start]!r}, half of a surrogate pair",
            code="BW101",
            help="decode the text again; a file is read with encoding='utf-8'",
        ) from None
    except SyntaxError as error:
        line, column = error.lineno or 1, (error.offset or 1) - 1
        end_line, end = error.end_lineno or line, (error.end_offset or 0) - 1
        span = Span(file, line, column, end_line, max(end, column + 1))
        raise ScriptError(f"not Python syntax: {error.msg}", code="BW101", span=span) from None


def text_script(text: str, env: Mapping[str, Any], name: str = "<script>") -> Script:
    """A script from a string; its node is the whole module."""
    file, tree = _parse(name, text)
    return Script(file, tree, env, trusted=False)


def _file_tree(filename: str, what: str) -> tuple[SourceFile, ast.Module]:
    lines = linecache.getlines(filename)
    if not lines:
        raise ScriptError(
            f"the source text of {what} is not available",
            code="BW110",
            help="parse text directly with blockwright.from_source(text)",
        )
    return _parse(filename, "".join(lines))


def _decorator_lines(node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    lines = [d.lineno for d in node.decorator_list] or [node.lineno]
    return min(lines), node.lineno


def decorated_function(func: FunctionType, env: Mapping[str, Any]) -> Script:
    """The definition of a decorated function, found in its file."""
    first = func.__code__.co_firstlineno
    file, tree = _file_tree(func.__code__.co_filename, f"{func.__qualname__!r}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == func.__name__:
            low, high = _decorator_lines(node)
            if low <= first <= high:
                return Script(file, node, {**env, **_closure(func)})
    raise ScriptError(
        f"the definition of {func.__qualname__!r} is no longer in its file",
        code="BW110",
        help="has the file changed since it was loaded?",
    )


def decorated_class(cls: type, frame: FrameType, env: Mapping[str, Any]) -> Script:
    """The definition of a class whose decorator is being called in `frame`."""
    file, tree = _file_tree(frame.f_code.co_filename, f"{cls.__qualname__!r}")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            low, high = _decorator_lines(node)
            if low <= frame.f_lineno <= max(high, node.end_lineno or high):
                captured: dict[str, Any] = {}
                for value in vars(cls).values():
                    func = getattr(value, "raw_function", value)
                    if isinstance(func, FunctionType):
                        captured.update(_closure(func))
                return Script(file, node, {**env, **captured})
    raise ScriptError(
        f"the definition of {cls.__qualname__!r} is no longer in its file",
        code="BW110",
        help="has the file changed since it was loaded?",
    )


def _closure(func: FunctionType) -> dict[str, Any]:
    names = func.__code__.co_freevars
    cells = func.__closure__ or ()
    out: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            out[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return out


def caller_environment(depth: int) -> tuple[FrameType, dict[str, Any]]:
    """The frame `depth` calls up the stack, and its names."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]  no public way
    return frame, {**frame.f_globals, **frame.f_locals}


def in_module_class(func: FunctionType, frame: FrameType) -> bool:
    """Whether a decorated function is defined directly in a class with `@I.ir_module`."""
    if "__qualname__" not in frame.f_locals or "__module__" not in frame.f_locals:
        return False
    _, tree = _file_tree(func.__code__.co_filename, f"{func.__qualname__!r}")
    line = func.__code__.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
            names = {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}
            if "ir_module" in names:
                return True
    return False
