"""decompose_reduction: split a reduction into an init block and an update block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockKind
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_once
from blockwright.schedule.legality.initial_order import require_initial_first
from blockwright.schedule.legality.remedies import parted
from blockwright.schedule.legality.try_remedies import called, calls, legal
from blockwright.schedule.rewrite.copy_nest import fresh_name


class DecomposeReduction(Primitive, frozen=True, eq=False):
    """Move the initial value of a reduction into a new block before a loop.

    Args:
        block: a reduction with an `init`.
        loop: a loop above it, before which the initial value is set.

    Requires:
    - the block has an initial value and is a reduction; the loop is above it (BW331, BW310);
    - no loop outside `loop` drives a reduction iterator, and no loop from it inwards drives both
      spatial and reduction iterators (BW331, BW364);
    - each instance runs once (BW315);
    - there are only loops between the loop and the block (BW351); their extents, and the conditions
      of the predicate, do not mix spatial loops with reduction loops (BW350, BW364);
    - no block in `loop` reads elements of the result before the iteration that sets their initial
      value, or writes elements that the initial value of a later iteration reads (BW323).

    The loops around the new block are serial copies without annotations. A reduction without
    iterations still results in the initial value.

    Returns: the init block. The given block keeps its handle and becomes the update.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i, k in T.grid(16, 64):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]

    Steps::

        b = sch.get_block("B")
        i, k = sch.get_loops(b)
        sch.decompose_reduction(b, k)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B_init"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = T.float32(0)
                for k in range(64):
                    with T.block("B"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        B[vi] = B[vi] + A[vi, vk]
    """

    method: ClassVar[str] = "decompose_reduction"
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        block, loop = state.block(self.block), state.loop(self.loop)
        if block.init is None:
            state.fail(
                f"{block.name} has no initial value",
                code="BW331",
                guilty=[block],
                help="choose a block with T.init(); an update that an earlier "
                "decompose_reduction produced needs no further step",
            )
        loops = state.tree.loops_above(block)
        if all(above is not loop for above in loops):
            state.fail(
                f"loop {loop.loop_var.name} is not above {block.name}",
                code="BW310",
                guilty=[loop, block],
                help=f'choose one of get_loops("{block.name}"): {state.loops_of(block)}',
            )
        position = next(k for k, above in enumerate(loops) if above is loop)
        outside, inside = loops[:position], loops[position:]
        reducing = reduction_loops(state, block, loops)
        for above in outside:
            if above in reducing:
                state.fail(
                    f"loop {above.loop_var.name} outside {loop.loop_var.name} binds a "
                    "reduction iterator",
                    code="BW331",
                    guilty=[above, block],
                    help=_further_out(state, block, loop, above),
                )
        require_once(state, block, inside, f"from {loop.loop_var.name} on")
        require_reduction(state, block)
        _require_straight(state, block, loop)
        _require_separate(state, block, inside, reducing)
        require_initial_first(state, block, loop, reducing)
        nest, result = self._init_nest(state, block, [n for n in inside if n not in reducing])
        edit = Edit(state)
        update = with_signature(block.replace(init=None), state.signature_facts(block))
        edit.replace_block(block, update)
        edit.insert_before(loop, nest)
        edit.refresh_signatures()
        return edit.finish(result)

    def _init_nest(
        self, state: StepState, block: ir.Block, loops: list[ir.For]
    ) -> tuple[ir.Stmt, ir.Block]:
        """Build the init block over the spatial iterators, in copies of their loops."""
        assert block.init is not None
        realize = state.realize(block)
        renamed: dict[ir.Var, ir.Var] = {
            n.loop_var: ir.Var(f"{n.loop_var.name}_init", n.loop_var.type) for n in loops
        }
        iters: list[ir.IterVar] = []
        values: list[ir.Expr] = []
        fresh: dict[ir.Var, ir.Expr] = {}
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if it.iter_type is ir.IterType.REDUCE:
                fresh[it.var] = it.dom.min  # the init runs at the first reduction step
                continue
            fresh[it.var] = var = ir.Var(it.var.name, it.var.type)
            iters.append(it.replace(var=var))
            values.append(ir.substitute(value, renamed))
        kept = [
            ir.substitute(c, renamed)
            for c in ir.conditions(realize.predicate)
            if not _mentions(c, reduction_loops(state, block, state.tree.loops_above(block)))
        ]
        name = fresh_name(state, f"{block.name}_init")
        result = ir.Block(name, tuple(iters), (), (), ir.substitute(block.init, fresh))
        result = with_signature(result, state.signature_facts(block))
        nest: ir.Stmt = ir.BlockRealize(tuple(values), ir.all_of(kept), result)
        for above in reversed(loops):
            low, extent = (ir.substitute(e, renamed) for e in (above.min, above.extent))
            nest = ir.For(renamed[above.loop_var], low, extent, ir.ForKind.SERIAL, nest)
        return nest, result


def _further_out(state: StepState, block: ir.Block, loop: ir.For, above: ir.For) -> str:
    """Suggest a legal loop instead of one inside a reduction loop."""
    at = f'decompose_reduction("{block.name}", {called(state, above)})'
    ways = legal(state, [at])
    around = state.tree.loops_above(block)
    order = calls(state, [loop, *around[around.index(above) : around.index(loop)]])
    inside = f'reorder({order}), then decompose_reduction("{block.name}", {called(state, loop)})'
    ways += legal(state, [inside])
    return "; or ".join(ways) or f"choose a loop around {above.loop_var.name}"


def _mentions(expr: ir.Expr, loops: list[ir.For]) -> bool:
    return ir.uses_var(expr, {n.loop_var for n in loops})


def reduction_loops(state: StepState, block: ir.Block, loops: list[ir.For]) -> list[ir.For]:
    """Return the loops that drive reduction iterators; fails if one also drives spatial ones."""
    realize = state.realize(block)
    reducing: list[ir.For] = []
    for loop in loops:
        kinds = {
            it.iter_type is ir.IterType.REDUCE
            for it, value in zip(block.iter_vars, realize.iter_values, strict=True)
            if ir.uses_var(value, loop.loop_var)
        }
        if kinds == {True, False}:
            state.fail(
                f"loop {loop.loop_var.name} binds spatial and reduction iterators",
                code="BW364",
                guilty=[loop, block],
                help=parted(state, block, loop),
            )
        if kinds == {True}:
            reducing.append(loop)
    return reducing


def require_reduction(state: StepState, block: ir.Block) -> None:
    """Require that the block is a reduction in its scope."""
    flow = state.flow_at(block)
    if flow.kind(block) is not BlockKind.REDUCTION:
        why = flow.why_other(block) or "it has no reduction iterator or no initial value"
        state.fail(
            f"block {block.name} is not a reduction: {why}",
            code="BW331",
            guilty=[state.realize(block)],
            help="apply the step to a block with T.init() and reduction iterators",
        )


def _require_straight(state: StepState, block: ir.Block, loop: ir.For) -> None:
    """Require that only loops are between the loop and the block: no control flow."""
    for node in state.tree.deciding(state.realize(block), loop):
        state.fail(
            f"a statement between loop {loop.loop_var.name} and block {block.name} "
            "decides what runs",
            code="BW351",
            guilty=[node],
            help="choose a loop inside that statement",
        )


def _require_separate(
    state: StepState, block: ir.Block, inside: list[ir.For], reducing: list[ir.For]
) -> None:
    """Require that spatial loops and their conditions do not depend on reduction loops."""
    gone = {n.loop_var for n in inside if n in reducing}
    kept = {n.loop_var for n in state.tree.loops_above(block)} - gone
    for loop in inside:
        spatial = loop.loop_var in kept
        if spatial and any(ir.uses_var(e, gone) for e in (loop.min, loop.extent)):
            state.fail(
                f"the extent of loop {loop.loop_var.name} depends on a reduction loop",
                code="BW350",
                guilty=[loop, block],
                help="choose a loop further in, or split off the reduction "
                "loop that the extent depends on",
            )
    for condition in ir.conditions(state.realize(block).predicate):
        if ir.uses_var(condition, gone) and ir.uses_var(condition, kept):
            state.fail(
                "a condition of the predicate mixes spatial and reduction loops",
                code="BW364",
                guilty=[condition, block],
                help="split the loops separately",
            )
