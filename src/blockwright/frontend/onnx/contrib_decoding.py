"""Attention of decoders with caches, and rotary positions (`com.microsoft`).

The cache of GroupQueryAttention has room for `max(total, past)` positions. Those of a sequence that
hold keys, `seqlens_k + 1` of them, come first; rows after them are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.contrib_attention import (
    joined_heads,
    part,
    positions,
    scale_of,
    score_bias,
    split_heads,
)
from blockwright.frontend.onnx.contrib_fused import CONTRIB, proved, with_shape
from blockwright.frontend.onnx.sizes import I64, Sizes, array_of, expr

TABLE = Converters()
Tensor = ir.GraphExpr
_BAD_POSITIONS = "the positions have not the batch size and length of the sequences"


# ------------------------------------------------------------------------------------------ rotary


def rotated(
    call: Call, x: Tensor, tables: tuple[Tensor, Tensor], place: Tensor, interleaved: bool
) -> Tensor:
    """Pairs of elements rotated by angles that depend on their position.

    Args:
        x: (batch, heads, length, size), of which the first 2 · (columns of a table) elements turn.
        tables: cosines and sines, (positions, half).
        place: positions, (batch, length) or (1, length).
    """
    batch, heads, length, size = dims_of(x)
    half = dims_of(tables[0])[1]
    width = ir.mul(half, ir.const(2, I64))
    cos, sin = (
        call.reshape(call.apply("take", t, place, axis=0), (dims_of(place)[0], 1, length, half))
        for t in tables
    )
    turned = x if proved(call, width, size) else part(call, x, 3, 0, width)
    if interleaved:
        apart = call.reshape(turned, (batch, heads, length, half, 2))
        shape = (batch, heads, length, half)
        first, second = (call.reshape(part(call, apart, 4, k, k + 1), shape) for k in range(2))
    else:
        first, second = part(call, turned, 3, 0, half), part(call, turned, 3, half, width)

    def mixed(name: str, a: Tensor, b: Tensor) -> Tensor:
        return call.apply(name, call.apply("multiply", first, a), call.apply("multiply", second, b))

    real, imaginary = mixed("subtract", cos, sin), mixed("add", sin, cos)
    if interleaved:
        pair = [call.reshape(t, (batch, heads, length, half, 1)) for t in (real, imaginary)]
        turned = call.apply("concat", *pair, axis=4)
        turned = call.reshape(turned, (batch, heads, length, width))
    else:
        turned = call.apply("concat", real, imaginary, axis=3)
    if proved(call, width, size):
        return turned
    return call.apply("concat", turned, part(call, x, 3, width, size), axis=3)


@TABLE.op("RotaryEmbedding", domain=CONTRIB)
def _rotary_embedding(call: Call) -> Value:
    if call.attr("is_packed_batching", 0) or call.attr("scale", 1.0) != 1:
        return NotImplemented
    x, place = call.tensor(0), call.cast(call.tensor(1), I64)
    tables = (call.tensor(2), call.tensor(3))
    flat = rank_of(x) == 3
    if flat:
        heads = _heads_of(dims_of(x)[2], dims_of(tables[0])[1])
        if call.attr("rotary_embedding_dim", 0):
            heads = call.attr("num_heads", 0)
        if not heads:
            return NotImplemented
        x = split_heads(call, x, heads)
    batch, _, length, _ = dims_of(x)
    if rank_of(place) == 1:
        place = call.apply("add", positions(call, length, 2, 1), place)
    else:
        fitted = with_shape(call, place, (batch, length), _BAD_POSITIONS)
        if fitted is None:
            return NotImplemented
        place = fitted
    x = rotated(call, x, tables, place, bool(call.attr("interleaved", 0)))
    return joined_heads(call, x) if flat else x


def _heads_of(width: ir.Expr, half: ir.Expr) -> int:
    """The number of heads that turn as a whole; 0 if a size is not known."""
    sizes = ir.const_int(width), ir.const_int(half)
    return sizes[0] // (2 * sizes[1]) if sizes[0] and sizes[1] else 0


# ----------------------------------------------------------------------------------- grouped query

_UNCOVERED = {
    "sliding_window_cache": 0,
    "qk_output": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}


@TABLE.op("GroupQueryAttention", domain=CONTRIB)
def _group_query_attention(call: Call) -> Value:
    """Causal attention of query heads that share keys, with a cache of keys and values."""
    total = _number(call, 6)
    plain = all(call.attr(name, value) == value for name, value in _UNCOVERED.items())
    # Inputs from 12 on: scales of quantized caches, weights of norms of queries and keys.
    if total is None or not plain or any(call.has(k) for k in range(12, 16)) or call.wants(3):
        return NotImplemented
    if call.has(1) != call.has(2) or call.has(3) != call.has(4):
        return NotImplemented
    q, k, v = _projections(call)
    batch, _, length, _ = dims_of(q)
    ends = call.cast(call.tensor(5), I64)
    if rank_of(ends) == 1:
        ends = with_shape(call, ends, (batch,), "the lengths have not the batch size")
    if ends is None:
        return NotImplemented
    ends = call.reshape(ends, (batch, 1))
    ends = call.apply("add", ends, scalar=1, scalar_side="right")
    before = call.apply("subtract", ends, scalar=length, scalar_side="right")
    cache = _Cache(call, ends, call.apply("maximum", before, scalar=0, scalar_side="right"))
    place = cache.places(length)
    if call.attr("do_rotary", 0):
        if not (call.has(7) and call.has(8)):
            return NotImplemented
        tables = (call.tensor(7), call.tensor(8))
        turn = bool(call.attr("rotary_interleaved", 0))
        at = _given_positions(call, batch, length, expr(total)) if call.has(9) else place
        if at is None:
            return NotImplemented
        q, k = (rotated(call, t, tables, at, turn) for t in (q, k))
    past = [call.tensor(p) for p in (3, 4)] if call.has(3) else []
    room = _room(call, total, dims_of(past[0])[2] if past else None)
    present = [cache.stored(t, past[n : n + 1], room) for n, t in enumerate((k, v))]
    value = _masked_attention(call, q, present, cache, place)
    return value if value is NotImplemented else [joined_heads(call, value), *present]


def _given_positions(call: Call, batch: Any, length: ir.Expr, total: ir.Expr) -> Tensor | None:
    """Positions from an input, (batch, length); None if it does not fit.

    Those of a first prompt count from the first number of the input, in all sequences.
    """
    given = with_shape(call, call.tensor(9), (batch, length), _BAD_POSITIONS)
    if given is None:
        return None
    first = call.imp.tensor(np.zeros(1, np.int64))
    start = call.apply("take", call.apply("take", given, first, axis=0), first, axis=1)
    counted = call.apply("add", positions(call, length, 2, 1), start)
    prompt = ir.compare(ir.EQ, length, total)
    prove = call.imp.builder.analyzer.prove
    if prove(prompt):
        return counted
    if prove(ir.compare(ir.NE, length, total)):
        return given
    flag = ir.select(prompt, ir.const(1, I64), ir.const(0, I64))
    whole = call.apply("full", shape=(1, 1), fill_value=flag, dtype=I64)
    whole = call.apply("not_equal", whole, scalar=0, scalar_side="right")
    return call.apply("where", whole, counted, given)


def _number(call: Call, position: int) -> Any:
    """An input of one number that is known or an expression of sizes; else None."""
    value = call.value(position)
    if isinstance(value, Sizes):
        return value.items.reshape(-1)[0]
    known = value.data if isinstance(value, ir.Constant) else array_of(value)
    return None if known is None else int(known.reshape(-1)[0])


def _room(call: Call, total: Any, past: ir.Expr | None) -> ir.Expr:
    """The larger one of the total length and that of the cache."""
    wanted = expr(total)
    if past is None:
        return wanted
    prove = call.imp.builder.analyzer.prove
    if prove(ir.compare(ir.GE, wanted, past)):
        return wanted
    return past if prove(ir.compare(ir.LE, wanted, past)) else ir.maximum(wanted, past)


def _projections(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by heads; all three may be side by side in the first input."""
    heads, shared = call.attr("num_heads"), call.attr("kv_num_heads")
    query = call.tensor(0)
    if call.has(1):
        k, v = (split_heads(call, call.tensor(p), shared) for p in (1, 2))
        return split_heads(call, query, heads), k, v
    whole = split_heads(call, query, heads + 2 * shared)
    q, k, v = (
        part(call, whole, 1, begin, end)
        for begin, end in (
            (0, heads),
            (heads, heads + shared),
            (heads + shared, heads + 2 * shared),
        )
    )
    return q, k, v


class _Cache:
    """Where the keys of each sequence lie.

    Attributes:
        ends: number of keys with those of this call, (batch, 1).
        past: number of keys before them, (batch, 1).
    """

    def __init__(self, call: Call, ends: Tensor, past: Tensor) -> None:
        self.call, self.ends, self.past = call, ends, past

    def places(self, length: ir.Expr) -> Tensor:
        """Positions of the queries, (batch, length)."""
        return self.call.apply("add", positions(self.call, length, 2, 1), self.past)

    def stored(self, new: Tensor, past: list[Tensor], room: ir.Expr) -> Tensor:
        """Keys or values of the past, then the new ones, then zeros up to `room`."""
        call = self.call
        batch, heads, length, _ = dims_of(new)
        if not past and proved(call, length, room):
            return new
        both = call.apply("concat", *past, new, axis=2) if past else new
        before = dims_of(past[0])[2] if past else ir.const(0, I64)
        place = positions(call, room, 2, 1)
        # A new key that belongs at `place` is behind all of the past, full or not.
        shifted = call.apply("subtract", place, self.past)
        shifted = call.apply("minimum", shifted, scalar=ir.sub(length, ir.const(1, I64)))
        shifted = call.apply("add", shifted, scalar=before, scalar_side="right")
        source = call.apply("where", call.apply("less", place, self.past), place, shifted)
        lead = [
            call.reshape(call.apply("arange", begin=0, end=n, step=1, dtype="int64"), shape)
            for n, shape in ((batch, (batch, 1, 1)), (heads, (1, heads, 1)))
        ]
        # Each coordinate is checked: a past that the cache cannot hold would be another head's.
        values = call.apply("index", both, *lead, call.reshape(source, (batch, 1, room)))
        limit = call.apply("add", self.past, scalar=length, scalar_side="right")
        inside = call.reshape(call.apply("less", place, limit), (batch, 1, room, 1))
        return call.apply("where", inside, values, call.scalar(0, dtype_of(values)))

    def allowed(self, place: Tensor, room: ir.Expr, window: int) -> Tensor:
        """Which keys a query attends to; the result broadcasts to (batch, 1, length, room).

        Those not after the end and, of a causal node, up to its own position, of which a window
        keeps the last ones: queries of padding may have none.
        """
        call = self.call
        batch, length = dims_of(place)
        key = positions(call, room, 4, 3)
        last = call.reshape(place, (batch, 1, length, 1))
        result = call.apply("less", key, call.reshape(self.ends, (batch, 1, 1, 1)))
        if not call.attr("causal", 1):
            return result
        result = call.apply("logical_and", result, call.apply("less_equal", key, last))
        if window < 0:
            return result
        first = call.apply("subtract", last, scalar=window, scalar_side="right")
        return call.apply("logical_and", result, call.apply("greater", key, first))


def _masked_attention(
    call: Call, q: Tensor, present: list[Tensor], cache: _Cache, place: Tensor
) -> Value:
    """Attention to the keys that masks allow; scores are capped before masks are added."""
    k, v = present
    room = dims_of(k)[2]
    allowed = cache.allowed(place, room, call.attr("local_window_size", -1))
    dtype = dtype_of(q)
    nothing = call.scalar(float("-inf"), dtype)
    mask, bias = allowed, None
    if call.has(10):
        bias = score_bias(call, call.tensor(10), dims_of(q)[2], room)
        if bias is None:
            return NotImplemented
        mask = call.apply("where", allowed, bias, nothing)
    cap, smooth = call.attr("softcap", 0.0), call.attr("smooth_softmax", 0) == 1
    if not cap and not smooth and not call.has(11):
        return call.apply("attention", q, k, v, mask, scale=scale_of(call))
    scores = _capped_scores(call, q, k, cap)
    if bias is not None:
        scores = call.apply("add", scores, bias)
    scores = call.apply("where", allowed, scores, nothing)
    batch, heads, length, _ = dims_of(q)
    if smooth or call.has(11):
        sink = call.tensor(11) if call.has(11) else call.scalar(0, dtype)
        sink = call.reshape(sink, (1, heads if call.has(11) else 1, 1, 1))
        column = call.apply("broadcast_to", sink, shape=(batch, heads, length, ir.const(1, I64)))
        scores = call.apply("concat", scores, column, axis=3)
    weights = part(call, call.apply("softmax", scores, axis=3), 3, 0, room)
    weights = call.apply("where", allowed, weights, call.scalar(0, dtype))
    return _by_groups(call, weights, v)


def _capped_scores(call: Call, q: Tensor, k: Tensor, cap: float) -> Tensor:
    """q · kᵀ · scale, within ±cap."""
    size = ir.const_int(dims_of(q)[3])
    if size is None:
        raise call.error("the size of heads is symbolic", "declare it as a number")
    scale = scale_of(call) or size**-0.5
    keys = call.apply("permute_dims", k, axes=(0, 1, 3, 2))
    scores = _by_groups(call, q, keys)
    dtype = dtype_of(q)
    scores = call.apply("multiply", scores, call.scalar(scale, dtype))
    if not cap:
        return scores
    level = call.scalar(cap, dtype)
    part_of_cap = call.apply("tanh", call.apply("divide", scores, level))
    return call.apply("multiply", part_of_cap, level)


def _by_groups(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices where several heads of `a` share one of `b`."""
    batch, heads, rows, columns = dims_of(a)
    shared = call.attr("kv_num_heads")
    group = ir.floordiv(heads, ir.const(shared, I64))
    apart = call.reshape(a, (batch, shared, ir.mul(group, rows), columns))
    product = call.apply("matmul", apart, b)
    return call.reshape(product, (batch, heads, rows, dims_of(product)[3]))
