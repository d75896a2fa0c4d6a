"""Software pipelines requested by TVM's annotations:

- `software_pipeline_stage` and `software_pipeline_order` on a loop: a list of numbers each;
- `double_buffer_scope` on a block: the position of a write region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.ir.annotations import DOUBLE_BUFFER, PIPELINE_ORDER, PIPELINE_STAGE
from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.state import StepState, Target
from blockwright.schedule.rewrite.move import body_parts, part_positions
from blockwright.schedule.rewrite.pipeline import pipelined
from blockwright.schedule.rewrite.pipeline_stages import PipelinePlan, doubled_buffer, plan


def prefetch_plan(state: StepState, block: ir.Block, buffer: ir.Buffer) -> PipelinePlan:
    """The pipeline plan in which `block` fills `buffer` one iteration ahead of its use."""
    state.realize(block)
    flow = state.flow_at(block)
    users = [*flow.writers.get(buffer, ()), *flow.readers.get(buffer, ())]
    for loop in reversed(state.tree.loops_above(block)):
        parts = body_parts(loop)
        here = part_positions(state, parts, [block])[0]
        early = _needed(state, parts, here)
        others = set(part_positions(state, parts, users))
        if others - early:
            return plan(state, loop, [int(k not in early) for k in range(len(parts))], None)
        if others - {here}:
            break
    return state.fail(
        f"no statement after block {block.name} in a loop around it uses {buffer.name}",
        code="BW322",
        guilty=[state.tree.realize(block)],
        help="move producer and consumer into one loop with compute_at",
    )


def _needed(state: StepState, parts: list[ir.Stmt], start: int) -> set[int]:
    """A statement and its transitive producers among the statements before it."""
    result, work = {start}, [start]
    while work:
        here = work.pop()
        blocks = state.tree.child_blocks(parts[here])
        read = {r.buffer for b in blocks for r in (*b.reads, *b.writes)}
        for earlier in range(here):
            created = {r.buffer for b in state.tree.child_blocks(parts[earlier]) for r in b.writes}
            if earlier not in result and created & read:
                result.add(earlier)
                work.append(earlier)
    return result


# ------------------------------------------------------------------------------------ annotations
def asked_plan(state: StepState, loop: ir.For, notes: Mapping[str, Any]) -> PipelinePlan:
    """The checked pipeline plan that the annotations of a loop request."""
    for key in (PIPELINE_STAGE, PIPELINE_ORDER):
        if key not in notes:
            state.fail(
                f"loop {loop.loop_var.name} is annotated as a pipeline without {key!r}",
                code="BW304",
                guilty=[loop],
                help="annotate both, or use software_pipeline",
            )
    return plan(
        state,
        loop,
        *(_numbers(state, loop, key, notes[key]) for key in (PIPELINE_STAGE, PIPELINE_ORDER)),
    )


def _numbers(state: StepState, loop: ir.For, key: str, value: Any) -> list[int]:
    given = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    result: list[Any] = [x.value if isinstance(x, ir.IntImm) else x for x in given]
    if not result or any(not isinstance(x, int) or isinstance(x, bool) for x in result):
        state.fail(
            f"{key!r} of loop {loop.loop_var.name} is {value!r}",
            code="BW304",
            guilty=[loop],
            help="pass a list of integers",
        )
    return result


def with_pipelines(func: ir.PrimFunc) -> ir.PrimFunc:
    """Apply the pipelines and double buffers that the function's annotations request.

    Inner loops are pipelined first. Raises `ScheduleError` as `software_pipeline` does.
    """
    if not isinstance(func.body, ir.BlockRealize):
        return func
    while True:
        state = StepState(func, _no_handles, "software_pipeline")
        loops = [
            f
            for f in state.tree.loops.values()
            if {PIPELINE_STAGE, PIPELINE_ORDER} & f.annotations.keys()
        ]
        if loops:
            loop = max(loops, key=lambda f: state.tree.order[f])
            func = pipelined(state, asked_plan(state, loop, loop.annotations)).func
            continue
        blocks = [b for b in state.tree.blocks if DOUBLE_BUFFER in b.annotations]
        if not blocks:
            return func
        state.step_name = "double_buffer"
        block = blocks[-1]
        func = pipelined(state, prefetch_plan(state, block, doubled_buffer(state, block))).func


def _no_handles(handle: Handle) -> Target:
    raise KeyError(handle)
