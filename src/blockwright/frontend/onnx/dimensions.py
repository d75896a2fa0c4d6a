"""Dimensions of model inputs: numbers, names, and sums or products of names.

    [batch, 3, None]  →  (batch, 3, x_dim2)
    [n, 2*n]          →  (n, n * 2)

A text such as `2*n` is an expression if each of its names is a dimension of an input by itself; if
not, the text as a whole names a size.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.support import ImporterError

I64 = ir.dtype_of("int64")
_OPERATORS: dict[type[ast.operator], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    ast.Add: ir.add,
    ast.Sub: ir.sub,
    ast.Mult: ir.mul,
    ast.FloorDiv: ir.floordiv,
}


def identifier(name: str) -> str:
    """A name as an identifier: `input.1` → `input_1`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain and not plain[0].isdigit() else f"_{plain}"


class Dimensions:
    """Symbols of named and unnamed dimensions."""

    def __init__(self) -> None:
        self._symbols: dict[str, ir.Var] = {}
        self._plain: set[str] = set()
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """The name, with a number if it is taken."""
        result, number = name, 1
        while result in self._taken:
            result, number = f"{name}_{number}", number + 1
        self._taken.add(result)
        return result

    def declare(self, inputs: Sequence[Any]) -> None:
        """Note which names are dimensions by themselves."""
        for value in inputs:
            if value.type.WhichOneof("value") == "tensor_type":
                dims = value.type.tensor_type.shape.dim
                self._plain.update(d.dim_param for d in dims if d.dim_param.isidentifier())

    def shape(self, value: Any) -> tuple[ir.Expr, ...]:
        """The shape of an input.

        Raises: ImporterError BW525 if even its rank is unknown.
        """
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise ImporterError(
                f"the input {value.name!r} has no shape",
                code="BW525",
                help="declare its dimensions; unknown ones may stay without a value",
            )
        return tuple(
            self._dim(dim, f"{identifier(value.name)}_dim{axis}")
            for axis, dim in enumerate(tensor.shape.dim)
        )

    def _dim(self, dim: Any, label: str) -> ir.Expr:
        if dim.HasField("dim_value"):
            return ir.const(dim.dim_value, I64)
        if not dim.dim_param:
            return ir.Var(self.unique(label), I64)
        return self._expression(dim.dim_param) or self._symbol(dim.dim_param)

    def _symbol(self, name: str) -> ir.Var:
        if name not in self._symbols:
            self._symbols[name] = ir.Var(self.unique(identifier(name)), I64)
        return self._symbols[name]

    def _expression(self, text: str) -> ir.Expr | None:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            return None
        return None if isinstance(tree, ast.Name) else self._convert(tree)

    def _convert(self, tree: ast.expr) -> ir.Expr | None:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return ir.const(tree.value, I64)
        if isinstance(tree, ast.Name):
            return self._symbol(tree.id) if tree.id in self._plain else None
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
            a, b = self._convert(tree.left), self._convert(tree.right)
            return None if a is None or b is None else _OPERATORS[type(tree.op)](a, b)
        return None
