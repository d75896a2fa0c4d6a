"""Text output with indentation, unique names and underlined nodes.

The text of a marked node is wrapped in two private-use characters; the line writer strips them and
underlines the text between them. Printing methods therefore need not track columns.

An integer in an index position is also wrapped, together with its type, until the whole function
is printed: only then is the most frequent index type known (`Writer.settle`).
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from blockwright.ir.dtype import INT32, INT64, DType
from blockwright.ir.node import Node

_OPEN, _CLOSE = "\ue000", "\ue001"
_INDEX = re.compile("\ue002(\\w+):(-?\\d+)\ue003")
_RESERVED = frozenset({"T", "R", "I", "cls", "range", "float", "min", "max"})
_NOT_NAME = re.compile(r"\W")


def identifier(text: str, default: str = "v") -> str:
    """Convert `text` to a valid Python identifier that is not reserved."""
    name = _NOT_NAME.sub("_", text) or default
    if name[0].isdigit():
        name = f"{default}_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


def member_names(keys: Iterable[str]) -> dict[str, str]:
    """The name that each function of a module is defined by; those that need none keep theirs."""
    given = list(keys)
    result = {key: key for key in given if identifier(key, "func") == key}
    for key in given:
        base = spelled = identifier(key, "func")
        count = 0
        while key not in result and spelled in result.values():
            count += 1
            spelled = f"{base}_{count}"
        result.setdefault(key, spelled)
    return result


class NameScope:
    """Unique names for definitions; a name becomes available again at the end of its scope."""

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
        """Allocate a unique name for `node` in the innermost scope (or the scope at `depth`)."""
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
        """Name of a definition; an undefined node is named at first use, in the outermost scope."""
        result = self._names.get(node)
        return self.define(node, hint, depth=0) if result is None else result


def mark(text: str) -> str:
    """Mark `text` for underlining when its line is written."""
    return f"{_OPEN}{text}{_CLOSE}"


def index_literal(value: int, dtype: DType) -> str:
    """An integer in an index position; printed bare if it has the function's index type."""
    return f"\ue002{dtype}:{value}\ue003"


def _settled(text: str, dtype: DType) -> str:
    """Resolve the index literals of a line: bare if of type `dtype`, otherwise with their type."""
    if "\ue002" not in text:
        return text
    return _INDEX.sub(lambda m: m[2] if m[1] == dtype.name else f"T.{m[1]}({m[2]})", text)


class Writer:
    """Collects lines at the current indentation."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []  # indentation and text
        self._depth = 0

    @contextmanager
    def indent(self) -> Generator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def line(self, text: str = "") -> None:
        self._lines.append((self._padding(text), text))

    def insert(self, position: int, text: str) -> None:
        """Insert a line before `position`, at the current indentation."""
        self._lines.insert(position, (self._padding(text), text))

    def _padding(self, text: str) -> str:
        return "    " * self._depth if text else ""

    @property
    def position(self) -> int:
        """Index of the next line."""
        return len(self._lines)

    def settle(self, start: int) -> DType:
        """Resolve the index literals from line `start` on.

        Returns:
            The most frequent type among them, whose literals are printed bare.
        """
        lines = self._lines
        result = Counter(m[1] for _, text in lines[start:] for m in _INDEX.finditer(text))
        dtype = INT64 if result["int64"] > result["int32"] else INT32
        lines[start:] = [(pad, _settled(text, dtype)) for pad, text in lines[start:]]
        return dtype

    def text(self) -> str:
        out: list[str] = []
        for pad, text in self._lines:
            out += _underlined(pad, _settled(text, INT32))
        return "\n".join(out)


def _underlined(pad: str, text: str) -> list[str]:
    """A line, followed by a line of carets if it has marks."""
    if _OPEN not in text:
        return [pad + text]
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
    return [pad + "".join(plain), (pad + "".join(carets)).rstrip()]
