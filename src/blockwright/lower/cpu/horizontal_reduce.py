"""Reduce the lanes of a vector in a tree that halves the vector in each step.

Before, for a reducer `f` that no single vector operation computes::

    for v in T.vectorized(8):
        B[0], I[0] = f((B[0], I[0]), (A[v], v))      # in loop form: lets and stores

After, with w[a:b] for `T.Shuffle([w], [a, …, b - 1])`::

    w0, w1 = A[T.Ramp(0, 1, 8)], T.Ramp(0, 1, 8)
    x0, x1 = f((w0[0:4], w1[0:4]), (w0[4:8], w1[4:8]))
    y0, y1 = f((x0[0:2], x1[0:2]), (x0[2:4], x1[2:4]))
    z0, z1 = f((y0, y1), (y0[1, 0], y1[1, 0]))
    B[0], I[0] = f((B[0], I[0]), (z0[0], z1[0]))

With an odd number of lanes, the last lane is combined at the end. Inactive lanes count as the
identity. A reducer that selects among its operands (argmax) gives bit-identical results in any
order; floating-point sums are rounded in a different order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from blockwright.analysis import Reduction, find_update, step
from blockwright.analysis.reduction.reducer_step import share_condition, under_lets
from blockwright.analysis.reduction.reducer_table import combined
from blockwright.ir import (
    Block,
    BufferLoad,
    BufferStore,
    CommReducer,
    Expr,
    Shuffle,
    Stmt,
    Var,
    collect,
    const,
    select,
)
from blockwright.ir import stmt as S
from blockwright.ir.annotations import REDUCER
from blockwright.lower.lanes import LaneRewriter
from blockwright.lower.rewrite import broadcast, walk_code


def combined_lanes(body: Stmt, lanes: LaneRewriter) -> Stmt | None:
    """Combine the lanes of a vectorized loop whose body is one reduction step.

    None when the body is not a reduction step, or when a single vector operation combines its
    lanes.
    """
    if isinstance(body, S.AttrStmt) and body.key == REDUCER:
        return _tree(body.body, lanes, body.node)
    if isinstance(body, S.IfThenElse) and body.else_case is None:
        return _guarded(body, lanes)
    return _tree(body, lanes, None)


def _guarded(node: S.IfThenElse, lanes: LaneRewriter) -> Stmt | None:
    stored = {store.buffer for store in collect(node.then_case, BufferStore)}
    if any(isinstance(n, BufferLoad) and n.buffer in stored for n in walk_code(node.condition)):
        return None  # one iteration decides whether the next one executes
    condition = lanes(node.condition)
    if condition.dtype.lanes > 1:
        return combined_lanes(node.then_case, lanes.under(condition))
    inner = combined_lanes(node.then_case, lanes)
    return None if inner is None else S.IfThenElse(condition, inner)


def _tree(body: Stmt, lanes: LaneRewriter, declared: CommReducer | None) -> Stmt | None:
    if not _updates_one_place(body, lanes):
        return None
    notes: dict[str, Any] = {} if declared is None else {REDUCER: declared}
    result = find_update(Block("step", (), (), (), body, annotations=notes))
    if not isinstance(result, Reduction) or (result.lanes and len(result.elements) == 1):
        return None
    vectors: list[Expr] = []
    for term, neutral in zip(result.terms, result.reducer.identity, strict=True):
        vector = broadcast(lanes(term), lanes.count)
        if lanes.mask is not None:
            vector = select(lanes.mask, vector, broadcast(neutral, lanes.count))
        vectors.append(vector)
    tree = _Tree(result.reducer, lanes)
    terms = tree.reduce(vectors)
    places = [
        element.replace(indices=tuple(lanes(i) for i in element.indices))
        for element in result.elements
    ]
    return under_lets(tree.lets, step(result.reducer, places, terms))


def _updates_one_place(body: Stmt, lanes: LaneRewriter) -> bool:
    """Whether all stores write single elements, the same ones in every lane."""
    stores = collect(body, BufferStore)
    return bool(stores) and all(
        store.predicate is None
        and all(index.dtype.is_scalar and lanes(index).dtype.is_scalar for index in store.indices)
        for store in stores
    )


class _Tree:
    """Combines tuples of vectors; `lets` holds the intermediate results in order."""

    def __init__(self, reducer: CommReducer, lanes: LaneRewriter) -> None:
        self.reducer, self.lanes = reducer, lanes
        self.lets: list[tuple[Var, Expr]] = []

    def reduce(self, vectors: Sequence[Expr]) -> Sequence[Expr]:
        """Combine the lanes of each vector into one scalar."""
        current = self._kept(vectors)
        waiting: list[list[Expr]] = []
        count = self.lanes.count
        while count > 2:
            half = count // 2
            if count % 2:
                waiting.append([_pick(v, (count - 1,)) for v in current])
            low = [_pick(v, range(half)) for v in current]
            high = [_pick(v, range(half, 2 * half)) for v in current]
            current, count = self._join(low, high), half
        if count == 2:  # compute both lanes: cheaper than comparing scalars
            swapped = [_pick(v, (1, 0)) for v in current]
            current = [_pick(v, (0,)) for v in self._join(current, swapped)]
        for last in waiting:
            current = self._join(current, last)
        return current

    def _kept(self, values: Sequence[Expr]) -> list[Expr]:
        result = [Var(f"w{k}", value.dtype) for k, value in enumerate(values)]
        self.lets += zip(result, values, strict=True)
        return list(result)

    def _join(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> list[Expr]:
        """Combine two tuples of vectors of the same length, lane by lane."""
        count = lhs[0].dtype.lanes
        zero = const(0, "int32")
        wide = LaneRewriter(Var("lane", zero.dtype), zero, count, self.lanes.analyzer)
        if count == 1:
            x, y = self._kept(lhs), self._kept(rhs)
            shared, values = share_condition(combined(self.reducer, x, y))
        else:
            operands = self.reducer.operands(lhs, rhs)
            self.lets += [(wide.bind(var, value), value) for var, value in operands.items()]
            shared, values = share_condition(self.reducer.result)
        for var, value in shared:
            vector = wide(value)
            self.lets.append((wide.bind(var, vector), vector))
        return self._kept([broadcast(wide(value), count) for value in values])


def _pick(vector: Expr, lanes: Iterable[int]) -> Expr:
    return Shuffle((vector,), tuple(lanes))
