"""Facts read off the syntax tree of a graph function before it is evaluated."""

from __future__ import annotations

import ast

_OUTPUT = ("output", "outputs")


def parse_text(text: str, place: ast.expr) -> ast.expr:
    tree = ast.parse(text, mode="eval").body
    for part in ast.walk(tree):
        ast.copy_location(part, place)
    return tree


def declared_types(node: ast.FunctionDef) -> dict[str, str]:
    """Types of symbols declared in a body as `n = T.int32()`, which the signature mentions."""
    out: dict[str, str] = {}
    for stmt in node.body:
        if isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Name):
            func = stmt.value.func if isinstance(stmt.value, ast.Call) else None
            if isinstance(func, ast.Attribute):
                kind = func.attr
                if kind.startswith(("int", "uint")) and kind[-1].isdigit():
                    out[stmt.targets[0].id] = kind
    return out


def output_names(body: list[ast.stmt]) -> set[str]:
    """Names listed in the `R.output(…)` of a dataflow block."""
    out: set[str] = set()
    for stmt in body:
        call = stmt.value if isinstance(stmt, ast.Expr) else None
        func = call.func if isinstance(call, ast.Call) else None
        if call is not None and isinstance(func, ast.Attribute) and func.attr in _OUTPUT:
            out |= {n.id for n in ast.walk(call) if isinstance(n, ast.Name) and n is not func.value}
    return out


def defined(node: ast.stmt) -> list[str]:
    """Names that a statement defines for the statements after it."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.FunctionDef):
        return [node.name]
    elif isinstance(node, ast.If):
        return [name for part in node.body[-1:] + node.orelse[-1:] for name in defined(part)]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def word(node: ast.stmt) -> str:
    words = {"AsyncFunctionDef": "async def", "ClassDef": "class", "ImportFrom": "import",
             "AugAssign": "x += …"}  # fmt: skip
    return words.get(type(node).__name__, type(node).__name__.lower())
