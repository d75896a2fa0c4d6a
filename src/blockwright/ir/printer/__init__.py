"""Printer of nodes of both levels in the script dialects.

`script(node)` is what `repr` shows. For whole functions and modules, the parser reads the text
back into a structurally equal program. `marks` are nodes to underline in error messages.
`constants` receives arrays too large to print, keyed by the names that the text uses for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blockwright.ir.node import Node, set_printer
from blockwright.ir.printer.graph import ScriptPrinter
from blockwright.support.stack import deep

__all__ = ["install", "script"]


@deep
def script(
    node: Node, *, marks: Iterable[Node] = (), constants: dict[str, Any] | None = None
) -> str:
    """Script text of a node."""
    printer = ScriptPrinter(marks, constants)
    printer.any_node(node)
    return printer.out.text()


def install() -> None:
    """Use `script` for `repr(node)` and error messages."""
    set_printer(script)


install()
