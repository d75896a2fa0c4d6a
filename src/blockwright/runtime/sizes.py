"""Size expressions as text: written by the compiler, evaluated at run time without the compiler.

The language is Python's arithmetic on integers and floats, with conditions, names and numbers, and
the functions of `FUNCTIONS`; assignments before the expression name its common parts. The syntax
tree is interpreted; nothing is executed as Python code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockwright.support import ArtefactError

_MOST_BITS = 64  # of a power or a shifted number


def _power(a: Any, b: Any) -> Any:
    return a**b if 0 <= b <= _MOST_BITS else _too_large()


def _shifted(a: int, b: int) -> int:
    return a << b if 0 <= b <= _MOST_BITS else _too_large()


def _too_large() -> Any:
    raise OverflowError(f"an exponent is not in 0..{_MOST_BITS}")


def _truncdiv(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: lambda a, b: a // b, ast.Div: lambda a, b: a / b, ast.Pow: _power,
    ast.LShift: _shifted, ast.RShift: lambda a, b: a >> b, ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "truncdiv": _truncdiv, "int": int, "float": float, "sqrt": math.sqrt,
    "abs": abs,
}  # fmt: skip


def evaluate_size(text: int | str, values: Mapping[str, int]) -> int:
    """The value of a size expression for given symbols; ArtefactError (BW804) when malformed."""
    if isinstance(text, int):
        return text
    try:
        parts, expression = _parsed(text)
        return int(_Evaluation(parts, values).of(expression))
    except (SyntaxError, KeyError, ArithmeticError, ValueError, RecursionError) as error:
        raise ArtefactError(
            f"size expression {text!r} cannot be evaluated: {error}", code="BW804"
        ) from None


def _parsed(text: str) -> tuple[dict[str, ast.expr], ast.expr]:
    """Name → common part, and the expression, of `a = n + 1; a * a`."""
    parts: dict[str, ast.expr] = {}
    *assignments, last = ast.parse(text).body or [None]
    for line in assignments:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in parts:
                parts[name] = value
            case _:
                raise SyntaxError("an assignment of one name is expected before the expression")
    if not isinstance(last, ast.Expr):
        raise SyntaxError("the last part is not an expression")
    return parts, last.value


class _Evaluation:
    """The value of an expression; a common part is evaluated once, and only if it is reached."""

    def __init__(self, parts: Mapping[str, ast.expr], values: Mapping[str, int]) -> None:
        self._parts = dict(parts)
        self._values: dict[str, Any] = dict(values)

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                if name in self._parts:  # removed first: a part that names itself is malformed
                    self._values[name] = self.of(self._parts.pop(name))
                return self._values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.of(left), self.of(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.of(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.of(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return _COMPARISONS[type(op)](self.of(left), self.of(right))
            case ast.BoolOp(op=op, values=parts):
                every = isinstance(op, ast.And)
                return (all if every else any)(self.of(part) for part in parts)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.of(body if self.of(test) else other)
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return FUNCTIONS[name](*(self.of(a) for a in args))
            case _:
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
    parts, expression = _parsed(size)
    nodes = [node for part in (*parts.values(), expression) for node in ast.walk(part)]
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in functions}
    unknown = names - values.keys() - parts.keys()
    if len(unknown) != 1:
        return False
    (name,) = unknown
    try:
        at_zero, at_one = (evaluate_size(size, {**values, name: n}) for n in (0, 1))
    except ArtefactError:  # divided by the symbol
        return False
    step = at_one - at_zero
    if step == 0 or (number - at_zero) % step:
        return False
    result = (number - at_zero) // step
    if evaluate_size(size, {**values, name: result}) != number:
        return False
    values[name] = result
    return True
