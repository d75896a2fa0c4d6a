"""Expand dot products that accumulate in place into loops with one product per iteration.

    C[ramp] = dot4_u8s8(C[ramp], a, b)    →    for k in range(4):
                                                   for lane in T.vectorized(n):
                                                       C[lane] = C[lane] + a[4 * lane + k] * …

The expansion follows the row's own meaning (`intrin.hardware`), except that `fma(x, y, C)` is taken
as `C + x * y`, which may be contracted to it, and sums of floats may be regrouped as reductions are
(docs/semantics.md). A store that does not accumulate
into the loaded elements, or rounds to odd, is left to `model.lanes`, which expands its value.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.intrin.hardware import PRODUCTS, DotProduct
from blockwright.verify.model.lanes import in_lane


def with_loops_for_dots(stmt: ir.Stmt) -> ir.Stmt:
    """Expand the accumulating dot products of a statement."""
    return _Expand()(stmt)


class _Expand(ir.Mutator):
    def __call__(self, node: Any) -> Any:
        """Visit statements only: expressions contain no stores."""
        return super().__call__(node) if isinstance(node, ir.Stmt) else node

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        value = node.value
        dot = PRODUCTS.get(value.op) if isinstance(value, ir.Call) else None
        if dot is None or not isinstance(value, ir.Call):
            return node
        total, *factors = value.args
        read = {load.buffer for factor in factors for load in ir.collect(factor, ir.BufferLoad)}
        if not dot.odd and _is_in_place(node, total) and node.buffer not in read:
            return _loops(node, dot, *factors)
        return node


def _is_in_place(store: ir.BufferStore, total: ir.Expr) -> bool:
    """Whether the accumulator is what the store overwrites."""
    if not isinstance(total, ir.BufferLoad) or total.buffer is not store.buffer:
        return False
    if store.predicate is not None or total.predicate is not None:
        return False
    pairs = zip(total.indices, store.indices, strict=True)
    return all(ir.structural_equal(a, b) for a, b in pairs)


def _loops(store: ir.BufferStore, dot: DotProduct, a: ir.Expr, b: ir.Expr) -> ir.Stmt:
    lane, step = (ir.Var(name, ir.dtype_of("int64")) for name in ("lane", "k"))
    lanes = store.value.dtype.lanes
    k: ir.Expr = step if dot.order[0] == 0 else ir.Sub(_number(dot.depth - 1), step)
    indices = tuple(in_lane(i, lane) if i.dtype.lanes > 1 else i for i in store.indices)
    total = ir.BufferLoad(store.buffer, indices)
    x, y = (
        ir.Cast(total.dtype, in_lane(v, at))
        for v, at in zip((a, b), dot.places(lane, k), strict=True)
    )
    body: ir.Stmt = ir.BufferStore(store.buffer, ir.Add(total, ir.Mul(x, y)), indices)
    body = ir.For(lane, _number(0), _number(lanes), ir.ForKind.VECTORIZED, body)
    return ir.For(step, _number(0), _number(dot.depth), ir.ForKind.SERIAL, body)


def _number(value: int) -> ir.IntImm:
    return ir.IntImm(value, ir.dtype_of("int64"))
