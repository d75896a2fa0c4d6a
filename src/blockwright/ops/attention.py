"""Scaled dot-product attention as a sequence of blocks, which strategies fuse and tile.

The implementation `split_kv` processes keys in blocks (split-KV attention), each with its own
softmax. Partial results are rescaled to the global maximum and added:

    M1[c] = max S[c, :];  P = exp(S - M1[c]);  L1[c] = sum P;  O1[c] = P V
    M = max M1;  F[c] = exp(M1[c] - M);  out = sum F O1 / sum F L1

A schedule then only keeps the scores and exponentials of one key block, and for each key block the
partial results of a head for one row.

With a causal mask, keys after the query contribute the neutral element of each step, by a
selection. A schedule can thus cut the key loop at the diagonal and drop the rest, even if the
dropped values are NaN.

A query row that may attend to no key yields 0: its maximum is -inf, which is replaced by 0 before
the subtraction, so that all exponentials are 0 and the guarded division returns 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    accumulator,
    at,
    fold,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
    wide,
    widen,
)
from blockwright.ops.row import (
    Array,
    Attrs,
    Implementation,
    OpContext,
    OpRow,
    Parameters,
    Sample,
    dims_text,
    known_dtype,
)
from blockwright.ops.samples import bools, floats, values
from blockwright.script.compute import Program, Tensor

_ATTRS: dict[str, Any] = {"scale": None, "is_causal": False}
_AXES = ("b", "h", "q", "k")


def _check_mask(ctx: OpContext, mask: ir.TensorInfo, infos: Sequence[ir.TensorInfo]) -> None:
    if mask.dtype is not None and not (mask.dtype.is_bool or mask.dtype.is_float):
        raise ctx.error(f"the mask is {mask.dtype}; it must be bool (attend) or float (added)")
    query, key = infos[0].shape, infos[1].shape
    if mask.shape is None or query is None or key is None:
        return
    if len(mask.shape) > 4:
        raise ctx.error(f"the mask has rank {len(mask.shape)}, more than 4")
    scores = (*query[:3], key[2])
    for dim, full in zip(reversed(mask.shape), reversed(scores), strict=False):
        if not ir.is_const_int(dim, 1):
            ctx.require_equal(dim, full, "the mask does not broadcast to the scores")


def _group(ctx: OpContext, heads: ir.Expr, kv_heads: ir.Expr) -> ir.Expr:
    """The number of query heads that share one key head."""
    if ctx.equal(heads, kv_heads):
        return ir.const(1, "int64")
    if not ctx.equal(ir.floormod(heads, kv_heads), ir.const(0, "int64")):
        counts = f"{dims_text(heads)} query heads cannot share {dims_text(kv_heads)} key heads"
        raise ctx.error(f"{counts} evenly")
    return ctx.analyzer.simplify(ir.floordiv(heads, kv_heads))


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 3, 4)
    q, k, v = matches[:3]
    dtype = same_dtype(ctx, matches[:3])
    require_kind(ctx, dtype, "float")
    for position, info in enumerate(matches[:3]):
        if info.rank not in (-1, 4):
            raise ctx.error(
                f"argument {position} has rank {info.rank}, not (batch, heads, length, size)"
            )
    if len(matches) == 4:
        _check_mask(ctx, matches[3], matches)
    if q.shape is None or k.shape is None or v.shape is None:
        return unknown(matches, dtype, 4)
    for other in (k.shape, v.shape):
        ctx.require_equal(q.shape[0], other[0], "batch sizes differ")
    ctx.require_equal(q.shape[3], k.shape[3], "head sizes of query and key differ")
    ctx.require_equal(k.shape[1], v.shape[1], "key and value heads differ")
    ctx.require_equal(k.shape[2], v.shape[2], "key and value lengths differ")
    _group(ctx, q.shape[1], k.shape[1])
    return result(matches, (*q.shape[:3], v.shape[3]), dtype)


def _scale(attrs: Attrs, size: ir.Expr, dtype: ir.DType) -> ir.Expr:
    if attrs["scale"] is not None:
        return ir.const(float(attrs["scale"]), dtype)
    if isinstance(size, ir.IntImm):
        return ir.const(1.0 / math.sqrt(max(size.value, 1)), dtype)
    return ir.truediv(ir.const(1.0, dtype), ir.call("sqrt", ir.cast_to(size, dtype)))


def _masked(
    score: Any, index: Sequence[Any], mask: Tensor | None, is_causal: bool, dtype: ir.DType
) -> Any:
    """Apply the masks to a score: -inf where attending is not allowed, plus an additive mask."""
    nothing = ir.const(float("-inf"), dtype)
    if mask is not None:
        element: Any = at(mask, index)
        if mask.dtype.is_bool:
            score = ir.select(element, score, nothing)
        else:
            score = ir.add(score, ir.cast_to(element, dtype))
    return ir.select(index[3] <= index[2], score, nothing) if is_causal else score


class KeyBlocks(Parameters, frozen=True):
    """Number of keys per block."""

    block: int


def _why_not_blocks(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, blocks: KeyBlocks
) -> str:
    if blocks.block < 1:
        return "a block has at least one key"
    if infos[1].shape is None:
        return ""
    keys = infos[1].shape[2]
    length = ir.const_int(keys)
    if length is None or length % blocks.block or length == blocks.block:
        return (
            f"{dims_text(keys)} keys cannot be split into several blocks of {blocks.block}; "
            "use a proper divisor of the number of keys"
        )
    return ""


def _lower_whole(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    return _lower(ctx, infos, attrs, None)


def _lower_blocks(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, blocks: KeyBlocks
) -> ir.PrimFunc:
    return _lower(ctx, infos, attrs, blocks.block)


def _lower(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, piece: int | None
) -> ir.PrimFunc:
    """The program for all keys at once, or for blocks of `piece` keys."""
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    q, k, v, *masks = inputs(ctx, program, infos)
    mask = masks[0] if masks else None
    batch, heads, length, size = q.shape
    keys, rows = k.shape[2], (batch, heads, length)
    group = _group(ctx, heads, k.shape[1])
    scale = _scale(attrs, size, inner)
    # Keys have one axis, or two: key block and position in the block.
    pieces = () if piece is None else (ir.floordiv(keys, piece),)
    each = keys if piece is None else ir.const(piece, "int64")
    names = (*_AXES[:3], *("c" for _ in pieces), "k")
    partial = (*rows, *pieces)
    lowest, zero = ir.const(float("-inf"), inner), ir.const(0.0, inner)

    def head(h: Any) -> Any:
        return ir.floordiv(h, group)

    def key(*place: Any) -> Any:
        return place[0] if piece is None else place[0] * piece + place[1]

    def dot(b: Any, h: Any, i: Any, *rest: Any) -> Any:
        *j, d = rest
        return ir.mul(widen(q[b, h, i, d]), widen(k[b, head(h), key(*j), d]))

    def shifted(score: Any, top: Any) -> Any:
        return ir.call("exp_ftz", ir.sub(score, ir.select(ir.EQ(top, lowest), zero, top)))

    def causal(i: Any, j: Any, value: Any, neutral: float) -> Any:
        """The value, or the neutral element (-0.0 in a sum) for keys after the query."""
        return ir.select(j <= i, value, ir.const(neutral, inner)) if attrs["is_causal"] else value

    square = (*partial, each)
    scores = fold(program, "S", square, (size,), dot, "sum", inner, (*names, "d"))
    allowed = program.compute(
        "S_masked",
        square,
        lambda *i: _masked(
            ir.mul(scores[i], scale), (*i[:3], key(*i[3:])), mask, attrs["is_causal"], inner
        ),
        inner,
        axes=names,
    )

    def power(b: Any, h: Any, i: Any, *j: Any) -> Any:
        place = (b, h, i, *j)
        return causal(i, key(*j), shifted(allowed[place], largest[place[:-1]]), 0.0)

    def weighted(b: Any, h: Any, i: Any, *rest: Any) -> Any:
        *c, d, j = rest
        place = key(*c, j)
        value = ir.mul(powers[(b, h, i, *c, j)], widen(v[b, head(h), place, d]))
        return causal(i, place, value, -0.0)

    part = "" if piece is None else "1"
    largest = fold(
        program, f"M{part}", partial, (each,), lambda *i: allowed[i], "max", inner, names
    )
    powers = program.compute("P", square, power, inner, axes=names)
    total = fold(program, f"L{part}", partial, (each,), lambda *i: powers[i], "sum", inner, names)
    sums = fold(
        program,
        f"O{part}",
        (*partial, v.shape[3]),
        (each,),
        weighted,
        "sum",
        inner,
        (*names[:-1], "d", "k"),
    )
    out_shape = (*rows, v.shape[3])
    if pieces:
        some, all_sums = total, sums
        top = fold(program, "M", rows, pieces, lambda *i: largest[i], "max", inner, names[:-1])
        factor = program.compute(
            "F", partial, lambda *i: shifted(largest[i], top[i[:-1]]), inner, axes=names[:-1]
        )
        total = fold(
            program,
            "L",
            rows,
            pieces,
            lambda *i: ir.mul(some[i], factor[i]),
            "sum",
            inner,
            names[:-1],
        )

        def scaled(b: Any, h: Any, i: Any, d: Any, c: Any) -> Any:
            return ir.mul(all_sums[b, h, i, c, d], factor[b, h, i, c])

        sums = fold(program, "O", out_shape, pieces, scaled, "sum", inner, (*names[:3], "d", "c"))

    def divided(b: Any, h: Any, i: Any, d: Any) -> Any:
        share = ir.truediv(sums[b, h, i, d], total[b, h, i])
        return ir.select(ir.EQ(total[b, h, i], zero), zero, share)

    out = program.compute("out", out_shape, divided, dtype, axes=("b", "h", "q", "d"))
    return program.finish([out])


def _oracle(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    scale: Any,
    is_causal: bool,
    implementation: Any = None,  # the meaning is the same
) -> Array:
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(wide(t), group, axis=1) for t in (k, v))
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores = np.einsum("bhqd,bhkd->bhqk", wide(q), wide_k) * factor
    if mask is not None:
        added = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else wide(mask)
        scores = scores + added
    if is_causal:
        causal = np.tril(np.ones(scores.shape[-2:], np.bool_))
        scores = np.where(causal, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = powers.sum(-1, keepdims=True)
    value = np.einsum("bhqk,bhkd->bhqd", powers, wide_v)
    return np.where(total == 0, 0.0, value / np.where(total == 0, 1.0, total)).astype(q.dtype)


_WHY = "weights carry the rounding of the scores, and their average cancels"


def _case(*args: Any, tolerance: float = 16.0, absolute: float = 1e-5, **attrs: Any) -> Sample:
    return Sample(args, attrs, tolerance, absolute, _WHY)


_SPLIT_KV = Implementation(
    "split_kv",
    _lower_blocks,
    "Sums over keys are added block by block; each result is rounded once more per block.",
    KeyBlocks,
    _why_not_blocks,
    "Keys in blocks with a softmax each, whose results are rescaled and added.",
)
_NONE_ALLOWED = values(*([True, False, True] * 2 + [False] * 3), dtype="bool", shape=(3, 1, 1, 3))

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "attention",
        ("q", "k", "v", "mask?"),
        _deduce,
        _lower_whole,
        _oracle,
        dict(_ATTRS),
        ("aten.scaled_dot_product_attention.default",),
        ("Attention",),
        (
            _case(floats(2, 3, 7, 4), floats(2, 3, 7, 4), floats(2, 3, 7, 4), scale=0.3),
            _case(floats(2, 2, 3, 5), floats(2, 2, 7, 5), floats(2, 2, 7, 2), bools(2, 1, 3, 7)),
            _case(floats(3, 2, 2, 4), floats(3, 2, 3, 4), floats(3, 2, 3, 4), _NONE_ALLOWED),
            _case(floats(1, 4, 5, 3), floats(1, 2, 5, 3), floats(1, 2, 5, 3), is_causal=True),
            _case(floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4), floats(3, 5)),
            _case(floats(1, 1, 1, 1), floats(1, 1, 1, 1), floats(1, 1, 1, 1)),
            _case(floats(1, 1, 2, 3), floats(1, 1, 0, 3), floats(1, 1, 0, 3)),
            _case(
                floats(2, 2, 5, 4),
                floats(2, 1, 6, 4),
                floats(2, 1, 6, 3),
                bools(5, 6),
                implementation="split_kv(block=2)",
            ),
            _case(*(floats(1, 2, 6, 3),) * 3, is_causal=True, implementation="split_kv(block=3)"),
            _case(*(floats(1, 2, 3, 4, dtype="float16"),) * 3, tolerance=4.0, absolute=1e-3),
        ),
        "softmax(q · kᵀ · scale + mask) · v for (batch, heads, length, size) tensors.",
        kinds={"scale": "real"},
        implementations=(_SPLIT_KV,),
    ),
)
