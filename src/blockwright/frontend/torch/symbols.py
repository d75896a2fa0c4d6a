"""Symbolic sizes of an exported program as dimension expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

from blockwright import ir
from blockwright.frontend.torch.size_arithmetic import absolute, rounded_exactly
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import ImporterError

_UNBOUNDED = 1 << 40
_FIRST = 2  # where the exporter starts the range of a symbol of its own
_WHOLE = {"TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round"}
_ALLOWED = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")


class SymbolTable:
    """Maps the exporter's size symbols to int64 variables, with their declared ranges.

    A symbol with a factor becomes the factor times a variable, because all its values are
    multiples.
    """

    def __init__(
        self,
        range_constraints: Any,
        names: dict[str, str],
        factors: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._factors = factors
        self._computed: dict[Any, ir.Expr | None] = {}
        self._vars: dict[str, ir.Var] = {}
        self._names = names
        self._declared = list(range_constraints.items())
        self._ranges = {str(symbol): bounds for symbol, bounds in self._declared}

    def dim(self, size: Any) -> ir.Expr:
        """Convert an int or SymInt to an expression."""
        if isinstance(size, int):
            return ir.const(size, "int64")
        return self._convert(_expression(size))

    def ends(self, name: str) -> tuple[int | None, int | None]:
        """The declared ends of a symbol's range, where there are any."""
        bounds = self._ranges.get(name)
        if bounds is None:
            return 0, None
        low, high = _finite(bounds.lower, -_UNBOUNDED), _finite(bounds.upper, _UNBOUNDED)
        return None if low <= -_UNBOUNDED else low, None if high >= _UNBOUNDED else high

    def define(self, size: Any, value: ir.Expr) -> None:
        """Define a SymInt that the model computes in floating point as `value`, which rounds as the
        model does. The exporter's expression may have its operations in another order; shapes
        cannot have it if two computations share it.

        Raises: ImporterError BW503 if the exporter writes it as an integer computation.
        """
        expression = _expression(size)
        if type(expression).__name__ not in _WHOLE:
            raise self._unknown(expression)
        known = self._computed.setdefault(expression, value)
        if known is not None and not ir.structural_equal(known, value):
            self._computed[expression] = None

    def condition(self, condition: Any) -> ir.Expr:
        """Convert a bool, a SymBool or its expression. Raises: ImporterError BW508."""
        if isinstance(condition, bool):
            return ir.const(condition, "bool")
        return self._truth(_expression(condition) if hasattr(condition, "node") else condition)

    def readable(self, expression: Any) -> str:
        """The text of an exporter's expression, with our names of its symbols."""
        text = str(expression)
        for symbol in expression.free_symbols:
            name = str(symbol)
            text = re.sub(rf"\b{name}\b", self._names.get(name, name), text)
        return text

    def _truth(self, expression: Any) -> ir.Expr:
        kind = type(expression).__name__
        if kind in _RELATIONS:
            sides = expression.lhs, expression.rhs
            if all(side.is_integer for side in sides):
                return ir.compare(_RELATIONS[kind], *map(self._convert, sides))
            left, right = (self._float(side) for side in sides)
            if left is None or right is None:
                raise self._unknown(expression)
            return ir.compare(_RELATIONS[kind], left, right)
        if kind in ("BooleanTrue", "BooleanFalse"):
            return ir.const(kind == "BooleanTrue", "bool")
        parts = [self._truth(part) for part in expression.args]
        if kind == "Not":
            return ir.logical_not(parts[0])
        if kind in ("And", "Or"):
            return _fold(ir.logical_and if kind == "And" else ir.logical_or, parts)
        raise ImporterError(
            f"condition {expression} on a size that is known only at run time is not supported",
            code="BW508",
            help="check it with comparisons of sums and products of sizes",
        )

    def _convert(self, expression: Any) -> ir.Expr:
        """Convert a sympy expression of integers."""
        kind = type(expression).__name__
        if expression in self._computed:
            known = self._computed[expression]
            if known is None:
                raise self._unknown(expression)
            return known
        if getattr(expression, "is_Integer", False):
            return ir.const(int(expression), "int64")
        if getattr(expression, "is_Symbol", False):
            name = str(expression)
            factor = self._factors.get(name)
            variable = self.symbol(name)
            return variable if factor is None else ir.mul(variable, ir.const(factor, "int64"))
        if kind in _WHOLE:
            value = self._float(expression.args[0])
            exact = None if value is None else rounded_exactly(_WHOLE[kind], value, self.is_size)
            if exact is None:
                raise self._unknown(expression)
            return exact
        if kind == "Piecewise":
            return self._piecewise(expression.args)
        args = [self._convert(a) for a in expression.args]
        if kind == "Pow" and isinstance(args[1], ir.IntImm) and args[1].value > 0:
            return _fold(ir.mul, [args[0]] * args[1].value)
        if kind == "Abs":
            return absolute(args[0])
        if kind in _CALLS:
            return ir.call(_CALLS[kind], *args)
        if kind in _FOLDS and args:
            return _fold(_FOLDS[kind], args)
        raise self._unknown(expression)

    def _piecewise(self, parts: Any) -> ir.Expr:
        """Values of which the first whose condition holds is taken; the last condition is True."""
        *others, (last, _) = parts
        result = self._convert(last)
        for value, condition in reversed(others):
            result = ir.if_then_else(self._truth(condition), self._convert(value), result)
        return result

    def _float(self, expression: Any) -> ir.Expr | None:
        """A product, quotient or sum of floats; None for other operations."""
        kind = type(expression).__name__
        if getattr(expression, "is_Float", False) or getattr(expression, "is_Integer", False):
            return ir.const(float(expression), "float64")
        if kind == "ToFloat":
            return ir.cast_to(self._convert(expression.args[0]), "float64")
        if kind == "IntTrueDiv":
            return ir.truediv(
                *(ir.cast_to(self._convert(part), "float64") for part in expression.args)
            )
        if kind not in ("Mul", "FloatTrueDiv", "Add") or (
            kind == "Add" and len(expression.args) > 2  # in an order that is not known
        ):
            return None
        result: ir.Expr | None = None
        for part in expression.args:
            factor = self._float(part)
            if factor is None:
                return None
            join = {"Mul": ir.mul, "FloatTrueDiv": ir.truediv, "Add": ir.add}[kind]
            result = factor if result is None else join(result, factor)
        return result

    def is_size(self, variable: ir.Var) -> bool:
        """Whether a variable is known not to be negative."""
        name = next((name for name, known in self._vars.items() if known is variable), "")
        low = self.ends(name)[0]
        return low is not None and low >= 0

    def _unknown(self, expression: Any) -> ImporterError:
        return ImporterError(
            f"size expression {expression} is not supported",
            code="BW503",
            help="declare the dimension with a Dim of its own",
        )

    def symbol(self, name: str) -> ir.Var:
        """The variable of an exporter symbol such as ``s43``."""
        result = self._vars.get(name)
        if result is None:
            label = self._names.get(name, name)
            label = label if _ALLOWED.match(label) else name
            if name in self._factors:
                label = f"{label}_by_{self._factors[name]}"
            result = ir.Var(label, ir.dtype_of("int64"))
            self._vars[name] = result
        return result

    def names(self) -> dict[ir.Var, str]:
        """Variable → the exporter's symbol."""
        return {variable: name for name, variable in self._vars.items()}

    def bounds(self, sizes: Iterable[Any] = ()) -> dict[str, dict[str, int]]:
        """Function attributes with the declared ranges of all symbols seen.

        Args:
            sizes: dimensions of the inputs, as ints or SymInts.
        """
        plain = {
            str(expression)
            for expression in map(_expression, sizes)
            if getattr(expression, "is_Symbol", False)
        }
        lower: dict[str, int] = {}
        upper: dict[str, int] = {}
        for name, var in self._vars.items():
            bounds = self._ranges.get(name)
            if bounds is None:
                continue
            low, high = _ends(bounds)
            if name not in plain:
                low, high = self._of_computed_sizes(name, low, high)
            factor = self._factors.get(name, 1)
            lower[var.name] = -(-max(0, low) // factor)
            if high < _UNBOUNDED:
                upper[var.name] = high // factor
        out: dict[str, dict[str, int]] = {}
        if upper:
            out[UPPER_BOUND] = upper
        if lower:
            out[LOWER_BOUND] = lower
        return out

    def _of_computed_sizes(self, name: str, low: int, high: int) -> tuple[int, int]:
        """The range of a symbol that occurs in input sizes only within sums and products: `8*s`.

        The exporter starts every symbol of its own at 2, and records the user's declaration as the
        range of the size: `{8*s: [8, 128], s: [2, 16]}`. Assumptions of the traced model are guards
        of the program (see `guards`).
        """
        result: list[tuple[int, int]] = []
        for expression, bounds in self._declared:
            factor, offset = _linear(expression, name)
            if factor > 0 and str(expression) != name:
                smallest, largest = _ends(bounds)
                smallest = -((offset - max(0, smallest)) // factor)
                largest = (largest - offset) // factor if largest < _UNBOUNDED else largest
                result.append((smallest, largest))
        if result and low <= _FIRST:
            low = max(smallest for smallest, _ in result)
        return low, min([high, *(largest for _, largest in result)])


def _expression(size: Any) -> Any:
    """The sympy expression of a SymInt; other sizes unchanged."""
    node = getattr(size, "node", None)
    return size if node is None else node.expr


def _linear(expression: Any, name: str) -> tuple[int, int]:
    """(a, b) of an expression a·s + b of the symbol s named `name`; (0, 0) for others."""
    symbols = expression.free_symbols
    if {str(symbol) for symbol in symbols} != {name}:
        return 0, 0
    (symbol,) = symbols
    terms = expression.as_coefficients_dict()
    factor, offset = terms.get(symbol, 0), terms.get(1, 0)
    exact = factor * symbol + offset == expression and factor == int(factor)
    return (int(factor), int(offset)) if exact else (0, 0)


def _ends(bounds: Any) -> tuple[int, int]:
    return _finite(bounds.lower, 0), _finite(bounds.upper, _UNBOUNDED)


def _finite(value: Any, default: int) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return int(value) if math.isfinite(number) and abs(number) < _UNBOUNDED else default


def _fold(fn: Any, args: list[ir.Expr]) -> ir.Expr:
    result = args[0]
    for arg in args[1:]:
        result = fn(result, arg)
    return result


_FOLDS: dict[str, Any] = {
    "Add": ir.add,
    "Mul": ir.mul,
    "FloorDiv": ir.floordiv,
    "CleanDiv": ir.floordiv,
    "PythonMod": ir.floormod,
    "Mod": ir.floormod,
    "Min": ir.minimum,
    "Max": ir.maximum,
}
_CALLS = {
    "PowByNatural": "pow",
    "BitwiseFn_bitwise_and": "bitwise_and",
    "BitwiseFn_bitwise_or": "bitwise_or",
    "BitwiseFn_bitwise_xor": "bitwise_xor",
    "LShift": "shift_left",
    "RShift": "shift_right",
}
_RELATIONS: dict[str, type[ir.CompareOp]] = {
    "Equality": ir.EQ,
    "Unequality": ir.NE,
    "StrictLessThan": ir.LT,
    "LessThan": ir.LE,
    "StrictGreaterThan": ir.GT,
    "GreaterThan": ir.GE,
}


def dynamic_names(program: Any, dynamic_shapes: Any = None) -> dict[str, str]:
    """Exporter symbol → a readable name.

    The name is that of its `torch.export.Dim`, if `dynamic_shapes`, the argument of the export, has
    one: an exported program does not keep it. Otherwise it comes from the first input that binds
    the symbol (`input_ids_dim0`).
    """
    users = list(program.graph_signature.user_inputs)
    inputs = {n.name: n for n in program.graph.nodes if n.op == "placeholder" and n.name in users}
    declared: dict[str, str] = {}
    bound: dict[str, str] = {}
    for name, spec in _specs(users, dynamic_shapes).items():
        for axis, size in enumerate(_sizes(inputs.get(name))):
            label = getattr(spec.get(axis), "__name__", "")
            if size is not None and _ALLOWED.match(label):
                declared.setdefault(size, label)
    for name, node in inputs.items():
        for axis, size in enumerate(_sizes(node)):
            if size is not None:
                bound.setdefault(size, f"{name}_dim{axis}")
    if len(set(declared.values())) < len(declared):
        return bound  # two symbols of one name would be merged
    return {**bound, **declared}


def _sizes(node: Any) -> list[str | None]:
    """The symbol of each dimension of an input, None for fixed and computed sizes."""
    value = None if node is None else node.meta.get("val")
    result: list[str | None] = []
    for size in getattr(value, "shape", ()):
        expression = getattr(getattr(size, "node", None), "expr", None)
        result.append(str(expression) if getattr(expression, "is_Symbol", False) else None)
    return result


def _specs(users: list[str], dynamic_shapes: Any) -> dict[str, dict[int, Any]]:
    """Input → axis → Dim, for inputs that are plain tensors; others are left out."""
    if isinstance(dynamic_shapes, dict):
        pairs = list(cast("dict[Any, Any]", dynamic_shapes).items())
    elif isinstance(dynamic_shapes, (tuple, list)):
        given = list(cast("tuple[Any, ...]", dynamic_shapes))
        pairs = list(zip(users, given, strict=True)) if len(given) == len(users) else []
    else:
        pairs = []
    result: dict[str, dict[int, Any]] = {}
    for name, spec in pairs:
        if isinstance(spec, (tuple, list)):
            result[name] = dict(enumerate(cast("list[Any]", spec)))
        elif isinstance(spec, dict):
            result[name] = cast("dict[int, Any]", spec)
    return result
