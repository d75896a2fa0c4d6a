"""Extract a function's own code from an assembly listing, without its calling convention.

A compiled unit also contains the exported entry, which checks call arguments, and everything that
only the entry uses, such as error messages and type names. That is a few hundred lines for a kernel
of ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_LABEL = re.compile(r'^(?P<name>"[^"]+"|[\w.$]+):')
_NAME = re.compile(r'"[^"]+"|[\w.$]+')
_SECTION = re.compile(r"^\s*\.(?:section|text|data|bss)\b")
_FUNCTION = re.compile(r'^\s*\.type\s+(?P<name>"[^"]+"|[\w.$]+),\s*[@%]function')
_END = re.compile(r'^\s*\.size\s+(?P<name>"[^"]+"|[\w.$]+),')
_HEADER = re.compile(r"^\s*\.(?:file|ident|addrsig)\b")
_BETWEEN = re.compile(r"^\s*\.(?:globl|weak|hidden|p2align|type|cfi_sections)\b|^\s*$")


class _Piece(msgspec.Struct):
    """The lines of one symbol, and the directive of its section."""

    name: str
    section: str
    lines: list[str]
    function: bool


def own_code(assembly: str, symbol: str) -> str:
    """The code of `symbol` and of the functions and data that it references.

    Returns the complete text when the optimizer has removed the symbol.
    """
    pieces = _pieces(assembly.splitlines())
    names = {piece.name.strip('"'): piece for piece in pieces}
    if symbol not in names:
        return assembly
    wanted, kept = [symbol], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept.add(name)
            wanted += [used for used in _uses(names[name].lines) if used in names]
    return "\n".join(_listing(p for n, p in names.items() if n in kept)) + "\n"


def _uses(lines: Iterable[str]) -> set[str]:
    return {name.strip('"') for line in lines for name in _NAME.findall(line)}


def _listing(pieces: Iterable[_Piece]) -> Iterable[str]:
    section = None
    for piece in pieces:
        if section is not None:
            yield ""
        if piece.section != section:
            section = piece.section
            yield section
        yield from piece.lines


def _pieces(lines: Iterable[str]) -> list[_Piece]:
    """Split a text into symbols; labels between a function's label and its size belong to it."""
    pieces: list[_Piece] = []
    functions: set[str] = set()
    section, before = "\t.text", list[str]()
    open_function = None
    for line in lines:
        if open_function is not None:
            pieces[-1].lines.append(line)
            end = _END.match(line)
            if end is not None and end["name"] == open_function:
                open_function = None
            continue
        if result := _FUNCTION.match(line):
            functions.add(result["name"])
        if _SECTION.match(line):
            section, before = line, []
        elif result := _LABEL.match(line):
            name = result["name"]
            pieces.append(_Piece(name, section, [*before, line], name in functions))
            before = []
            open_function = name if name in functions else None
        elif _BETWEEN.match(line):
            if line.strip():
                before.append(line)
        elif pieces and not _HEADER.match(line):
            pieces[-1].lines.append(line)
    return pieces
