"""Plans of the attention strategy: register tiles, tasks and partial sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from blockwright.ir import DType
from blockwright.strategies.cpu.attention_cost import slice_of_head, slices_of_head
from blockwright.strategies.cpu.attention_nest import AttentionNest
from blockwright.strategies.cpu.lanes_plan import LanesPlan, lanes_plan
from blockwright.strategies.cpu.micro_kernel import (
    MicroKernel,
    micro_kernel,
    named_kernel,
    slots_per_group,
)
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    min_width,
    register_tiles,
    whole_row,
)
from blockwright.strategies.cpu.split_k import WHOLE, Pieces
from blockwright.strategies.cpu.spread_plan import SpreadPlan, spread_plan
from blockwright.strategies.ranking import misfit
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_EVEN = 0.9  # share of the threads' time that must be busy for the tasks to suffice
_TILES_OF_TASK = 4  # row tiles per task from which packing K pays
ROWS_OF_TASK = 128  # rows per task for which packing each kv block pays
_TILES = 6  # score tiles that are considered for each slice of the head
_TYPICAL = 128  # rows or keys assumed if their number is unknown


class AttentionShape(msgspec.Struct, frozen=True):
    """Sizes of an attention program; None where symbolic.

    Attributes:
        heads: product of the batch axes that are known.
        rows, most_rows: number of query rows, and an upper bound on it.
        keys: number of keys, or of keys per kv block.
        head: elements of a row of values.
        row_bytes: distance of the query rows in memory.
        in_blocks: whether the keys are processed in kv blocks.
        types: of query and key elements as they are multiplied, and of scores.
        bits_of_result: of an element of the product.
    """

    heads: int
    rows: int | None
    most_rows: int | None
    keys: int | None
    head: int
    row_bytes: int
    in_blocks: bool
    types: tuple[DType, DType, DType]
    bits_of_result: int

    @property
    def bits(self) -> int:
        """Bits of a score."""
        return self.types[2].bits


class HeadSlice(msgspec.Struct, frozen=True):
    """Columns of the head whose results stay in registers across the keys.

    Attributes:
        columns: of a slice; a head with more columns has several slices.
        lanes: of a vector of results.
        multiple: the head is padded with zeros to a multiple of this many columns.
    """

    columns: int
    lanes: int
    multiple: int


class AttentionPlan(Plan, frozen=True):
    """The decisions for an attention program.

    Attributes:
        dot: the dot-product instruction of the scores; "" to widen queries and keys.
        tile: the register tile of the scores. Its rows are also those of a tile of the result.
        head: the slices of the head.
        tasks_per_head: tasks that share the query rows of a head; each packs K for itself.
        score_sums, product_sums: how sums over elements of a head, and over keys, are split into
            partial sums.
        peel_tails: whether incomplete vectors and tiles at the end of the keys and of the head
            have code of their own, so that the others are not masked.
        lanes: vectors of the row statistics, and of values that are packed.
        producers: tasks and vectors of the blocks that compute queries, keys and values.
    """

    dot: str
    tile: RegisterTile
    head: HeadSlice
    tasks_per_head: int
    score_sums: Pieces
    product_sums: Pieces
    peel_tails: bool
    lanes: LanesPlan
    producers: SpreadPlan


def score_kernel(target: Target, shape: AttentionShape, dot: str) -> MicroKernel:
    """The micro-kernel of the scores that issues `dot`."""
    if dot:
        return named_kernel(target, *shape.types, dot)
    return MicroKernel("", 1, *[shape.types[2]] * 3)


def _dots(target: Target, shape: AttentionShape) -> list[str]:
    """Values of `AttentionPlan.dot` for these types."""
    kernel = micro_kernel(target, *shape.types)
    return ["", kernel.dot] if kernel is not None and kernel.dot else [""]


def best_plan(target: Target, shape: AttentionShape) -> AttentionPlan:
    """The plan that the cost model prefers."""
    return min(
        (_best_with(target, shape, dot) for dot in _dots(target, shape)),
        key=lambda plan: predicted_seconds(target, shape, plan),
    )


def _best_with(target: Target, shape: AttentionShape, dot: str) -> AttentionPlan:
    held = slice_of_head(target, shape.head)
    tile = choose_register_tile(
        target, shape.rows, shape.keys, shape.bits, shape.row_bytes, _most_rows(shape, held)
    )
    return AttentionPlan(
        dot=dot,
        tile=tile,
        head=_slice(target, shape, held),
        tasks_per_head=_tasks_per_head(target, shape, tile.rows),
        score_sums=Pieces(),
        product_sums=WHOLE if shape.in_blocks else Pieces(unknown=True),
        peel_tails=not target.cheap_predication,
        lanes=lanes_plan(target),
        producers=spread_plan(target),
    )


def other_plans(
    target: Target, shape: AttentionShape, best: AttentionPlan
) -> Iterator[AttentionPlan]:
    """Plans with other tiles, slices and tasks, in the order of `predicted_seconds`."""
    result: dict[AttentionPlan, None] = {}
    for held in slices_of_head(target, shape.head):
        tiles = register_tiles(
            target, shape.rows, shape.keys, shape.bits, shape.row_bytes, _most_rows(shape, held)
        )
        for tile in tiles[:_TILES]:
            for tasks in _task_counts(target, shape, tile.rows):
                plan = msgspec.structs.replace(
                    best, tile=tile, head=_slice(target, shape, held), tasks_per_head=tasks
                )
                for dot in _dots(target, shape):
                    result[msgspec.structs.replace(plan, dot=dot)] = None
    for plan in [best, *result]:
        result[msgspec.structs.replace(plan, peel_tails=not plan.peel_tails)] = None
    result.pop(best, None)
    yield from sorted(result, key=lambda plan: predicted_seconds(target, shape, plan))


def predicted_seconds(
    target: Target, shape: AttentionShape, plan: AttentionPlan, blocks: int = 1, key: int = 0
) -> float:
    """Seconds that the cost model predicts for a plan, without a causal mask.

    Plans that peel tails come after equal ones that do not if the target masks at no cost.

    Args:
        blocks: number of kv blocks; key: elements of a row of keys, by default those of values.
    """
    rows, kernel = shape.rows or _TYPICAL, score_kernel(target, shape, plan.dot)
    nest = AttentionNest(
        heads=shape.heads,
        rows=rows,
        keys=shape.keys or _TYPICAL,
        blocks=blocks,
        key=key or shape.head,
        value=shape.head,
        group=kernel.group,
        slots=slots_per_group(target, kernel),
        size=shape.bits // 8,
        tile=plan.tile,
        columns=plan.head.columns,
        tasks=plan.tasks_per_head,
    )
    masks = plan.peel_tails == target.cheap_predication
    return nest.estimate(target).seconds * (1 + masks / rows)


def refuse_unless_fits(target: Target, plan: AttentionPlan, shape: AttentionShape) -> None:
    """Check a plan against the sizes of a program.

    Raises: ScheduleError BW342: the plan does not fit the program.
    """
    most = None if shape.most_rows is None else max(1, shape.most_rows - 1)
    numbers = (*msgspec.structs.astuple(plan.tile), *msgspec.structs.astuple(plan.head))
    if min(*numbers, plan.tasks_per_head, plan.lanes.vector_bits // 32) < 1:
        raise misfit("a size is less than one", "give positive sizes")
    if most is not None and plan.tile.rows > most:
        raise misfit(
            f"tile.rows={plan.tile.rows} covers all of the at most {shape.most_rows} rows",
            f"use at most {most} rows",
        )
    dots = _dots(target, shape)
    if plan.dot not in dots:
        raise misfit(
            f"dot={plan.dot!r} does not multiply {shape.types[0].name} by {shape.types[1].name} "
            f"on {target.name}",
            "use " + " or ".join(f"dot={dot!r}" for dot in dots),
        )
    if plan.head.columns % plan.head.lanes:
        raise misfit(
            f"head.lanes={plan.head.lanes} does not divide head.columns={plan.head.columns}",
            "use a divisor",
        )
    if shape.rows is not None and plan.tasks_per_head > shape.rows:
        raise misfit(
            f"tasks_per_head={plan.tasks_per_head} for {shape.rows} rows",
            "give each task a row at least",
        )
    if shape.in_blocks and plan.product_sums != WHOLE:
        raise misfit("product_sums splits the sums of a kv block", "use Pieces that split nothing")


def _most_rows(shape: AttentionShape, held: RegisterTile) -> int:
    """Most rows of a tile: a tile that covers all rows would have their number as height."""
    if shape.most_rows is None:
        return held.rows
    return min(held.rows, max(1, shape.most_rows - 1))


def _slice(target: Target, shape: AttentionShape, held: RegisterTile) -> HeadSlice:
    return HeadSlice(
        held.columns,
        whole_row(target, held.columns),
        min_width(target, shape.head, shape.bits_of_result),
    )


def _tasks_per_head(target: Target, shape: AttentionShape, tile_rows: int) -> int:
    """Number of tasks per head that keeps all threads busy.

    Each task packs K for itself, which pays from a few row tiles on. With kv blocks, the partial
    results of all rows of a task are kept, so tasks have no more rows than necessary.
    """
    counts = _task_range(target, shape, tile_rows)
    for tasks in counts:
        if _busy(shape.heads * tasks, target) >= _EVEN:
            return tasks
    return counts[-1]


def _task_range(target: Target, shape: AttentionShape, tile_rows: int) -> range:
    smallest, largest = 1, target.num_threads
    if shape.rows is not None:
        worth = shape.rows // (tile_rows * _TILES_OF_TASK)
        if shape.in_blocks:
            smallest, largest = shape.rows // ROWS_OF_TASK, worth
        else:
            largest = min(worth, largest)
    largest = max(1, largest)
    return range(min(max(1, smallest), largest), largest + 1)


def _task_counts(target: Target, shape: AttentionShape, tile_rows: int) -> Iterable[int]:
    """Numbers of tasks per head to consider: powers of two times the fewest, and the choice."""
    counts = _task_range(target, shape, tile_rows)
    doubled = [n for k in range(8) if (n := counts.start << k) in counts]
    return dict.fromkeys([_tasks_per_head(target, shape, tile_rows), *doubled])


def _busy(tasks: int, target: Target) -> float:
    """Share of the threads' time that is busy with `tasks` tasks of equal size."""
    return tasks / (math.ceil(tasks / target.num_threads) * target.num_threads)
