"""Arithmetic in a float type on sizes, as index expressions where it is exact.

    Shape → Cast(float32) → Mul(0.5) → Floor → Cast(int64)      n // 2, for n up to 2^24

An element is `number · 2^exponent`. Every operation notes the bounds within which the type holds
its result exactly. An operation whose bounds exclude usual sizes has no result here: constants such
as 0.7 are no short binary fractions, and their products round. Calls check the bounds only where
elements are cast to integers or decide the program (`require`); else they are computed in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.frontend.onnx.call import Call
from blockwright.frontend.onnx.sizes import I64, Need, SizeFloat
from blockwright.ops.row import dims_text

_USUAL = {"float16": 1024}
_USUAL_OF_OTHERS = 256
"""Sizes up to these must be within the bounds of exact arithmetic."""
_EVEN = {"float32": 3}
"""The largest `k` for which multiples of `2^k` are accepted up to `2^k` times the bounds."""
_PRECISION = {"float16": (11, 15), "float32": (24, 40), "float64": (53, 40)}
"""Bits of the significand, and the base-2 logarithm up to which values are followed here."""
_SMALLEST = -10
"""The least exponent, with which all numbers of a type are normal."""
_FUNCTIONS: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Neg": np.negative,
}
Item = SizeFloat | float


class FloatArithmetic:
    """Operations of one float type on numbers and size floats; None where they may round."""

    def __init__(self, analyzer: Analyzer, dtype: ir.DType) -> None:
        self.analyzer = analyzer
        self.dtype = dtype

    def converted(self, value: Any) -> Item | None:
        """An integer, size, number or size float in this type."""
        if isinstance(value, ir.Expr):
            return self._fit(value, 0, ())
        if isinstance(value, SizeFloat):
            return self._fit(value.number, value.exponent, value.needs)
        return float(np.asarray(value).astype(self.dtype.numpy()))

    def unary(self, name: str, a: Item) -> Item | None:
        """One element of the result of an operator named as in ONNX."""
        if not isinstance(a, SizeFloat):
            return self._of_numbers(name, a)
        if name == "Neg":
            return self._fit(ir.sub(_int(0), a.number), a.exponent, a.needs)
        if a.exponent >= 0:
            return a
        if name not in ("Floor", "Ceil"):
            return None
        parts = _int(1 << -a.exponent)
        number = a.number if name == "Floor" else ir.add(a.number, ir.sub(parts, _int(1)))
        return self._fit(ir.floordiv(number, parts), 0, a.needs)

    def binary(self, name: str, a: Item, b: Item) -> Item | None:
        """One element of the result of an operator named as in ONNX."""
        if not isinstance(a, SizeFloat) and not isinstance(b, SizeFloat):
            return self._of_numbers(name, a, b)
        left, right = _lifted(a), _lifted(b)
        if left is None or right is None:
            return None
        needs = tuple(dict.fromkeys(left.needs + right.needs))
        if name == "Mul":
            exponent = left.exponent + right.exponent
            return self._fit(ir.mul(left.number, right.number), exponent, needs)
        if name == "Div":
            return self._quotient(left, right, needs)
        if name not in _ALIGNED:
            return None
        exponent = min(left.exponent, right.exponent)
        x, y = (_times_power(v.number, v.exponent - exponent) for v in (left, right))
        return self._fit(_ALIGNED[name](x, y), exponent, needs)

    def integer(self, a: SizeFloat, dtype: ir.DType) -> tuple[ir.Expr, tuple[Need, ...]] | None:
        """The element cut off to an integer type, and its needs."""
        number = a.number
        if a.exponent < 0:  # cut off is rounded down if it is not negative
            if not self.analyzer.prove(ir.compare(ir.GE, number, _int(0))):
                return None
            number = ir.floordiv(number, _int(1 << -a.exponent))
        whole = self.analyzer.simplify(_times_power(number, max(a.exponent, 0)))
        if dtype.bits >= 64:
            return whole, a.needs
        need = Need(whole, int(dtype.min_value), int(dtype.max_value), dtype)
        return (whole, (*a.needs, need)) if self._is_usual(need) else None

    def _quotient(self, a: SizeFloat, b: SizeFloat, needs: tuple[Need, ...]) -> SizeFloat | None:
        """A quotient without rest, of a divisor that calls must not make 0."""
        exponent = a.exponent - b.exponent
        divisor = ir.const_int(b.number)
        if divisor in (1, -1):
            return self._fit(ir.mul(a.number, b.number), exponent, needs)
        if divisor == 0:
            return None
        if divisor is None:
            most = _limit(self.dtype, b.exponent)
            needs = (*needs, Need(b.number, 1, most, self.dtype))
        for least in (min(exponent, 0), _SMALLEST):  # 6 n / 2 n, and n / 2 n
            above = _times_power(a.number, max(exponent - least, 0))
            number = self.analyzer.simplify(ir.floordiv(above, b.number))
            if self.analyzer.prove_equal(ir.mul(number, b.number), above):
                return self._fit(number, min(exponent, least), needs)
        return None

    def _of_numbers(self, name: str, *operands: float) -> float | None:
        kind = self.dtype.numpy()
        function = _FUNCTIONS.get(name)
        if function is None:
            return None
        return float(function(*(np.asarray(v).astype(kind) for v in operands)))

    def _fit(self, number: ir.Expr, exponent: int, needs: tuple[Need, ...]) -> SizeFloat | None:
        """An element with what it needs to be exact."""
        if self.dtype.name not in _PRECISION or exponent < _SMALLEST:
            return None
        number = self.analyzer.simplify(number)
        while exponent < 0 and (ir.const_int(number) or 1) % 2 == 0:
            number, exponent = self.analyzer.simplify(ir.floordiv(number, _int(2))), exponent + 1
        most = _limit(self.dtype, exponent)
        need = Need(number, -most, most, self.dtype, _EVEN.get(self.dtype.name, 0))
        return SizeFloat(number, exponent, (*needs, need)) if self._is_usual(need) else None

    def _is_usual(self, need: Need) -> bool:
        """Whether usual sizes meet a need."""
        usual = self.analyzer.copy()
        most = _USUAL.get(self.dtype.name, _USUAL_OF_OTHERS)
        for symbol in ir.free_vars(need.value):
            low = usual.const_bounds(symbol)[0]
            usual.bind_bounds(symbol, low, max(low or 0, most))
        return usual.prove(need.condition)


_ALIGNED = {"Add": ir.add, "Sub": ir.sub, "Max": ir.maximum, "Min": ir.minimum}


def _int(value: int) -> ir.Expr:
    return ir.const(value, I64)


def _limit(dtype: ir.DType, exponent: int) -> int:
    """The largest number for which all of `number · 2^exponent` are in a type."""
    bits, top = _PRECISION[dtype.name]
    return 1 << max(min(bits, top - exponent), 0)


def _times_power(number: ir.Expr, exponent: int) -> ir.Expr:
    return ir.mul(number, _int(1 << exponent)) if exponent else number


def _lifted(value: Item) -> SizeFloat | None:
    """A number as a size float; None if it is none, or too large or long for an index."""
    if isinstance(value, SizeFloat):
        return value
    if not np.isfinite(value):
        return None
    ratio = Fraction(value)
    number, exponent = ratio.numerator, 1 - ratio.denominator.bit_length()
    while number and number % 2 == 0:
        number, exponent = number // 2, exponent + 1
    longest, largest = -_SMALLEST, _PRECISION["float32"][1]
    if abs(number) >> largest or not -longest <= exponent <= largest:
        return None
    return SizeFloat(_int(number), exponent, ())


def require(call: Call, needs: Sequence[Need]) -> None:
    """Reject calls of the model with sizes for which float arithmetic is not exact."""
    required = call.imp.sizes.required
    known = call.imp.builder.analyzer.copy()
    for condition in required:
        known.learn(condition)
    for need in reversed(needs):  # the bounds of later results imply those of earlier ones
        if known.prove(need.condition):
            continue
        text = dims_text(need.value).replace("%", "%%")
        label = f"{call.op} {call.name}".rstrip().replace("%", "%%")
        low = ir.compare(ir.GE, need.value, ir.const(need.low, I64))
        fits = f"at most {need.high}" if known.prove(low) else f"from {need.low} to {need.high}"
        fits += f" ({2 * need.high} if it is even)" if need.even else ""
        call.require(
            need.condition,
            f"BW708: {label}: {text} = %d must be {fits}, so that the model's {need.dtype} "
            "arithmetic on sizes is exact\n"
            "help: pass other sizes, or let the model compute sizes in int64",
            (need.value,),
        )
        required.append(need.condition)
        known.learn(need.condition)


def known_number(call: Call, item: Item | None) -> float | None:
    """An element that is the same number for all sizes that meet its needs, which calls check."""
    if not isinstance(item, SizeFloat):
        return item
    number = ir.const_int(item.number)
    if number is None:
        return None
    require(call, item.needs)
    return number * 2.0**item.exponent


def scaled_size(call: Call, size: ir.Expr, scale: float, more: float) -> ir.Expr | None:
    """⌊size · scale + more⌋ in float32, which calls check to be exact; None if it may round."""
    single = FloatArithmetic(call.imp.sizes.analyzer, ir.dtype_of("float32"))
    item = single.converted(size)
    item = item and single.binary("Mul", item, scale)
    item = item and single.binary("Add", item, more)
    item = item and single.unary("Floor", item)
    found = single.integer(item, I64) if isinstance(item, SizeFloat) else None
    if found is None:
        return None
    require(call, found[1])
    return found[0]
