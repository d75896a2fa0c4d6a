"""Generator of the IR grammar page, `docs/ir-grammar.md`, from the node classes.

`python -m blockwright.ir.grammar > docs/ir-grammar.md` updates the page; a test checks that it is
up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from types import ModuleType

from blockwright.ir import buffer, expr, function, graph, reducer, stmt
from blockwright.ir.node import Node
from blockwright.ir.op import OPS

_SECTIONS: tuple[tuple[str, ModuleType], ...] = (
    ("Expressions", expr),
    ("Buffers, regions, iterators", buffer),
    ("Statements", stmt),
    ("Reducers", reducer),
    ("Functions and modules", function),
    ("Graph level", graph),
)
_INTRO = """# IR grammar

Generated from the node classes (`python -m blockwright.ir.grammar`); do not edit.
`X*` is a tuple, `X?` may be absent, `map` has string keys. Every node also has `span?`, its place
in the source. How nodes look in a script is shown in `src/blockwright/ir/printer`.
"""


def _type(annotation: str) -> str:
    """`tuple[Expr, ...]` as `Expr*`, `Expr | None` as `Expr?`."""
    text = annotation
    optional = text.endswith(" | None")
    text = text.removesuffix(" | None")
    text = re.sub(r"tuple\[(\w+), \.\.\.\]", r"\1*", text)
    text = re.sub(r"tuple\[tuple\[(\w+), (\w+)\], \.\.\.\]", r"(\1, \2)*", text)
    text = text.replace("dict[str, Any]", "map").replace("dict[str, Node]", "map of functions")
    text = text.replace("np.ndarray[Any, Any]", "array").replace("Any", "any value")
    return f"{text}?" if optional else text


def _annotation(cls: type[Node], field: str) -> str:
    for base in cls.__mro__:
        result = inspect.get_annotations(base).get(field)
        if result is not None:
            return str(result)
    raise KeyError(field)


def _fields(cls: type[Node]) -> str:
    hidden = {"span", "info"}
    names = [n for n in cls.__struct_fields__ if n not in hidden]
    return ", ".join(f"{_type(_annotation(cls, n))} {n}" for n in names)


def _summary(cls: type[Node]) -> str:
    symbol = getattr(cls, "symbol", "?")
    own = cls.__doc__ if cls.__dict__.get("__doc__") else None
    if own:
        return own.split("\n\n")[0].replace("\n", " ").strip()
    return f"`a {symbol} b`" if symbol != "?" else ""


def _classes(module: ModuleType) -> list[type[Node]]:
    result = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Node)]
    return [c for c in result if c.__module__ == module.__name__]


def _is_abstract(cls: type[Node]) -> bool:
    return bool(cls.__subclasses__())


def _section(title: str, module: ModuleType) -> list[str]:
    lines = [f"## {title}", ""]
    classes = _classes(module)
    groups: dict[type[Node], list[type[Node]]] = {}
    for cls in classes:
        if not _is_abstract(cls):
            base = next(b for b in cls.__mro__[1:] if b is Node or b.__subclasses__())
            groups.setdefault(base, []).append(cls)
    for base, members in groups.items():
        if base is not Node:
            extra = " Each has `Info? info`." if base is graph.GraphExpr else ""
            lines += [f"**{base.__name__}**: {_summary(base)}{extra}", ""]
        lines += ["| node | meaning |", "|---|---|"]
        lines += [f"| `{c.__name__}({_fields(c)})` | {_summary(c)} |" for c in members]
        lines.append("")
    return lines


def _operations() -> list[str]:
    """The section on builtin operations, grouped by kind."""
    lines = ["## Builtin operations", "", "Names that `Call.op` may have."]
    meaning = {
        "pure": "may be moved, copied and dropped",
        "read": "depends on memory",
        "effect": "must stay in place",
    }
    for kind, text in meaning.items():
        names = ", ".join(f"`{row.name}`" for row in OPS.values() if row.kind == kind)
        lines += ["", f"- {kind} ({text}): {names}"]
    return lines


def grammar_text() -> str:
    """Text of the whole page."""
    lines = [_INTRO]
    for title, module in _SECTIONS:
        lines += _section(title, module)
    return "\n".join([*lines, *_operations()]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(grammar_text())
