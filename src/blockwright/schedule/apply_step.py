"""Apply one schedule step and its common pre- and postconditions.

`compute_at` also accepts a sampled location that is not a loop: the block then stays at the root or
is inlined. After every step, block iterators are made independent again.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.remap_handles import used_handles
from blockwright.schedule.engine.state import SampledLocation, StepResult, StepState
from blockwright.schedule.legality.assertions import require_kept_assertions
from blockwright.schedule.legality.conditions import require_kept_conditions
from blockwright.schedule.legality.cross_thread import require_still_combining
from blockwright.schedule.legality.returns import require_kept_returns
from blockwright.schedule.legality.sorts import keep_sorts
from blockwright.schedule.primitive.compute_at import ComputeAt
from blockwright.schedule.primitive.compute_inline import ComputeInline
from blockwright.schedule.rewrite.independence import with_independent_iterators
from blockwright.support import IRError


def applied(record: Primitive, state: StepState) -> StepResult:
    """Apply a record; `compute_at` follows the result of `sample_compute_location`."""
    if isinstance(record, ComputeAt):
        place = state.place(record.loop)
        if place is SampledLocation.ROOT:
            return StepResult(state.func)
        if place is SampledLocation.INLINE:
            return ComputeInline(record.block).apply(state)
    if record.siblings:
        _require_in_bodies(state, record)
    try:
        step = with_independent_iterators(state, record.apply(state))
    except IRError as error:
        if error.code != "BW207":
            raise
        state.fail(
            f"an argument of the step needs wider indices: {error.message}",
            code="BW304",
            help="use smaller numbers, or index the program in int64",
        )
    if record.namespace == "unsafe":
        return step
    step = require_kept_conditions(state, require_still_combining(state, step))
    step = require_kept_assertions(state, require_kept_returns(state, step))
    return keep_sorts(state, step)


def _require_in_bodies(state: StepState, record: Primitive) -> None:
    """Require that the blocks and loops of a step are in block bodies, not in `init` statements.

    Blocks inside an initial value run only in the first reduction iteration, so they are neither
    producers nor consumers of blocks in the body.
    """
    for handle in used_handles(record):
        if not isinstance(handle, (BlockRV, LoopRV)):
            continue
        node = state.stmt(handle)
        owner = state.tree.initial_of(node)
        if owner is not None:
            name = node.name if isinstance(node, ir.Block) else node.loop_var.name
            word = "block" if isinstance(node, ir.Block) else "loop"
            state.fail(
                f"{word} {name} is in the initial value of block {owner.name}, which "
                "does not run in every iteration",
                code="BW310",
                guilty=[node],
                help=f'decompose_reduction("{owner.name}", loop) first, which makes the '
                "initial value a separate block",
            )
