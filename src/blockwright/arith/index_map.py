"""Index maps: layout transformations and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.interval import eval_set
from blockwright.arith.itermap import require_iter_map
from blockwright.arith.itermark import IterMapError, IterMapResult, IterMark, IterSum
from blockwright.ir import (
    GE,
    LE,
    LT,
    NE,
    Expr,
    Range,
    Var,
    add,
    as_expr,
    cast_to,
    compare,
    const,
    const_int,
    floordiv,
    floormod,
    logical_or,
    mul,
    sub,
    substitute,
    uses_var,
)
from blockwright.ir.dtype import BOOL, INT64, DType
from blockwright.support import IRError


class IndexMap(msgspec.Struct, frozen=True, eq=False):
    """Layout transformation: the element at `initial` moves to `final`, expressions of `initial`.

    `separators` are the positions in `final` at which a new physical axis of memory starts.
    """

    AXIS_SEPARATOR: ClassVar[Any] = ...
    """Marker between the final indices of two physical axes in the result of a function."""

    initial: tuple[Var, ...]
    final: tuple[Expr, ...]
    separators: tuple[int, ...] = ()

    @staticmethod
    def from_func(fn: Callable[..., Sequence[Any]], ndim: int, dtype: DType = INT64) -> IndexMap:
        """The map defined by a Python function of `ndim` index variables.

        Example: `IndexMap.from_func(lambda i, j: (i // 4, j, i % 4), 2)`. An
        `IndexMap.AXIS_SEPARATOR` (also written `...`) between two results starts a new physical
        axis.
        """
        initial = tuple(Var(f"i{k}", dtype) for k in range(ndim))
        final: list[Expr] = []
        separators: list[int] = []
        for part in fn(*initial):
            if part is IndexMap.AXIS_SEPARATOR:
                separators.append(len(final))
            else:
                final.append(as_expr(part, dtype))
        return IndexMap(initial, tuple(final), tuple(separators))

    def apply(self, indices: Sequence[Expr], analyzer: Analyzer | None = None) -> tuple[Expr, ...]:
        """Final indices of the element at `indices`."""
        if len(indices) != len(self.initial):
            raise IRError(
                f"the map takes {len(self.initial)} indices, got {len(indices)}", code="BW209"
            )
        mapping = {
            var: index if index.dtype is var.type else cast_to(index, var.type)
            for var, index in zip(self.initial, indices, strict=True)
        }
        analyzer = analyzer or Analyzer()
        return tuple(analyzer.simplify(substitute(e, mapping)) for e in self.final)

    def domains(self, shape: Sequence[Expr]) -> dict[Var, Range]:
        """Domains of the initial variables for a buffer of this shape."""
        return {
            var: Range(const(0, var.type), cast_to(size, var.type))
            for var, size in zip(self.initial, shape, strict=True)
        }

    def map_shape(
        self, shape: Sequence[Expr], analyzer: Analyzer | None = None
    ) -> tuple[Expr, ...]:
        """The smallest shape that contains every final index; empty if `shape` is."""
        analyzer = analyzer or Analyzer()
        sizes = {
            size: Var(f"n{k}", size.dtype)
            for k, size in enumerate(shape)
            if _at_most_one(size, analyzer)
        }
        if sizes:
            bounds = {var: analyzer.const_bounds(size) for size, var in sizes.items()}
            analyzer = analyzer.copy()
            for var, (low, _) in bounds.items():
                analyzer.bind_bounds(var, low=low, high=1)
        domains = self.domains([sizes.get(size, size) for size in shape])
        result: list[Expr] = []
        for index in self.final:
            own = {v: dom for v, dom in domains.items() if uses_var(index, v)}
            top = eval_set(index, own, analyzer).max
            if top is None:
                raise IterMapError("a final index has no upper bound")
            result.append(analyzer.simplify(add(top, 1)))
        if sizes:
            known = {var: size for size, var in sizes.items()}
            return tuple(analyzer.simplify(substitute(e, known)) for e in result)
        return tuple(result)

    def inverse(self, shape: Sequence[Expr], analyzer: Analyzer | None = None) -> IndexMap:
        """The inverse of a map that is bijective on a buffer of this shape."""
        analyzer = analyzer or Analyzer()
        result = require_iter_map(self.final, self.domains(shape), None, analyzer, "bijective")
        final_shape = self.map_shape(shape, analyzer)
        return _inverted(self, result, shape, final_shape, analyzer)

    def non_surjective_inverse(
        self, shape: Sequence[Expr], analyzer: Analyzer | None = None
    ) -> tuple[IndexMap, Expr]:
        """The inverse on `map_shape(shape)`, and a predicate for final indices without a preimage.

        The predicate is over the initial variables of the inverse; it is false for a bijection.
        Both assume a non-empty shape; for sizes of 0 or 1 the predicate also covers 0.
        """
        analyzer = analyzer or Analyzer()
        domains = self.domains(shape)
        result = require_iter_map(self.final, domains, None, analyzer, "bijective", pad=True)
        final_shape, known = self.map_shape(shape, analyzer), analyzer.copy()
        for size in shape:
            if const_int(size) is None:
                known.learn(compare(GE, size, 1))
        inverse = _inverted(self, result, shape, final_shape, known)
        padding = _padding(inverse, shape, final_shape, known)
        single = _single(inverse, result, shape, final_shape, analyzer)
        return inverse, logical_or(padding, single)


def _at_most_one(size: Expr, analyzer: Analyzer) -> bool:
    """Whether a symbolic size is 0 or 1.

    Since domains count as non-empty, such an index is the constant 0, and its largest value would
    imply a size of 1.
    """
    low, high = analyzer.const_bounds(size)
    return const_int(size) is None and high == 1 and (low is None or low < 1)


def _ranges(variables: Sequence[Var], shape: Sequence[Expr]) -> dict[Var, Range]:
    return {
        v: Range(const(0, v.type), cast_to(s, v.type))
        for v, s in zip(variables, shape, strict=True)
    }


def _inverted(
    index_map: IndexMap,
    result: IterMapResult,
    shape: Sequence[Expr],
    final_shape: Sequence[Expr],
    analyzer: Analyzer,
) -> IndexMap:
    variables = tuple(Var(f"ax{k}", e.dtype) for k, e in enumerate(index_map.final))
    solved = solve(result, variables)
    inner = analyzer.copy()
    for var, domain in _ranges(variables, final_shape).items():
        inner.bind(var, domain)
    exprs: list[Expr] = []
    for var, size in zip(index_map.initial, shape, strict=True):
        matches = solved.get(var)
        if matches is None:  # an axis of extent 1
            matches = const(0, var.type)
            if not analyzer.prove_equal(cast_to(size, var.type), const(1, var.type)):
                raise IterMapError(f"the final indices do not depend on {var.name}")
        exprs.append(inner.simplify(cast_to(matches, var.type)))
    return IndexMap(variables, tuple(exprs))


def _padding(
    inverse: IndexMap, shape: Sequence[Expr], final_shape: Sequence[Expr], analyzer: Analyzer
) -> Expr:
    inner = analyzer.copy()
    for var, domain in _ranges(inverse.initial, final_shape).items():
        inner.bind(var, domain)
    outside: Expr = const(False, BOOL)
    for value, size in zip(inverse.final, shape, strict=True):
        outside = logical_or(outside, logical_or(compare(LT, value, 0), compare(GE, value, size)))
    return inner.simplify(outside)


def _single(
    inverse: IndexMap,
    result: IterMapResult,
    shape: Sequence[Expr],
    final_shape: Sequence[Expr],
    analyzer: Analyzer,
) -> Expr:
    """Condition for padding due to axes of at most one element.

    All values of a final index other than its constant are padding: `(i,)` → `(i + 3,)` for one
    element has the final shape (4,), of which only 3 is an element. If a size of 0 or 1 is 0,
    everything is padding.
    """
    inner = analyzer.copy()
    for var, domain in _ranges(inverse.initial, final_shape).items():
        inner.bind(var, domain)
    outside: Expr = const(False, BOOL)
    for var, item in zip(inverse.initial, result.indices, strict=True):
        if not item.args:
            outside = logical_or(outside, compare(NE, var, cast_to(item.base, var.type)))
    for value, size in zip(inverse.final, shape, strict=True):
        if const_int(size) is None and const_int(value) is not None:
            outside = logical_or(outside, compare(LE, size, 0))
    return inner.simplify(outside)


def solve(result: IterMapResult, outputs: Sequence[Expr]) -> dict[Var, Expr]:
    """The loop variables of a bijective map as expressions of its outputs."""
    values: dict[IterMark, Expr] = {}
    order: list[IterMark] = []

    def note(mark: IterMark, value: Expr) -> None:
        values[mark] = add(values[mark], value) if mark in values else value

    for item, output in zip(result.indices, outputs, strict=True):
        if not item.args:
            continue
        split = item.args[0]
        value = sub(output, cast_to(item.base, output.dtype))
        note(split.source, mul(value, cast_to(split.lower_factor, output.dtype)))
        _visit(split.source, order)
    solved: dict[Var, Expr] = {}
    for mark in reversed(order):  # fusions before their components
        value = values[mark]
        source = mark.source
        if isinstance(source, Var):
            start = mark.start
            solved[source] = value if start is None else add(value, cast_to(start, value.dtype))
            continue
        dtype = value.dtype
        value = sub(value, cast_to(source.base, dtype))
        for position, digit in enumerate(source.args):
            part = floordiv(value, cast_to(digit.scale, dtype))
            if position > 0:
                part = floormod(part, cast_to(digit.extent, dtype))
            note(digit.source, mul(part, cast_to(digit.lower_factor, dtype)))
    return solved


def _visit(mark: IterMark, order: list[IterMark]) -> None:
    """Append `mark` and all marks it is fused from, in post-order."""
    if mark in order:
        return
    if isinstance(mark.source, IterSum):
        for digit in mark.source.args:
            _visit(digit.source, order)
    order.append(mark)


def inverse_map(
    indices: Sequence[Expr],
    iters: Mapping[Var, Range],
    outputs: Sequence[Expr],
    analyzer: Analyzer,
    predicate: Expr | None = None,
) -> dict[Var, Expr]:
    """The iterators as expressions of `outputs`, which hold the values of `indices`.

    Raises:
        IterMapError: the indices are not a bijection of the iterators.
    """
    result = require_iter_map(indices, iters, predicate, analyzer, "bijective")
    solved = solve(result, outputs)
    for var, domain in iters.items():
        solved.setdefault(var, result.single.get(var, domain.min))
    return {var: analyzer.simplify(solved[var]) for var in iters}
