"""bind: bind a loop to a GPU thread axis."""

from __future__ import annotations

import difflib
from typing import ClassVar

from blockwright import ir
from blockwright.analysis.kernels import AXES, VIRTUAL_AXES, axis_of, kernel_at, kernels, shares
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import (
    refuse_in_kernel,
    require_compact_flow,
    require_members,
    require_plain_loop,
    require_zero_start,
)
from blockwright.schedule.legality.cross_thread import driven_terms, require_combining


class Bind(Primitive, frozen=True, eq=False):
    """Bind a loop to a thread axis: its iterations run on the threads or blocks along the axis.

    Args:
        loop: the loop.
        thread_axis: blockIdx.x, .y or .z, threadIdx.x, .y or .z, or vthread.x, .y or .z.

    Requires:
    - the axis exists (BW304); the loop is serial, has no annotations and starts at 0 (BW312). A
      loop that is already bound can be rebound to another axis if no loop inside or around it is
      bound to its current axis (BW381), and no buffer that is private to the members of that axis
      is allocated outside it (BW312);
    - no loop inside is parallel: a kernel has no threads other than those of its axes (BW312);
    - other loops of the same kernel bound to this axis have the same extent (BW380);
    - all statements below the loop are in blocks that are complete, reductions, updates, or consist
      of atomic updates only, with one operation per buffer and unused results (BW314);
    - the loop drives no reduction iterator (BW317), unless the update is atomic. On a threadIdx
      axis it may also drive a reduction (or its update): the reducer is commutative, the loop
      drives reduction iterators only, and the results are in "global" or "shared" memory. Then the
      threads combine their partial results, and floating-point sums are rounded in another order;
    - iterations write different elements (BW317), or buffers in a scope that is private to each
      member of the axis ("local" for threads, "shared" for blocks), or conflict in atomic updates
      only;
    - no iteration reads what another iteration writes (BW316);
    - if nested loops are bound to the same axis, the blocks in the inner loop do not depend on the
      outer loop, and write only buffers that the members of the axis share (BW381).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i, j in T.grid(4, 32):
                with T.block("B"):
                    vi = T.axis.spatial(128, i * 32 + j)
                    B[vi] = A[vi] + 1.0

    Steps::

        i, j = sch.get_loops(sch.get_block("B"))
        sch.bind(i, "blockIdx.x")
        sch.bind(j, "threadIdx.x")

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in T.thread_binding(4, thread="blockIdx.x"):
                for j in T.thread_binding(32, thread="threadIdx.x"):
                    with T.block("B"):
                        vi = T.axis.spatial(128, i * 32 + j)
                        B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "bind"

    loop: LoopRV
    thread_axis: str

    def apply(self, state: StepState) -> StepResult:
        loop, tag = state.loop(self.loop), self.thread_axis
        changed: dict[ir.Block, ir.Block] = {}
        if loop.kind is ir.ForKind.THREAD_BINDING and loop.thread is not None and tag in AXES:
            state, loop, changed = _unbound(state, loop, loop.thread.thread_tag)
        if tag not in AXES:
            close = difflib.get_close_matches(tag, AXES, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            state.fail(
                f"there is no thread axis {tag!r}",
                code="BW304",
                guilty=[loop],
                help=f"{hint}axes: {', '.join(AXES)}",
            )
        require_plain_loop(state, loop)
        require_zero_start(state, loop)
        for inner in ir.loops(loop.body):
            if inner.kind is ir.ForKind.PARALLEL:
                refuse_in_kernel(state, inner, loop, tag)
        outer = _same_axis_above(state, loop, tag)
        for inner in _same_axis_below(loop, tag):
            _require_shared_work(state, inner, loop, tag)
        if outer is None:
            require_members(state, loop, tag)
        else:
            _require_shared_work(state, loop, outer, tag)
        domain = loop.dom
        thread = ir.IterVar(ir.Var(tag, loop.loop_var.type), domain, thread_tag=tag)
        bound = loop.replace(kind=ir.ForKind.THREAD_BINDING, thread=thread)
        edit = Edit(state)
        edit.forward.update(changed)
        edit.replace(loop, bound)
        step = edit.finish()
        _require_one_extent(state, step.func, loop, tag)
        return step


def _unbound(
    state: StepState, loop: ir.For, tag: str
) -> tuple[StepState, ir.For, dict[ir.Block, ir.Block]]:
    """Make a bound loop serial; return the new state, the loop in it, and the replaced blocks."""
    others = _same_axis_below(loop, tag)
    above = _same_axis_above(state, loop, tag)
    if others or above is not None:
        state.fail(
            f"loop {loop.loop_var.name} is bound to {tag}, and so is a loop inside or around it: "
            "the members of the axis share that work, and would not on another axis",
            code="BW381",
            guilty=[loop, *others, *([] if above is None else [above])],
            help="bind the loop to the desired axis from the start",
        )
    for block in state.tree.child_blocks(loop):
        for region in (*block.reads, *block.writes):
            buffer = region.buffer
            if not shares(buffer.scope, tag) and _outlives(state, buffer, loop):
                state.fail(
                    f"each member of {tag} has a private copy of {buffer.name}, in "
                    f"{buffer.scope!r}, allocated outside loop {loop.loop_var.name}: "
                    "another axis would have different copies",
                    code="BW312",
                    guilty=[loop, state.tree.realize(block)],
                    help=f"bind the loop before set_scope makes each copy of {buffer.name} private",
                )
    serial = loop.replace(kind=ir.ForKind.SERIAL, thread=None)
    edit = Edit(state)
    edit.replace(loop, serial)
    step = edit.finish()
    after = state.following(step.func)
    return after, after.tree.loops[loop.loop_var], step.forward


def _outlives(state: StepState, buffer: ir.Buffer, loop: ir.For) -> bool:
    """Whether a buffer that blocks in a loop use is allocated outside the loop."""
    inside = {b for block in ir.blocks(loop.body) for b in block.alloc_buffers}
    inside |= {node.buffer for node in ir.collect(loop.body, ir.Allocate)}
    return buffer not in inside


def _same_axis_above(state: StepState, loop: ir.For, tag: str) -> ir.For | None:
    """Return a loop around this one that is bound to the same axis; virtual threads may nest."""
    if tag in VIRTUAL_AXES:
        return None
    for above in state.tree.ancestors(loop):
        if (
            isinstance(above, ir.For)
            and above.thread is not None
            and (above.thread.thread_tag == tag)
        ):
            return above
    return None


def _same_axis_below(loop: ir.For, tag: str) -> list[ir.For]:
    """Return the loops inside this one that are bound to the same axis."""
    if tag in VIRTUAL_AXES:
        return []
    return [f for f in ir.loops(loop.body) if f.thread is not None and f.thread.thread_tag == tag]


def _require_shared_work(state: StepState, loop: ir.For, outer: ir.For, tag: str) -> None:
    """Require that binding an inner loop to the axis of an outer loop preserves its results.

    Before, each member of the axis ran all iterations of the inner loop. After, each member runs
    one of them, and all members read the results.
    """
    for block in require_compact_flow(state, loop):
        realize = state.tree.realize(block)
        values = [*realize.iter_values, realize.predicate]
        if _depends(state, block, values, outer.loop_var):
            names = f"loop {outer.loop_var.name} and is in loop {loop.loop_var.name}"
            state.fail(
                f"block {block.name} depends on {names}: with both on {tag}, a member of "
                "the axis cannot run the iterations of another",
                code="BW381",
                guilty=[loop, outer, realize],
                help=f"bind loop {loop.loop_var.name} or {outer.loop_var.name} to an axis "
                f"other than {tag}",
            )
        for region in block.writes:
            if not shares(region.buffer.scope, tag):
                state.fail(
                    f"block {block.name} writes {region.buffer.name} in scope "
                    f"{region.buffer.scope!r}, which is private to each member of {tag}, "
                    f"in loop {loop.loop_var.name} inside loop {outer.loop_var.name}",
                    code="BW381",
                    guilty=[loop, outer, realize],
                    help=f'set_scope("{block.name}", "{region.buffer.name}", "shared"), or '
                    f"leave loop {loop.loop_var.name} serial",
                )
    for block in state.tree.child_blocks(loop):
        if driven_terms(state, loop, block) is not None:
            require_combining(
                state,
                loop,
                block,
                f"bound to {tag}",
                tag,
                lambda: (
                    f"rfactor({loop.loop_var.name}, 0) and bind the loop of the partial results, "
                    "or bind a loop that drives spatial iterators only"
                ),
            )


def _depends(state: StepState, block: ir.Block, values: list[ir.Expr], var: ir.Var) -> bool:
    """Whether a block depends on a loop variable, directly or through enclosing blocks."""
    wanted: set[ir.Var] = {var}
    above = [s for s in state.tree.ancestors(block) if isinstance(s, ir.BlockRealize)]
    for realize in reversed(above[1:]):
        for it, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if ir.uses_var(value, wanted):
                wanted.add(it.var)
    return any(ir.uses_var(value, wanted) for value in values)


def _require_one_extent(state: StepState, func: ir.PrimFunc, loop: ir.For, tag: str) -> None:
    """Require that all loops of the kernel bound to one axis have the same extent."""
    if tag in VIRTUAL_AXES:
        return
    after = state.following(func)
    bound = after.tree.loops[loop.loop_var]
    others = [axis for axis in map(axis_of, after.tree.order) if axis and axis.tag == tag]
    if len(others) == 1:
        return  # only this loop
    kernel = kernel_at(kernels(func), after.tree, bound)
    assert kernel is not None
    analyzer = after.facts()
    for axis in kernel.axes[tag]:
        same = analyzer.prove_equal(ir.cast_to(axis.extent, loop.extent.dtype), loop.extent)
        if not same and axis.stmt is not bound:
            state.fail(
                f"loop {axis.var.name} of the same kernel is bound to {tag} with extent "
                f"{axis.extent!r}, loop {loop.loop_var.name} has {loop.extent!r}",
                code="BW380",
                guilty=[loop, state.tree.loops.get(axis.var, loop)],
                help=_to_one_extent(loop, axis.extent, tag),
            )


def _to_one_extent(loop: ir.For, wanted: ir.Expr, tag: str) -> str:
    """Suggest how to give a loop the extent of its axis."""
    name, size = loop.loop_var.name, expr_text(wanted)
    others = [a for a in AXES if a[:-1] == tag[:-1] and a != tag]
    have, want = ir.const_int(loop.extent), ir.const_int(wanted)
    elsewhere = f"or bind it to another axis, such as {others[0]}"
    if have is not None and want is not None and have % want:
        return (
            f"give both loops the same extent before binding: if one was split by {want}, "
            f"split loop {name} by {want} too, or fuse {name} with a loop around it and split "
            f"the result by {want}; {elsewhere}"
        )
    return f"split({name}, [None, {size}]) and bind the inner loop to {tag}, {elsewhere}"
