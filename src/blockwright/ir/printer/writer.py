"""Text output with indentation, unique names and underlined nodes.

A marked node is wrapped in two private characters while its text is put together; the line writer
takes them out again and underlines what stood between them. So no printing method has to count
columns, and an error can show a program with the guilty nodes underlined.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Generator
from contextlib import contextmanager

from blockwright.ir.node import Node

_OPEN, _CLOSE = "\ue000", "\ue001"
_RESERVED = frozenset({"T", "R", "I", "cls", "range", "float", "min", "max"})
_NOT_NAME = re.compile(r"\W")


def identifier(text: str, default: str = "v") -> str:
    """The nearest Python identifier to `text`."""
    name = _NOT_NAME.sub("_", text) or default
    if name[0].isdigit():
        name = f"{default}_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


class Names:
    """Names of definitions, unique among those visible; a name is free again after its scope."""

    def __init__(self) -> None:
        self._names: dict[Node, str] = {}
        self._used: set[str] = set()
        self._scopes: list[list[tuple[Node | None, str]]] = [[]]

    @contextmanager
    def scope(self) -> Generator[None]:
        self._scopes.append([])
        try:
            yield
        finally:
            for node, name in self._scopes.pop():
                if node is not None:
                    self._names.pop(node, None)
                self._used.discard(name)

    def define(self, node: Node | None, hint: str, depth: int = -1) -> str:
        """A fresh name for `node` in the innermost scope (or the scope at `depth`)."""
        base = identifier(hint)
        name, count = base, 0
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        if node is not None:
            self._names[node] = name
        self._scopes[depth].append((node, name))
        return name

    def known(self, node: Node) -> bool:
        return node in self._names

    def of(self, node: Node, hint: str) -> str:
        """The name of a definition; a free one is named at its first mention."""
        found = self._names.get(node)
        return self.define(node, hint, depth=0) if found is None else found


def mark(text: str) -> str:
    """`text` to be underlined when its line is written."""
    return f"{_OPEN}{text}{_CLOSE}"


class Writer:
    """Collects lines at the current indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    @contextmanager
    def indent(self) -> Generator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def line(self, text: str = "") -> None:
        pad = "    " * self._depth if text else ""
        if _OPEN not in text:
            self._lines.append(pad + text)
            return
        plain: list[str] = []
        carets: list[str] = []
        level = 0
        for char in text:
            if char == _OPEN:
                level += 1
            elif char == _CLOSE:
                level -= 1
            else:
                plain.append(char)
                carets.append("^" if level else " ")
        self._lines.append(pad + "".join(plain))
        self._lines.append((pad + "".join(carets)).rstrip())

    def text(self) -> str:
        return "\n".join(self._lines)
