"""Program text of nodes of both levels, in the classic script dialects.

`script(node)` is what `repr` shows; for whole functions and modules the parser reads it back into
a structurally equal program. `marks` underlines nodes, for errors; `constants` receives the arrays
that are too large to be spelled out, under the names by which the text refers to them.
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
    """Program text of a node."""
    printer = ScriptPrinter(marks, constants)
    printer.any_node(node)
    return printer.out.text()


def install() -> None:
    """Make `script` what `repr(node)` and errors show."""
    set_printer(script)


install()
