"""Order sizes and offsets of storage: by proof for every value of the symbols.

2*n*4  ==  n*2*4         proved, so (2, n) and (n, 2) share storage
n*m*4  <=  n*n*4         proved if the symbols are declared so that m <= n
n*n*4  ?   n*768*4       unknown without an upper bound of n: no storage is shared
"""

from __future__ import annotations

from collections.abc import Iterable

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.arith.form import Poly
from blockwright.graph import function_analyzer, function_symbols
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.host.size_text import size_text
from blockwright.runtime.sizes import evaluate_size
from blockwright.support import ArtefactError

ALIGNMENT = 64
_INT64 = ir.dtype_of("int64")
_TYPICAL = 128  # a value for a symbol without an upper bound, where a plan must prefer something
_PROOFS = 3000  # comparisons tried by one plan; nested sizes take milliseconds each


class SizeOrder:
    """Sums of sizes in canonical form, compared by proof.

    Equal sums are one object. `value` gives a sum at a typical point; plans use it to choose among
    valid alternatives, never to decide whether one is valid.
    """

    def __init__(self, function: ir.GraphFunction) -> None:
        self._analyzer: Analyzer = function_analyzer(function)
        self._symbols = function_symbols(function)
        self._upper: dict[str, int] = function.attrs.get(UPPER_BOUND, {})
        lower: dict[str, int] = function.attrs.get(LOWER_BOUND, {})
        self._point = {
            s.name: int(self._upper.get(s.name, max(_TYPICAL, lower.get(s.name, 0))))
            for s in self._symbols
        }
        self._values: dict[Poly, int] = {}
        self._sums: dict[tuple[Poly, Poly], Poly] = {}
        self._at_most: dict[tuple[Poly, Poly], bool] = {}  # plans ask the same again and again
        self._nodes: dict[int, int] = {}  # atom → nodes of its expression
        self.zero = self._analyzer.space.zero

    def of(self, size: ir.Expr) -> Poly:
        """The canonical form of a size."""
        return self._analyzer.lift(size)

    def expr(self, size: Poly) -> ir.Expr:
        """A sum as an expression."""
        return self._analyzer.lower(size, _INT64)

    def add(self, a: Poly, b: Poly) -> Poly:
        """The sum of two sizes."""
        result = self._sums.get((a, b))
        if result is None:
            result = self._sums[a, b] = self._analyzer.space.add(a, b)
        return result

    def at_most(self, a: Poly, b: Poly) -> bool:
        """Whether `a <= b` is proved for all values of the symbols.

        When the proofs are spent (`spent`), only equal sizes are ordered.
        """
        if a is b:
            return True
        result = self._at_most.get((a, b))
        if result is None:
            if self.spent:
                return False
            result = self._analyzer.holds(self._analyzer.space.sub(b, a))
            self._at_most[a, b] = result
        return result

    @property
    def spent(self) -> bool:
        """Whether the budget of proofs for one plan is used up."""
        return len(self._at_most) >= _PROOFS

    def maximum(self, sizes: Iterable[Poly]) -> Poly:
        """The maximum of nonnegative sizes, without those proved to be at most another one."""
        kept: list[Poly] = []
        for size in dict.fromkeys(sizes):
            if not any(self.at_most(size, other) for other in kept):
                kept = [other for other in kept if not self.at_most(other, size)] + [size]
        if len(kept) < 2:
            return kept[0] if kept else self.zero
        space = self._analyzer.space
        return space.scale(self._analyzer.minimum([space.scale(p, -1) for p in kept]), -1)

    def complexity(self, size: Poly) -> int:
        """Operations of the size as an expression, in which common parts count each time."""
        return sum(1 + sum(map(self._operations, mono)) for mono, _ in size.terms)

    def _operations(self, number: int) -> int:
        result = self._nodes.get(number)
        if result is None:
            atom = self._analyzer.space.atoms[number]
            opaque = 0 if atom.node is None else sum(1 for _ in ir.walk(atom.node))
            result = opaque + sum(1 + self.complexity(part) for part in atom.operands)
            self._nodes[number] = result
        return result

    def value(self, size: Poly) -> int:
        """The size at a typical point: declared upper bounds, else 128."""
        result = self._values.get(size)
        if result is None:
            try:
                result = evaluate_size(size_text(self.expr(size)), self._point)
            except ArtefactError:  # it divides by zero there
                result = 0
            self._values[size] = result
        return result

    def upper_bound(self, size: Poly) -> int | None:
        """A number that the size never exceeds; None if a symbol in it has no upper bound."""
        names = {v.name for v in size.variables(self._analyzer.space)}
        if not names <= self._upper.keys():
            return None
        return self._analyzer.bounds(size)[1]


def exact_bytes(info: ir.TensorInfo) -> ir.Expr:
    """Bytes of the elements of a tensor."""
    assert info.shape is not None
    assert info.dtype is not None
    size: ir.Expr = ir.const(info.dtype.nbytes, "int64")
    for dim in info.shape:
        size = ir.mul(size, dim)
    return size


def aligned(size: ir.Expr) -> ir.Expr:
    """A size rounded up to the alignment of storage."""
    return ir.mul(ir.ceildiv(size, ALIGNMENT), ALIGNMENT)
