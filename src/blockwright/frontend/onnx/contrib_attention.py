"""Attention of encoders and decoders (`com.microsoft`): Attention, MultiHeadAttention.

Masks are added to the scores: `mask_filter_value` for padding, so that a row without any key is
the softmax of its scores, as ONNX Runtime computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.contrib_fused import CONTRIB, proved, with_shape
from blockwright.frontend.onnx.sizes import I64, expr

TABLE = Converters()
Tensor = ir.GraphExpr
_INT32 = ir.dtype_of("int32")
_UNCOVERED = ("do_rotary", "past_present_share_buffer", "rotary_embedding_dim")


# ------------------------------------------------------------------------------------------- parts


def split_heads(call: Call, x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · size) as (batch, heads, length, size)."""
    batch, length, width = dims_of(x)
    size = ir.floordiv(width, ir.const(heads, I64))
    apart = call.reshape(x, (batch, length, heads, size))
    return call.apply("permute_dims", apart, axes=(0, 2, 1, 3))


def joined_heads(call: Call, x: Tensor) -> Tensor:
    """(batch, heads, length, size) as (batch, length, heads · size)."""
    batch, heads, length, size = dims_of(x)
    swapped = call.apply("permute_dims", x, axes=(0, 2, 1, 3))
    return call.reshape(swapped, (batch, length, ir.mul(heads, size)))


def part(call: Call, x: Tensor, axis: int, begin: Any, end: Any) -> Tensor:
    """A slice along an axis."""
    return call.apply("slice", x, axis=axis, begin=expr(begin), end=expr(end), step=1)


def positions(call: Call, size: Any, rank: int, axis: int) -> Tensor:
    """0, 1, … along an axis of a tensor of the given rank."""
    index = call.apply("arange", begin=0, end=expr(size), step=1, dtype="int64")
    return call.reshape(index, [size if k == axis else 1 for k in range(rank)])


def scale_of(call: Call) -> float | None:
    """The factor of the scores; None for the usual one, which 0 stands for too."""
    return call.attr("scale", 0.0) or None


class Keys:
    """Keys and values with those of the past before them, and what masks refer to.

    Attributes:
        key, value: (batch, heads, total, size).
        past: number of positions before the first one of this call.
    """

    def __init__(self, call: Call, key: Tensor, value: Tensor, past: Sequence[Tensor] = ()) -> None:
        self.past: ir.Expr = dims_of(past[0])[2] if past else ir.const(0, I64)
        both = [key, value]
        if past:
            both = [
                call.apply("concat", before, now, axis=2)
                for before, now in zip(past, both, strict=True)
            ]
        self.key, self.value = both

    @property
    def total(self) -> ir.Expr:
        return dims_of(self.key)[2]


def attended(call: Call, q: Tensor, keys: Keys, masks: list[Tensor], causal: bool) -> Tensor:
    """softmax(q · kᵀ · scale + masks) · v, with heads joined.

    Args:
        masks: tensors that broadcast to the scores and are added to them.
    """
    total: Tensor | None = None
    for mask in masks:
        total = mask if total is None else call.apply("add", total, mask)
    row_causal = causal and not masks and proved(call, keys.past, 0)
    if causal and not row_causal:
        length = dims_of(q)[2]
        last = call.apply("add", positions(call, length, 2, 0), scalar=keys.past)
        later = call.apply("greater", positions(call, keys.total, 2, 1), last)
        lowest = call.scalar(float("-inf"), dtype_of(q))
        zero = call.scalar(0, dtype_of(q))
        total = call.apply("where", later, lowest, zero if total is None else total)
    given = () if total is None else (total,)
    value = call.apply(
        "attention", q, keys.key, keys.value, *given, scale=scale_of(call), is_causal=row_causal
    )
    return joined_heads(call, value)


def padding_mask(
    call: Call, mask: Tensor, sizes: tuple[Any, Any, Any], dtype: ir.DType
) -> Tensor | None:
    """What is added to the scores for padding; None if the form of the mask is not known.

    A mask is 0 for padding, for (batch, total) or (batch, length, total); or it holds the end of
    each sequence (batch), or all ends and then all starts (2 · batch).

    Args:
        sizes: of the scores: (batch, length, total).
        dtype: of the result.
    """
    batch, length, total = sizes
    rank = rank_of(mask)
    if rank == 1:
        outside = _outside(call, mask, batch, total)
    elif rank in (2, 3):
        wanted = (batch, total) if rank == 2 else (batch, length, total)
        fitted = with_shape(call, mask, wanted, "the mask has not the lengths of queries and keys")
        if fitted is None:
            return None
        rows = 1 if rank == 2 else length
        flat = call.reshape(fitted, (batch, 1, rows, total))
        outside = call.apply("less_equal", flat, scalar=0, scalar_side="right")
    else:
        return None
    if outside is None:
        return None
    masked = call.scalar(call.attr("mask_filter_value", -10000.0), dtype)
    return call.apply("where", outside, masked, call.scalar(0, dtype))


def _outside(call: Call, mask: Tensor, batch: Any, total: Any) -> Tensor | None:
    """Whether positions are after the end of a sequence, or before its start."""
    (size,) = dims_of(mask)
    place = call.cast(positions(call, total, 4, 3), _INT32)
    shape = (batch, 1, 1, 1)
    if proved(call, size, batch):
        return call.apply("greater_equal", place, call.reshape(mask, shape))
    if not proved(call, size, ir.mul(expr(batch), ir.const(2, I64))):
        return None
    end = call.reshape(part(call, mask, 0, 0, batch), shape)
    start = call.reshape(part(call, mask, 0, batch, size), shape)
    after = call.apply("greater_equal", place, end)
    return call.apply("logical_or", after, call.apply("less", place, start))


def score_bias(call: Call, bias: Tensor, length: Any, total: Any) -> Tensor | None:
    """What is added to scores, (batch or 1, heads or 1, length, total); None for other shapes."""
    if rank_of(bias) != 4:
        return None
    wanted = (*dims_of(bias)[:2], length, total)
    return with_shape(call, bias, wanted, "the bias has not the lengths of queries and keys")


# --------------------------------------------------------------------------------------- operators


@TABLE.op("Attention", domain=CONTRIB)
def _attention(call: Call) -> Value:
    """Projection to queries, keys and values by one weight, then attention."""
    if any(call.attr(name, 0) for name in _UNCOVERED) or call.has(6):
        return NotImplemented
    x, weight = call.tensor(0), call.tensor(1)
    merged = call.apply("matmul", x, weight)
    if call.has(2):
        merged = call.apply("add", merged, call.tensor(2))
    return self_attention(call, merged, mask=3, past=4, bias=5)


def self_attention(
    call: Call, merged: Tensor, mask: int, past: int, bias: int | None = None
) -> Value:
    """Attention of queries, keys and values that lie side by side; the keys and values of the past.

    Arguments: `mask`, `past` and `bias` are positions of inputs.
    """
    heads = call.attr("num_heads")
    batch, length, width = dims_of(merged)
    third = ir.floordiv(width, ir.const(3, I64))
    sizes = call.attr("qkv_hidden_sizes", None) or (third, third, third)
    ends = [expr(sizes[0]), ir.add(expr(sizes[0]), expr(sizes[1])), width]
    parts = [
        split_heads(call, part(call, merged, 2, begin, end), heads)
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    q, k, v = parts
    before = _past_of(call, past) if call.has(past) else ()
    keys = Keys(call, k, v, before)
    masks: list[Tensor] = []
    if call.has(mask):
        padding = padding_mask(
            call, call.tensor(mask), (batch, length, keys.total), dtype_of(merged)
        )
        if padding is None:
            return NotImplemented
        masks.append(padding)
    if bias is not None and call.has(bias):
        added = score_bias(call, call.tensor(bias), length, keys.total)
        if added is None:
            return NotImplemented
        masks.append(added)
    result = attended(call, q, keys, masks, bool(call.attr("unidirectional", 0)))
    if not call.wants(1):
        return result
    both = [call.reshape(t, (1, *dims_of(t))) for t in (keys.key, keys.value)]
    return [result, call.apply("concat", *both, axis=0)]


def _past_of(call: Call, position: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the past, from (2, batch, heads, length, size)."""
    past = call.tensor(position)
    key, value = (call.reshape(part(call, past, 0, k, k + 1), dims_of(past)[1:]) for k in range(2))
    return key, value


@TABLE.op("MultiHeadAttention", domain=CONTRIB)
def _multi_head_attention(call: Call) -> Value:
    """Attention of queries, keys and values that are projected already."""
    heads = call.attr("num_heads")
    if call.has(8) or call.has(9) or call.wants(3):  # shared buffers, beams, scores
        return NotImplemented
    query, *others = _projections(call)
    if len(others) != 2 or rank_of(query) != 3 or call.has(6) != call.has(7):
        return NotImplemented
    ranks = {rank_of(t) for t in others}
    if ranks != {3} and (ranks != {4} or call.has(3) or call.has(6)):
        return NotImplemented  # keys by heads are those of the past
    batch, length, _ = dims_of(query)
    projected = [query, *others]
    if call.has(3):
        projected = _with_biases(call, projected)
    q, k, v = (t if rank_of(t) == 4 else split_heads(call, t, heads) for t in projected)
    causal = bool(call.attr("unidirectional", 0))
    if causal and not proved(call, dims_of(k)[2], length):
        return NotImplemented
    before = (call.tensor(6), call.tensor(7)) if call.has(6) else ()
    keys = Keys(call, k, v, before)
    masks: list[Tensor] = []
    if call.has(4):
        padding = padding_mask(call, call.tensor(4), (batch, length, keys.total), dtype_of(query))
        if padding is None:
            return NotImplemented
        masks.append(padding)
    if call.has(5):
        added = score_bias(call, call.tensor(5), length, keys.total)
        if added is None:
            return NotImplemented
        masks.append(added)
    result = attended(call, q, keys, masks, causal)
    return [result, keys.key, keys.value]


def _projections(call: Call) -> list[Tensor]:
    """Queries, keys and values; two or all three of them may be side by side for each head."""
    given = [call.tensor(k) for k in range(3) if call.has(k)]
    if rank_of(given[-1]) != 5:
        return given
    packed = given.pop()
    batch, length, heads, count, size = dims_of(packed)
    shape = (batch, length, ir.mul(heads, size))
    number = ir.const_int(count) or 0
    return [*given, *(call.reshape(part(call, packed, 3, k, k + 1), shape) for k in range(number))]


def _with_biases(call: Call, projected: list[Tensor]) -> list[Tensor]:
    """Queries, keys and values plus their parts of one vector."""
    bias, width = call.tensor(3), dims_of(projected[0])[2]
    twice = ir.mul(width, ir.const(2, I64))
    bounds = [ir.const(0, I64), width, twice, dims_of(bias)[0]]
    return [
        call.apply("add", t, part(call, bias, 0, bounds[k], bounds[k + 1]))
        for k, t in enumerate(projected)
    ]
