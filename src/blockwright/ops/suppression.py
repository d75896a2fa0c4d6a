"""Non-maximum suppression: of boxes that overlap, those with the best scores are kept.

The number of boxes kept is known when the program has run, as for `ops/select_elements.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    as_dim,
    inputs,
    require_kind,
    same_dtype,
    tensors,
    unknown,
)
from blockwright.ops.relabel import SymbolicProduct
from blockwright.ops.row import (
    Array,
    Attrs,
    Bounded,
    OpContext,
    OpRow,
    Sample,
    known_shape,
)
from blockwright.ops.samples import Maker, floats, values
from blockwright.ops.select_elements import collected
from blockwright.ops.sorting import precedes, sorted_line
from blockwright.script.compute import Program, Tensor

_NAMES = ("boxes", "scores", "limit", "overlap", "least")
_RANKS = (3, 3, 0, 0, 0)


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 5, 5)
    boxes, scores, limit, overlap, least = matches
    for name, rank, info in zip(_NAMES, _RANKS, matches, strict=True):
        if info.rank not in (-1, rank):
            raise ctx.error(f"{name} has rank {info.rank}, not {rank}", "reshape it")
    require_kind(ctx, same_dtype(ctx, [boxes, scores, overlap, least]), "float")
    require_kind(ctx, limit.dtype, "int")
    if boxes.shape is not None:
        ctx.require_equal(boxes.shape[2], as_dim(4), "a box has 4 coordinates")
    if boxes.shape is not None and scores.shape is not None:
        ctx.require_equal(boxes.shape[0], scores.shape[0], "boxes and scores differ in their batch")
        ctx.require_equal(boxes.shape[1], scores.shape[2], "every box needs a score")
    return unknown(matches, I64, 2)


def _bounded(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> Bounded:
    most = SymbolicProduct(known_shape(ctx, infos[1], 1)).expr()
    return Bounded((ir.TensorInfo((most, as_dim(3)), I64, device=infos[0].device),), (0,))


class _Box:
    """The sides of a box, given by two corners (y, x, y, x) or by (x, y, width, height)."""

    def __init__(self, boxes: Tensor, place: Sequence[ir.Expr], centred: bool) -> None:
        a, b, c, d = (boxes[(*place, as_dim(k))] for k in range(4))
        if centred:
            half = ir.const(0.5, a.dtype)
            self.low = a - c * half, b - d * half
            self.high = a + c * half, b + d * half
        else:
            self.low = ir.minimum(b, d), ir.minimum(a, c)
            self.high = ir.maximum(b, d), ir.maximum(a, c)

    def area(self) -> ir.Expr:
        return (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])


def _too_close(a: _Box, b: _Box, overlap: ir.Expr) -> ir.Expr:
    """Whether the common area, relative to that of the union, exceeds a limit."""
    zero = ir.const(0.0, overlap.dtype)
    sides: list[ir.Expr] = []
    for axis in range(2):
        low, high = ir.maximum(a.low[axis], b.low[axis]), ir.minimum(a.high[axis], b.high[axis])
        sides.append(high - low)
    common = sides[0] * sides[1]
    union = a.area() + b.area() - common
    positive = [*sides, common, a.area(), b.area(), union]
    meet = ir.all_of([ir.compare(ir.GT, each, zero) for each in positive])
    return ir.if_then_else(
        meet, ir.compare(ir.GT, common / union, overlap), ir.const(False, "bool")
    )


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    boxes, scores, limit, overlap, least = inputs(ctx, program, infos)
    batch, classes, count = scores.shape
    kept = program.alloc("kept", scores.shape, I64)
    number = program.alloc("number", (batch, classes), I64)
    (result,) = _bounded(ctx, infos, attrs).results
    out = program.alloc("out", known_shape(ctx, result, 0), I64)
    state = {name: ir.Buffer(name, I64, (ONE,)) for name in ("rank", "other", "free")}
    allocated: list[ir.Buffer] = list(state.values())

    def get(name: str) -> ir.Expr:
        return ir.load(state[name], ZERO)

    def put(name: str, value: ir.Expr) -> ir.Stmt:
        return ir.BufferStore(state[name], value, (ZERO,))

    def checked(value: ir.Expr) -> ir.Expr:
        return ir.call("checked_index", value, count)

    def select(b: ir.Expr, c: ir.Expr) -> ir.Stmt:
        """Visit the boxes of a class from the best score on; keep those far from all kept ones."""

        def score(p: ir.Expr) -> ir.Expr:
            return scores[b, c, checked(p)]

        line = sorted_line(count, lambda p, q: precedes(score(p), score(q), descending=True))
        allocated.extend(line.buffers)
        box, kept_before = ir.Var("box", I64), number[b, c]
        here = _Box(boxes, (b, checked(box)), attrs["centred"])
        there = _Box(boxes, (b, checked(kept[b, c, checked(get("other"))])), attrs["centred"])
        search = ir.While(
            ir.logical_and(
                ir.compare(ir.LT, get("other"), kept_before), ir.compare(ir.EQ, get("free"), ONE)
            ),
            ir.seq(
                [
                    ir.IfThenElse(_too_close(here, there, overlap[()]), put("free", ZERO)),
                    put("other", ir.add(get("other"), ONE)),
                ]
            ),
        )
        keep = ir.seq(
            [
                ir.BufferStore(kept.buffer, box, (b, c, checked(kept_before))),
                ir.BufferStore(number.buffer, ir.add(kept_before, ONE), (b, c)),
            ]
        )
        visit = ir.seq(
            [
                put("other", ZERO),
                put("free", ONE),
                search,
                ir.IfThenElse(ir.compare(ir.EQ, get("free"), ONE), keep),
            ]
        )
        wanted = ir.logical_or(
            ir.compare(ir.GT, score(box), least[()]), ir.call("isnan", least[()])
        )
        position = line.position(checked(get("rank")))
        each = ir.seq(
            [
                ir.LetStmt(box, position, ir.IfThenElse(wanted, visit)),
                put("rank", ir.add(get("rank"), ONE)),
            ]
        )
        more = ir.logical_and(
            ir.compare(ir.LT, get("rank"), count),
            ir.compare(ir.LT, kept_before, ir.cast_to(limit[()], I64)),
        )
        start = [ir.BufferStore(number.buffer, ZERO, (b, c)), put("rank", ZERO)]
        return ir.seq([line.body, *start, ir.While(more, each)])

    program.block("select", (batch, classes), select, allocated=allocated)

    def store(place: ir.Expr, index: tuple[ir.Var, ...]) -> list[ir.Stmt]:
        row = [*index[:2], kept[index]]
        return [ir.BufferStore(out.buffer, v, (place, as_dim(k))) for k, v in enumerate(row)]

    def was_kept(b: ir.Expr, c: ir.Expr, k: ir.Expr) -> ir.Expr:
        return ir.compare(ir.LT, k, number[b, c])

    size = collected(program, scores.shape, was_kept, store)
    return program.finish([out, size])


def _suppressed(
    boxes: Array, scores: Array, limit: Array, overlap: Array, least: Array, centred: bool = False
) -> Array:
    """The definition: all pairs of boxes, then one class after the other."""
    found: list[tuple[int, int, int]] = []
    for b, c in np.ndindex(scores.shape[:2]):
        first, second = boxes[b, :, :2], boxes[b, :, 2:]
        if centred:
            low, high = first - second / 2, first + second / 2
        else:
            low, high = np.minimum(first, second), np.maximum(first, second)
        sides = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
        common = np.where((sides > 0).all(-1), sides[..., 0] * sides[..., 1], 0)
        area = np.prod(high - low, -1)
        close = np.zeros(common.shape, bool)
        some = common > 0
        union = area[:, None] + area - common
        close[some] = common[some] / union[some] > overlap
        chosen: list[int] = []
        for box in np.argsort(-scores[b, c], kind="stable").tolist():
            wanted = np.isnan(least) or scores[b, c, box] > least
            if wanted and len(chosen) < limit and not close[box, chosen].any():
                chosen.append(box)
        found += [(b, c, box) for box in chosen]
    return np.asarray(found, np.int64).reshape(-1, 3)


def _scalar(value: float, dtype: str = "float32") -> Maker:
    return values(value, dtype=dtype, shape=())


def _case(batch: int, classes: int, count: int, limit: int, least: float, **attrs: Any) -> Sample:
    boxes, scores = floats(batch, count, 4, low=0), floats(batch, classes, count, low=0, high=1)
    return Sample(
        (boxes, scores, _scalar(limit, "int64"), _scalar(0.3), _scalar(least)), dict(attrs)
    )


_NAN = float("nan")

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "vision.non_max_suppression",
        _NAMES,
        _deduce,
        _lower,
        _suppressed,
        {"centred": False},
        onnx=("NonMaxSuppression",),
        samples=(
            _case(1, 1, 20, 20, _NAN),
            _case(2, 3, 17, 4, 0.4),
            _case(2, 2, 9, 9, 0.1, centred=True),
            _case(1, 2, 5, 0, 0.0),
            _case(1, 1, 0, 3, _NAN),
        ),
        doc="For each class, boxes in order of their scores, without those that overlap a box "
        "before them by more than `overlap` (area in common over area of both): at most `limit` "
        "with scores above `least` (all if it is NaN). Rows (image, class, box).",
        bounded=_bounded,
    ),
)
