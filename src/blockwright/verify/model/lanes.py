"""Scalarize vector code: a store of n lanes becomes a scalar store in a vectorized loop of n."""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.intrin.hardware import PRODUCTS, DotProduct
from blockwright.verify.verdict import Unknown


class LaneLoop(msgspec.Struct, frozen=True, eq=False):
    """The loop over the lanes of a vector store."""

    var: ir.Var
    count: int


def scalar_store(store: ir.BufferStore) -> tuple[ir.BufferStore, LaneLoop | None]:
    """The store of one lane, and the loop over lanes; a scalar store has none.

    A scalar store is returned unchanged, except for products of vectors in its value.
    """
    count = store.indices[-1].dtype.lanes if store.indices else 1
    if count == 1 and store.value.dtype.lanes == 1:
        if not any(call.op in PRODUCTS for call in ir.collect(store.value, ir.Call)):
            return store, None
        return store.replace(value=in_lane(store.value, ir.const(0, "int64"))), None
    if store.value.dtype.lanes != count:
        raise Unknown("a vector store whose value and index have different numbers of lanes")
    lane = ir.Var("lane", ir.dtype_of("int64"))
    to_lane = _Lane(lane)
    predicate = None if store.predicate is None else to_lane(store.predicate)
    result = ir.BufferStore(
        store.buffer, to_lane(store.value), tuple(map(to_lane, store.indices)), predicate
    )
    return result, LaneLoop(lane, count)


def in_lane(expr: ir.Expr, lane: ir.Expr) -> ir.Expr:
    """The value of a vector expression in one lane. Raises: Unknown if it depends on others."""
    return _Lane(lane)(expr)


class _Lane(ir.Mutator):
    """Rewrite vector expressions to their value in one lane."""

    def __init__(self, lane: ir.Expr) -> None:
        super().__init__()
        self.lane = lane

    def rewrite_Ramp(self, node: ir.Ramp) -> ir.Expr:
        lane = ir.cast_to(self.lane, node.base.dtype.element)
        return ir.Add(node.base, ir.Mul(lane, node.stride))

    def rewrite_Broadcast(self, node: ir.Broadcast) -> ir.Expr:
        return node.value

    def rewrite_Shuffle(self, node: ir.Shuffle) -> ir.Expr:
        position = _position(node.indices, self.lane)
        if len(node.vectors) != 1 or position is None:
            raise Unknown("a shuffle of vector lanes")
        return _Lane(position)(node.vectors[0])

    def rewrite_Cast(self, node: ir.Cast) -> ir.Expr:
        return ir.Cast(node.type.element, self(node.value))

    def rewrite_Call(self, node: ir.Call) -> ir.Expr:
        dot = PRODUCTS.get(node.op)
        if dot is not None:
            return self._dot(dot, *node.args)
        if node.op.startswith("vector_reduce") or ir.op_row(node.op).kind == "effect":
            raise Unknown(f"the vector operation {node.op}")
        return ir.Call(node.op, tuple(map(self, node.args)), node.type.element)

    def _dot(self, dot: DotProduct, c: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        """The sum in one lane, expanded from the meaning of the operation.

        Rounded to odd, it stays one operation on its factors, uninterpreted: written out, each
        addition uses its operands many times.
        """
        total = self(c)

        def factors(k: int) -> tuple[ir.Expr, ir.Expr]:
            x, y = (_Lane(at)(v) for v, at in zip((a, b), dot.places(self.lane, k), strict=True))
            return ir.Cast(total.dtype, x), ir.Cast(total.dtype, y)

        if dot.odd:
            pairs = (x for k in range(dot.depth) for x in factors(k))
            return ir.Call(dot.name, (total, *pairs), total.dtype)
        return dot.sum(total, factors)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        if node.dtype.lanes == 1:
            return node
        plain = ir.BufferLoad(node.buffer, tuple(map(self, node.indices)))
        if node.predicate is None:
            return plain
        zero = ir.const(0, node.buffer.dtype)
        return ir.Call("if_then_else", (self(node.predicate), plain, zero), plain.dtype)


def _position(indices: tuple[int, ...], lane: ir.Expr) -> ir.Expr | None:
    """The source lane of a shuffle as `start + stride * (lane % period)`; None for other orders."""
    count = len(indices)
    period = next(p for p in range(1, count + 1) if indices == (indices[:p] * count)[:count])
    stride = indices[1] - indices[0] if period > 1 else 0
    if any(indices[i] != indices[0] + i * stride for i in range(period)):
        return None
    start = ir.const(indices[0], lane.dtype)
    if period == 1:
        return start
    within = lane if period == count else ir.FloorMod(lane, ir.const(period, lane.dtype))
    return ir.Add(start, ir.Mul(within, ir.const(stride, lane.dtype)))
