"""Syntax-tree helpers for scripts: assignment targets, names, statement words."""

from __future__ import annotations

import ast


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:] if isinstance(first.value.value, str) else body
    return body


def function_name(node: ast.FunctionDef) -> str:
    """The name of a function: that of its `def` line, unless the option `name` states another."""
    options = [k for d in node.decorator_list if isinstance(d, ast.Call) for k in d.keywords]
    for option in options:
        value = option.value
        if (
            option.arg == "name"
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            return value.value
    return node.name


def side_by_side(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The pairs of `n, m = T.int64(), T.int64()`, so that each definition gets its own name."""
    kinds = (ast.Tuple, ast.List)
    if not (isinstance(target, kinds) and isinstance(value, kinds)):
        return []
    starred = any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts))
    if starred or len(target.elts) != len(value.elts):
        return []
    return list(zip(target.elts, value.elts, strict=True))


def names_of(target: ast.expr | None) -> list[str]:
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for part in target.elts for name in names_of(part)]
    return names_of(target.value) if isinstance(target, ast.Starred) else []


def parts_of(targets: list[ast.expr], count: int) -> list[tuple[ast.expr, slice | int]] | None:
    """The position of the value, or with a star the slice, that each target receives.

    None if the numbers of targets and values do not match.
    """
    stars = [k for k, part in enumerate(targets) if isinstance(part, ast.Starred)]
    if not stars:
        return list(zip(targets, range(count), strict=True)) if len(targets) == count else None
    star, behind = stars[0], len(targets) - stars[0] - 1
    if len(stars) > 1 or count < len(targets) - 1:
        return None
    result: list[tuple[ast.expr, slice | int]] = []
    for k, part in enumerate(targets):
        if isinstance(part, ast.Starred):
            result.append((part.value, slice(star, count - behind)))
        else:
            result.append((part, k if k < star else count - len(targets) + k))
    return result


def loop_names(parts: list[tuple[ast.expr, slice | int]], count: int) -> list[str]:
    """A name for each of `count` loop variables; the loops of `*i` are `i_0`, `i_1`, …"""
    result = [""] * count
    for part, place in parts:
        name = part.id if isinstance(part, ast.Name) else "i"
        if isinstance(place, int):
            result[place] = name
        else:
            for k, position in enumerate(range(count)[place]):
                result[position] = f"{name}_{k}"
    return result


def targets(node: ast.stmt) -> list[str]:
    """Names that a statement defines for the statements after it."""
    if isinstance(node, ast.Assign):
        return [name for target in node.targets for name in names_of(target)]
    return names_of(node.target) if isinstance(node, ast.AnnAssign) else []


def word(node: ast.stmt) -> str:
    words = {
        "FunctionDef": "def",
        "AsyncFunctionDef": "async def",
        "ClassDef": "class",
        "ImportFrom": "import",
        "Try": "try",
        "Match": "match",
    }
    return words.get(type(node).__name__, type(node).__name__.lower())
