"""Offers for attention: all keys at once, and split-KV attention.

The numbers of queries and keys and the head sizes must be constants, and the size of a block must
divide the number of keys.

Predicted times are those of the two products and of what passes through the caches; exponentials
take the same time in both implementations. With all keys at once, keys and values are read for each
row tile, and the scores of a tile lie in the cache that holds them. In blocks, keys and values are
read once for the rows of a task and then lie in the cache that holds a block, like its scores, but
each row has a partial result per block.
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
    SHARE_OF_SCORES,
    kv_block_size,
    slice_of_head,
    why_whole,
)
from blockwright.strategies.cpu.attention_plan import ROWS_OF_TASK
from blockwright.strategies.offer import Candidate, Offer, OperatorCall
from blockwright.strategies.strategy import Refused
from blockwright.target import Target

_PASSES = 3  # times that scores are moved: written, and read and replaced by the softmax
_SIZE = BITS // 8


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

    @property
    def row_bytes(self) -> int:
        """Of keys and values together, for one key."""
        return (self.key + self.value) * _SIZE


def _blocks(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    sizes = _sizes(call, target)
    if isinstance(sizes, Refused):
        return sizes
    heads = (sizes.key, sizes.value)
    reason = why_whole(target, sizes.rows, sizes.keys, heads, sizes.causal)
    if reason:
        return Refused(reason)
    block = kv_block_size(sizes.keys, heads)
    return [Candidate(_seconds_in_blocks(target, sizes, block), KeyBlocks(block))]


def _whole(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    sizes = _sizes(call, target)
    return sizes if isinstance(sizes, Refused) else [Candidate(_seconds_at_once(target, sizes))]


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


def _seconds_at_once(target: Target, sizes: _Sizes) -> float:
    tile = min(sizes.rows, slice_of_head(target, sizes.value).rows)
    read = sizes.keys * sizes.row_bytes
    cycles = math.ceil(sizes.rows / tile) * read / target.bytes_per_cycle(_sharing(target) * read)
    return _seconds(target, sizes, cycles + _scores(target, sizes, tile * sizes.keys))


def _seconds_in_blocks(target: Target, sizes: _Sizes, block: int) -> float:
    tile = min(sizes.rows, slice_of_head(target, sizes.value).rows)
    read, near = sizes.keys * sizes.row_bytes, block * sizes.row_bytes
    tasks = math.ceil(sizes.rows / ROWS_OF_TASK)
    cycles = tasks * read / target.bytes_per_cycle(_sharing(target) * read)
    cycles += (math.ceil(sizes.rows / tile) - tasks) * read / target.bytes_per_cycle(near)
    blocks = sizes.keys // block
    partial = min(sizes.rows, ROWS_OF_TASK) * blocks * sizes.value * _SIZE
    cycles += tasks * 2 * partial / target.bytes_per_cycle(partial)  # written and read
    return _seconds(target, sizes, cycles + _scores(target, sizes, tile * block))


def _scores(target: Target, sizes: _Sizes, kept: int) -> float:
    """Cycles to move the scores of a head, of which `kept` are kept at a time."""
    moved = _PASSES * sizes.rows * sizes.keys * _SIZE
    return moved / target.bytes_per_cycle(math.ceil(kept * _SIZE / SHARE_OF_SCORES))


def _seconds(target: Target, sizes: _Sizes, moved: float) -> float:
    """Seconds of all heads on all threads, with `moved` cycles per head to move data."""
    products = sizes.rows * sizes.keys * (sizes.key + sizes.value)
    cycles = products / target.lanes("float32") / target.core.arithmetic + moved
    if sizes.causal and sizes.rows == sizes.keys:
        cycles /= 2
    return sizes.heads * cycles / target.num_threads / target.core.frequency_hz


def _sharing(target: Target) -> int:
    """Number of heads whose keys and values share the last-level cache."""
    return max(1, min(target.num_threads, target.caches[-1].shared_by))


OFFERS = (
    Offer("attention", DEFAULT, _whole, "attention"),
    Offer("attention", "split_kv", _blocks, "attention"),
)
