"""Offers for attention: all keys at once, and split-KV attention.

The numbers of queries and keys and the head sizes must be constants, and the size of a block must
divide the number of keys.

With all keys at once, keys and values are read for each row tile, and the scores of a tile lie in
the cache that holds them. In blocks, keys and values are read once for the rows of a task and then
lie in the cache that holds a block, like its scores, but each row has a partial result per block.
The cost model predicts the time of both (`attention_nest`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.ops.attention import KeyBlocks
from blockwright.ops.implementation import DEFAULT
from blockwright.strategies.cpu.attention_cost import (
    BITS,
    kv_block_size,
    why_whole,
)
from blockwright.strategies.cpu.attention_plan import (
    AttentionShape,
    best_plan,
    predicted_seconds,
)
from blockwright.strategies.offer import Candidate, Offer, OperatorCall
from blockwright.strategies.strategy import Refused
from blockwright.target import Target

_FLOAT = ir.dtype_of("float32")


class _Sizes(msgspec.Struct, frozen=True):
    """Sizes of a call.

    Attributes:
        heads: with the batch, as far as it is known.
        key, value: elements of a row of keys, and of values.
    """

    heads: int
    rows: int
    keys: int
    key: int
    value: int
    causal: bool


def _blocks(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    sizes = _sizes(call, target)
    if isinstance(sizes, Refused):
        return sizes
    heads = (sizes.key, sizes.value)
    reason = why_whole(target, sizes.rows, sizes.keys, heads, sizes.causal)
    if reason:
        return Refused(reason)
    block = kv_block_size(sizes.keys, heads)
    return [Candidate(_seconds(target, sizes, block), KeyBlocks(block))]


def _whole(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    sizes = _sizes(call, target)
    return sizes if isinstance(sizes, Refused) else [Candidate(_seconds(target, sizes, sizes.keys))]


def _sizes(call: OperatorCall, target: Target) -> _Sizes | Refused:
    if target.kind != "cpu":
        return Refused(f"{target} is not a CPU")
    shapes = [info.shape for info in call.infos[:3]]
    if any(shape is None for shape in shapes):
        return Refused("a shape is unknown")
    queries, keys, values = ([ir.const_int(size) for size in shape or ()] for shape in shapes)
    rows, length, key, value = queries[2], keys[2], keys[3], values[3]
    if rows is None or length is None or key is None or value is None:
        return Refused("a size is symbolic")
    heads = math.prod(size or 1 for size in queries[:2])
    return _Sizes(heads, rows, length, key, value, bool(call.attrs["is_causal"]))


def _seconds(target: Target, sizes: _Sizes, block: int) -> float:
    """Predicted seconds with blocks of this many keys."""
    shape = AttentionShape(
        heads=sizes.heads,
        rows=sizes.rows,
        most_rows=sizes.rows,
        keys=block,
        head=sizes.value,
        row_bytes=sizes.key * BITS // 8,
        in_blocks=block < sizes.keys,
        types=(_FLOAT, _FLOAT, _FLOAT),
        bits_of_result=BITS,
    )
    plan = best_plan(target, shape)
    seconds = predicted_seconds(target, shape, plan, sizes.keys // block, sizes.key)
    return seconds / 2 if sizes.causal and sizes.rows == sizes.keys else seconds


OFFERS = (
    Offer("attention", DEFAULT, _whole, "attention"),
    Offer("attention", "split_kv", _blocks, "attention"),
)
