"""Size expressions as text: written by the compiler, evaluated at run time without the compiler.

The language is Python's integer arithmetic: `+ - * // %`, `min`, `max`, names and numbers. The
syntax tree is interpreted; nothing is executed as Python code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from blockwright.support import ArtefactError

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def evaluate_size(text: int | str, values: Mapping[str, int]) -> int:
    """The value of a size expression for given symbols; ArtefactError (BW804) when malformed."""
    if isinstance(text, int):
        return text
    try:
        return _walk(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, KeyError, ZeroDivisionError) as error:
        raise ArtefactError(
            f"size expression {text!r} cannot be evaluated: {error}", code="BW804"
        ) from None


def _walk(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_walk(node.left, values), _walk(node.right, values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_walk(node.operand, values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return _CALLS[node.func.id](*(_walk(a, values) for a in node.args))
    raise KeyError(ast.dump(node))


def bind_symbols(shapes: Sequence[tuple[Sequence[int | str], Sequence[int]]]) -> dict[str, int]:
    """Symbol values from (declared shape, actual shape) pairs; the first occurrence binds.

    A symbol that is never a whole dimension is solved for where it is the only unknown of a
    dimension that is linear in it, such as `2*n + 1`.
    """
    values: dict[str, int] = {}
    open_: list[tuple[str, int]] = []
    for declared, actual in shapes:
        for size, number in zip(declared, actual, strict=False):
            if isinstance(size, str) and size.isidentifier():
                values.setdefault(size, int(number))
            elif isinstance(size, str):
                open_.append((size, int(number)))
    while any(_solve(size, number, values) for size, number in open_):
        pass
    return values


def _solve(size: str, number: int, values: dict[str, int]) -> bool:
    """Solve a size for its only unknown symbol and bind it; False if that is impossible."""
    names = {node.id for node in ast.walk(ast.parse(size, mode="eval")) if _is_symbol(node)}
    unknown = names - values.keys()
    if len(unknown) != 1:
        return False
    (name,) = unknown
    at_zero, at_one = (evaluate_size(size, {**values, name: n}) for n in (0, 1))
    step = at_one - at_zero
    if step == 0 or (number - at_zero) % step:
        return False
    result = (number - at_zero) // step
    if evaluate_size(size, {**values, name: result}) != number:
        return False
    values[name] = result
    return True


def _is_symbol(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id not in _CALLS
