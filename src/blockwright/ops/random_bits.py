"""Random bits of a counter-based generator: Philox 4x32 with ten rounds.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC11). A block cipher
encrypts a counter of four 32-bit words by a key of two; the four words that come out are the random
numbers. Every element is a function of the generator and its own position, so the numbers depend
neither on the order of the elements nor on the number of threads.

The generator is (seed, position), two int64. The seed is the key, low word first; the counter is
the number of the block of four words and position + step, each in 64 bits, low word first. Calls
with other steps, and programs that move the position on, get other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ZERO,
    as_dim,
    inputs,
    require_shape,
    result,
    shape_operand,
    tensors,
    unknown,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample
from blockwright.ops.samples import values
from blockwright.script.compute import Program

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_U64 = ir.dtype_of("uint64")
_WORDS = {"uint32": 1, "uint64": 2}
"""Element type → number of words that an element takes of the four of a block."""


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    given, wanted, rank = shape_operand(ctx, infos, attrs)
    (generator,) = tensors(ctx, given, 1, 1)
    if generator.dtype not in (None, I64):
        raise ctx.error(f"the generator is of {generator.dtype}, not of int64")
    if generator.shape is not None:
        if len(generator.shape) != 1:
            raise ctx.error(f"the generator has rank {generator.rank}, not 1")
        ctx.require_equal(generator.shape[0], as_dim(2), "the generator is (seed, position)")
    dtype = ir.dtype_of(attrs["dtype"])
    if dtype.name not in _WORDS:
        raise ctx.error(f"bits of {dtype}", f"pass dtype= one of {', '.join(_WORDS)}")
    return unknown(given, dtype, rank) if wanted is None else result(given, wanted, dtype)


# ------------------------------------------------------------------------------- tensor program
def _u64(value: int) -> ir.Expr:
    return ir.const(value, _U64)


def _low(value: ir.Expr) -> ir.Expr:
    return ir.call("bitwise_and", value, _u64(_MASK))


def _high(value: ir.Expr) -> ir.Expr:
    return ir.call("shift_right", value, _u64(32))


def _xor(a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    return ir.call("bitwise_xor", ir.call("bitwise_xor", a, b), c)


class _Named:
    """Values that are computed once: a chain of let expressions."""

    def __init__(self) -> None:
        self._bound: list[tuple[ir.Var, ir.Expr]] = []

    def __call__(self, value: ir.Expr) -> ir.Expr:
        name = ir.var(f"word{len(self._bound)}", _U64)
        self._bound.append((name, value))
        return name

    def around(self, body: ir.Expr) -> ir.Expr:
        for name, value in reversed(self._bound):
            body = ir.Let(name, value, body)
        return body


def _block(named: _Named, number: ir.Expr, seed: ir.Expr, position: ir.Expr) -> list[ir.Expr]:
    """The four words of a block; all values are uint64, words below 2^32."""
    number, seed, position = (named(ir.cast_to(v, _U64)) for v in (number, seed, position))
    words = [_low(number), _high(number), _low(position), _high(position)]
    keys = [_low(seed), _high(seed)]
    for _ in range(ROUNDS):
        first, second = (
            named(ir.mul(word, _u64(factor)))
            for word, factor in zip(words[::2], MULTIPLIERS, strict=True)
        )
        words = [
            named(_xor(_high(second), words[1], keys[0])),
            _low(second),
            named(_xor(_high(first), words[3], keys[1])),
            _low(first),
        ]
        keys = [
            named(_low(ir.add(key, _u64(more)))) for key, more in zip(keys, INCREMENTS, strict=True)
        ]
    return words


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    _, wanted, _ = shape_operand(ctx, infos, attrs)
    shape, dtype = require_shape(ctx, wanted), ir.dtype_of(attrs["dtype"])
    program = Program(ctx.name)
    (generator,) = inputs(ctx, program, infos[:1])
    each = _WORDS[dtype.name]
    per_block = as_dim(4 // each)

    def element(*index: Any) -> ir.Expr:
        place: ir.Expr = ZERO
        for size, i in zip(shape, index, strict=True):
            place = ir.add(ir.mul(place, size), i)
        named = _Named()
        position = ir.add(generator[as_dim(1)], ir.const(attrs["step"], I64))
        words = _block(named, ir.floordiv(place, per_block), generator[ZERO], position)
        within = ir.floormod(place, per_block)
        parts = [_join(words[k : k + each]) for k in range(0, 4, each)]
        chosen = parts[-1]
        for k, part in reversed(list(enumerate(parts[:-1]))):
            chosen = ir.select(ir.compare(ir.EQ, within, as_dim(k)), part, chosen)
        return named.around(ir.cast_to(chosen, dtype))

    return program.finish([program.compute("out", shape, element, dtype)])


def _join(words: Sequence[ir.Expr]) -> ir.Expr:
    """One word, or two as one number, low word first."""
    if len(words) == 1:
        return words[0]
    return ir.call("bitwise_or", words[0], ir.call("shift_left", words[1], _u64(32)))


# --------------------------------------------------------------------------------------- oracle
def philox(counter: Array, key: tuple[int, int]) -> Array:
    """The words (…, 4) of counters (…, 4) in uint32, as arrays of NumPy."""
    words = [w.astype(np.uint64) for w in np.moveaxis(counter, -1, 0)]
    for number in range(ROUNDS):
        keys = [(k + number * more) & _MASK for k, more in zip(key, INCREMENTS, strict=True)]
        first, second = words[0] * np.uint64(MULTIPLIERS[0]), words[2] * np.uint64(MULTIPLIERS[1])
        high, low = [p >> np.uint64(32) for p in (first, second)], np.uint64(_MASK)
        words = [
            high[1] ^ words[1] ^ np.uint64(keys[0]),
            second & low,
            high[0] ^ words[3] ^ np.uint64(keys[1]),
            first & low,
        ]
    return np.stack(words, -1).astype(np.uint32)


def _oracle(generator: Array, shape: Sequence[int], step: int, dtype: Any) -> Array:
    kind = ir.dtype_of(dtype).numpy()
    count = int(np.prod(shape, dtype=np.int64))
    blocks = np.arange(-(-count * kind.itemsize // 16), dtype=np.uint64)
    seed, position = (int(v) % 2**64 for v in (generator[0], int(generator[1]) + step))
    counter = np.zeros((len(blocks), 4), np.uint32)
    counter[:, 0], counter[:, 1] = blocks & np.uint64(_MASK), blocks >> np.uint64(32)
    counter[:, 2], counter[:, 3] = position & _MASK, position >> 32
    words = philox(counter, (seed & _MASK, seed >> 32))
    return words.astype("<u4").reshape(-1).view(kind)[:count].reshape(shape)


_GENERATOR = values(0x0123456789ABCDEF, -3, dtype="int64")

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "random_bits",
        ("generator", "shape?"),
        _deduce,
        _lower,
        _oracle,
        {"shape": None, "step": 0, "dtype": "uint32"},
        (),
        (),
        (
            Sample((_GENERATOR,), {"shape": (3, 7)}),
            Sample((_GENERATOR,), {"shape": (5, 3), "dtype": "uint64", "step": 5}),
            Sample((values(0, 0, dtype="int64"),), {"shape": ()}),
            Sample((values(-1, -1, dtype="int64"),), {"shape": (0, 2), "step": 1}),
        ),
        "Random bits of the generator (seed, position): the words of Philox 4x32-10. Each operator "
        "of a program takes another step.",
    ),
)
