"""Syntax-tree helpers for graph functions, used before evaluation."""

from __future__ import annotations

import ast

from blockwright.script.core import ParseProblem

_OUTPUT = ("output", "outputs")


def parse_text(text: str, place: ast.expr) -> ast.expr:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ParseProblem("BW101", f"{text!r} is not an annotation", place) from None
    for part in ast.walk(tree):
        ast.copy_location(part, place)
    return tree


def declared_types(node: ast.FunctionDef) -> dict[str, str]:
    """Types of symbols declared in the body as `n = T.int32()`; the signature may use them."""
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
    """Names listed in the `R.output(…)` of a dataflow block, which must be its last statement."""
    calls = [call for stmt in body if (call := _output_call(stmt)) is not None]
    if not calls:
        return set()
    if len(calls) > 1:
        raise ParseProblem(
            "BW111",
            "a dataflow block has one R.output",
            calls[1],
            "list all names that leave the block in the last statement",
        )
    if _output_call(body[-1]) is None:
        raise ParseProblem(
            "BW108",
            "a statement follows R.output",
            body[-1],
            "R.output must be the last statement of the dataflow block",
        )
    listed: list[ast.expr] = []
    for arg in calls[0].args:
        listed += arg.elts if isinstance(arg, (ast.Tuple, ast.List)) else [arg]
    for arg in listed:
        if not isinstance(arg, ast.Name):
            raise ParseProblem("BW106", "R.output lists names of the dataflow block", arg)
    return {arg.id for arg in listed if isinstance(arg, ast.Name)}


def _output_call(stmt: ast.stmt) -> ast.Call | None:
    call = stmt.value if isinstance(stmt, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    is_output = isinstance(func, ast.Attribute) and func.attr in _OUTPUT
    return call if is_output and isinstance(call, ast.Call) else None


def defined(node: ast.stmt) -> list[str]:
    """Names that a statement defines for the statements after it."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.FunctionDef):
        return [node.name]
    elif isinstance(node, ast.With):
        return [name for part in node.body for name in defined(part)]
    elif isinstance(node, ast.If):
        return [name for part in node.body[-1:] + node.orelse[-1:] for name in defined(part)]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def word(node: ast.stmt) -> str:
    words = {
        "AsyncFunctionDef": "async def",
        "ClassDef": "class",
        "ImportFrom": "import",
        "AugAssign": "x += …",
    }
    return words.get(type(node).__name__, type(node).__name__.lower())


def last_assignment(body: list[ast.stmt], node: ast.If) -> tuple[str, ast.expr]:
    """The name and value of the assignment at the end of a branch."""
    last = body[-1] if body else None
    target = last.targets[0] if isinstance(last, ast.Assign) else getattr(last, "target", None)
    value = getattr(last, "value", None)
    if not isinstance(target, ast.Name) or not isinstance(value, ast.expr):
        raise ParseProblem(
            "BW103",
            "a branch ends by assigning the value of the `if`",
            node,
            "if c: y = … else: y = …",
        )
    return target.id, value
