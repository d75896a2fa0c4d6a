"""Plans of the strategy for GEMV and skinny GEMM."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright.strategies.cpu.register_tiling import (
    dot_tile,
    max_skinny_rows,
    steps_at_once,
    task_steps,
    update_stretch,
)
from blockwright.strategies.cpu.spread_plan import SpreadPlan, spread_plan
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_PIECE = 256  # steps of a long reduction per piece
_UNKNOWN_PIECE = 64  # the same, where the last piece of unknown length is padded
_SUMS = 6  # registers for the sums and what is decoded
LONGEST = 512
"""Steps of the longest reduction that is not split."""


class GemvShape(msgspec.Struct, frozen=True):
    """Sizes of a product; None where symbolic.

    Attributes:
        rows: of the smaller operand.
        many: rows of the matrix.
        depth: length of the reduction.
        bits: of a sum.
        matrix_bits: of an element of the matrix.
        dot: the dot product that multiplies the elements; "" if the target has none.
        group: elements that it adds to a lane.
        shared: adjacent columns that are computed from one element of packed data.
        decoded: operands from which the elements of the matrix are computed as they are read.
    """

    rows: int
    many: int | None
    depth: int | None
    bits: int
    matrix_bits: int
    dot: str = ""
    group: int = 1
    shared: int = 1
    decoded: int = 0


class Dots(msgspec.Struct, frozen=True, tag="dots"):
    """Decisions for a matrix that is contiguous along the reduction.

    Attributes:
        rows: of the smaller operand that are processed at a time.
        columns: rows of the matrix whose dot products with them are kept in registers.
        steps: such tiles per task.
    """

    rows: int
    columns: int
    steps: int


class Updates(msgspec.Struct, frozen=True, tag="updates"):
    """Decisions for a matrix whose columns are contiguous.

    Attributes:
        columns: per task.
        steps: reduction steps that are added to the sums in cache at a time.
        shared: distance of the columns in adjacent lanes of a vector.
        ahead: prefetch the rows that are read so many times `steps` later; 0: leave it to the
            hardware.
    """

    columns: int
    steps: int
    shared: int = 1
    ahead: int = 0


class GemvPlan(Plan, frozen=True):
    """The decisions for a matrix times a few rows.

    Attributes:
        form: those of the form that the matrix's layout demands.
        dot: the dot-product instruction of the form Dots; "" to widen both operands.
        piece: reduction steps per partial sum; 0: the reduction is not split.
        vector_bits: width of a vector.
        producers: tasks and vectors of the blocks that compute the smaller operand.
    """

    form: Dots | Updates
    dot: str
    piece: int
    vector_bits: int
    producers: SpreadPlan


def best_dots(target: Target, shape: GemvShape, unknown: bool) -> GemvPlan:
    """The plan that the cost model prefers; `unknown` splits sums of unknown length."""
    parts = math.ceil(shape.rows / max_skinny_rows(target, shape.bits))
    rows = math.ceil(shape.rows / parts)
    columns = dot_tile(target, rows, shape.many, shape.bits)
    row_bytes = (shape.depth or 1024) * shape.matrix_bits // 8
    steps = task_steps(shape.many, columns, row_bytes, target.num_threads)
    lanes = max(1, target.vector_bits // shape.bits)
    depth = None if shape.depth is None else math.ceil(shape.depth / lanes)
    plan = _plan(target, Dots(rows, columns, steps), "", depth, unknown)
    run = lanes * shape.group
    if not shape.dot or (shape.depth is not None and shape.depth < 2 * run):
        return plan
    groups = None if shape.depth is None else math.ceil(shape.depth / run)
    columns = _most_columns(target, rows, shape.many)
    steps = task_steps(shape.many, columns, row_bytes, target.num_threads)
    return msgspec.structs.replace(
        plan,
        form=Dots(rows, columns, steps),
        dot=shape.dot,
        piece=_equal(groups, plan.piece),
    )


def _most_columns(target: Target, rows: int, many: int | None) -> int:
    """Rows of the matrix that are multiplied at once by an instruction per vector.

    As many as fit the registers and waste little of the last tile: with several, the other operand
    is read less often, and the matrix is a stream of its own in each row.
    """
    fits = [n for n in range(1, 9) if n * rows + n + 1 <= target.vector_registers] or [1]
    filled = {n: 1.0 if many is None else many / (math.ceil(many / n) * n) for n in fits}
    return max(fits, key=lambda n: (round(filled[n], 1), n))


def _equal(steps: int | None, piece: int) -> int:
    """Steps of equal pieces: the last one is padded, so it should lack few of them."""
    if not piece:
        return 0
    return _UNKNOWN_PIECE if steps is None else math.ceil(steps / math.ceil(steps / piece))


def best_updates(target: Target, shape: GemvShape, unknown: bool) -> GemvPlan:
    """The plan that the cost model prefers; `unknown` splits sums of unknown length."""
    lanes = max(1, target.vector_bits // shape.bits)
    whole = shape.many is not None and shape.many % (lanes * shape.shared) == 0
    shared = shape.shared if whole else 1
    columns = _stretch(target, shape.rows, shape.many, shape.bits, shared)
    steps = steps_at_once(None)
    if shape.decoded:  # each step keeps a vector of each operand, and one of the other factor
        fits = (target.vector_registers - _SUMS) // (shape.decoded + 1)
        steps = min(steps, 1 << max(1, fits).bit_length() - 1)
    # The strips of a decoded matrix are a few lines long: too short for the hardware to prefetch.
    form = Updates(columns, steps, shared, int(shape.decoded > 0))
    return _plan(target, form, "", shape.depth, unknown)


def other_plans(shape: GemvShape, best: GemvPlan) -> Iterator[GemvPlan]:
    """Plans that differ from the best one in one decision."""
    change, form = msgspec.structs.replace, best.form
    if shape.dot and isinstance(form, Dots):
        yield change(best, dot="" if best.dot else shape.dot)
    if isinstance(form, Updates) and form.shared > 1:
        yield change(best, form=change(form, shared=1))
    if isinstance(form, Updates):
        yield change(best, form=change(form, ahead=1 - min(form.ahead, 1)))
    for name in ("columns", "steps") if isinstance(form, Updates) else form.__struct_fields__:
        now = getattr(form, name)
        for number in (now // 4, now // 2, now - 1, now + 1, now * 2, now * 4):
            if number > 0:
                yield change(best, form=change(form, **{name: number}))
    for piece in (0, 128, 256, 512):
        yield change(best, piece=piece)
    if best.vector_bits > 128:
        yield change(best, vector_bits=best.vector_bits // 2)


def _plan(
    target: Target, form: Dots | Updates, dot: str, depth: int | None, unknown: bool
) -> GemvPlan:
    split = unknown if depth is None else depth > LONGEST
    return GemvPlan(form, dot, _PIECE if split else 0, target.vector_bits, spread_plan(target))


def _stretch(target: Target, rows: int, many: int | None, bits: int, shared: int) -> int:
    """Columns per task: as many as leave half of the first-level cache to the data that is read.

    The hardware prefetches along a row and starts anew at each strip: the fewer strips, the better.
    """
    lanes = max(1, target.vector_bits // bits) * shared
    largest = max(1, target.cache(1).size // 2 // (rows * bits // 8) // lanes)
    if many is None:
        return update_stretch(target, rows, many, bits)
    vectors = math.ceil(many / lanes)
    tasks = math.ceil(vectors / largest)
    tasks = math.ceil(tasks / target.num_threads) * target.num_threads
    return lanes * math.ceil(vectors / tasks)
