"""rfactor: factor a reduction loop into partial results, combined by a second reduction."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import Reduction, step, stores
from blockwright.analysis.sizes import nonnegative
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_once, require_zero_start
from blockwright.schedule.legality.reduction import reduction_of, require_restart
from blockwright.schedule.primitive.decompose_reduction import (
    reduction_loops,
    require_reduction,
)
from blockwright.schedule.rewrite.copy_nest import fresh_name


class Rfactor(Primitive, frozen=True, eq=False):
    """Factor a reduction loop: it becomes a spatial axis of new buffers of partial results.

    Args:
        loop: a loop that drives reduction iterators of the only block below it.
        factor_axis: position of the new axis in the partial buffers; negative counts from the end.

    Requires:
    - the block is the only one below the loop; the loop starts at 0 and drives reduction iterators
      (BW310, BW332);
    - the block is a reduction of one element or of a tuple, by a builtin or declared reducer
      (BW330), and each instance runs once (BW315);
    - the reducer combines the initial value with itself to the same value, because each partial
      result starts from it: a minimum may start from any value, a sum only from 0 (BW330);
    - all reduction loops contain only the block, and their extents depend on no loop (BW310,
      BW350);
    - conditions on reduction loops use other loops only through iterators bound to them (BW332).

    The order of floating-point additions changes. A predicate on reduction loops becomes a select
    between the term and the identity value, so that every partial result is defined.

    A tuple reduction gets one partial buffer per component, with the new axis at the same position.

    Returns: the block of partial results; the given block becomes the final reduction.

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

        i, k = sch.get_loops(sch.get_block("B"))
        k0, k1 = sch.split(k, [None, 16])
        sch.rfactor(k1, 1)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            B_rf = T.alloc_buffer((16, 16), "float32")
            for i in range(16):
                for k_0, k_1 in T.grid(4, 16):
                    with T.block("B_rf"):
                        vk_1, vi, vk_0 = T.axis.remap("SSR", [k_1, i, k_0])
                        with T.init():
                            B_rf[vi, vk_1] = T.float32(0)
                        B_rf[vi, vk_1] = B_rf[vi, vk_1] + A[vi, vk_0 * 16 + vk_1]
                for k_1 in range(16):
                    with T.block("B"):
                        vk_1, vi = T.axis.remap("RS", [k_1, i])
                        with T.init():
                            B[vi] = T.float32(0)
                        B[vi] = B[vi] + B_rf[vi, vk_1]
    """

    method: ClassVar[str] = "rfactor"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    loop: LoopRV
    factor_axis: int

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        below = state.tree.child_blocks(loop)
        if len(below) != 1:
            state.fail(
                "there must be exactly one block below the loop",
                code="BW310",
                guilty=[loop, *below],
                help="split or reorder so that the loop contains only the "
                "reduction; apply the step before other blocks move into it",
            )
        block = below[0]
        reduction = reduction_of(state, block)
        loops = state.tree.loops_above(block)
        reducing = reduction_loops(state, block, loops)
        require_zero_start(state, loop)
        require_reduction(state, block)
        if loop not in reducing:
            choice = " or ".join(f.loop_var.name for f in reducing)
            state.fail(
                f"loop {loop.loop_var.name} binds no reduction iterator",
                code="BW332",
                guilty=[loop, block],
                help=f"choose {choice}, which drives the reduction; or split it first and "
                "choose one of its parts",
            )
        require_restart(state, block, reduction)
        axis = self._axis(state, block, reduction)
        return _Rfactor(state, block, reduction, loop, loops, reducing, axis).step()

    def _axis(self, state: StepState, block: ir.Block, reduction: Reduction) -> int:
        """Return the position of the new axis, counted from the front."""
        ranks = {len(element.indices) + 1 for element in reduction.elements}
        if len(ranks) > 1:
            state.fail(
                "the components of the reduction have buffers of different rank, so the "
                "new axis has no common position",
                code="BW332",
                guilty=[block],
                help="reduce the components in separate blocks",
            )
        (rank,) = ranks
        if not -rank <= self.factor_axis < rank:
            state.fail(
                f"factor_axis must be between {-rank} and {rank - 1}",
                code="BW304",
                guilty=[block],
                help="it is the position of the new axis in the partial results; "
                "0 makes it the first",
            )
        return self.factor_axis % rank


class _Rfactor:
    def __init__(
        self,
        state: StepState,
        block: ir.Block,
        reduction: Reduction,
        loop: ir.For,
        loops: list[ir.For],
        reducing: list[ir.For],
        axis: int,
    ) -> None:
        self.state, self.block, self.reduction = state, block, reduction
        self.loop, self.axis = loop, axis
        self.realize = state.realize(block)
        self.own = _own_chain(loops, self.realize)
        if loop not in self.own:
            state.fail(
                "other statements share the loop's body",
                code="BW310",
                guilty=[loop],
                help="move the other statements out first, or apply the step "
                "before blocks move into the loop",
            )
        shared = [n for n in reducing if n not in self.own]
        if shared:
            state.fail(
                f"other statements share the body of reduction loop {shared[0].loop_var.name}",
                code="BW310",
                guilty=[*shared, block],
                help=f"rfactor({loop.loop_var.name}, …) before other blocks move into loop "
                f"{shared[0].loop_var.name}",
            )
        self.own = _from_first_reduction(self.own, reducing)
        running = {n.loop_var for n in loops}
        for each in self.own:
            if any(ir.uses_var(e, running) for e in (each.min, each.extent)):
                state.fail(
                    f"the extent of loop {each.loop_var.name} depends on another loop",
                    code="BW350",
                    guilty=[each, block],
                    help="split so that all loops around the block have independent extents",
                )
        require_once(state, block, self.own, "that are factored")
        self.reducing = reducing
        self.known = state.signature_facts(block)
        index_type = loop.loop_var.type
        self.lane = ir.Var(f"v{loop.loop_var.name}", index_type)
        self.partials = [self._partial_buffer(e.buffer) for e in reduction.elements]

    def _partial_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        shape = list(buffer.shape)
        around = self.state.analyzer(self.state.scope(self.block).body)
        shape.insert(self.axis, nonnegative(self.loop.extent, around))
        name = fresh_name(self.state, f"{buffer.name}_rf")
        return ir.Buffer(name, buffer.dtype, tuple(shape), scope=buffer.scope)

    def step(self) -> StepResult:
        scope = self.state.scope(self.block)
        partial_nest, result = self._partial()
        final_nest, final = self._final()
        edit = Edit(self.state)
        edit.forward[self.block] = final
        edit.replace(self.own[0], ir.seq([partial_nest, final_nest]))
        edit.allocate(scope, *self.partials)
        edit.refresh_signatures()
        return edit.finish(result)

    def _split_predicate(self) -> tuple[list[ir.Expr], list[ir.Expr]]:
        """Split the predicate into conditions without and conditions with reduction loops."""
        variables = {n.loop_var for n in self.reducing}
        outer: list[ir.Expr] = []
        inner: list[ir.Expr] = []
        for condition in ir.conditions(self.realize.predicate):
            (inner if ir.uses_var(condition, variables) else outer).append(condition)
        return outer, inner

    def _spatial(self) -> tuple[list[ir.IterVar], list[ir.Expr], dict[ir.Var, ir.Expr]]:
        iters: list[ir.IterVar] = []
        values: list[ir.Expr] = []
        renamed: dict[ir.Var, ir.Expr] = {}
        for it, value in zip(self.block.iter_vars, self.realize.iter_values, strict=True):
            if it.iter_type is not ir.IterType.REDUCE:
                fresh = ir.Var(it.var.name, it.var.type)
                renamed[it.var] = fresh
                iters.append(it.replace(var=fresh))
                values.append(value)
        return iters, values, renamed

    def _partial(self) -> tuple[ir.Stmt, ir.Block]:
        """Build the block that computes the partial results, over all loops."""
        iters, values, renamed = self._spatial()
        lane_dom = self.loop.dom
        iters.insert(0, ir.IterVar(self.lane, lane_dom))
        values.insert(0, self.loop.loop_var)
        by_loop: dict[ir.Var, ir.Expr] = {self.loop.loop_var: self.lane}
        for loop in self.reducing:
            if loop is not self.loop:
                var = ir.Var(f"v{loop.loop_var.name}", loop.loop_var.type)
                by_loop[loop.loop_var] = var
                dom = loop.dom
                iters.append(ir.IterVar(var, dom, ir.IterType.REDUCE))
                values.append(loop.loop_var)
        for it, value in zip(self.block.iter_vars, self.realize.iter_values, strict=True):
            if it.iter_type is ir.IterType.REDUCE:
                renamed[it.var] = ir.substitute(value, by_loop)
        terms = [ir.substitute(term, renamed) for term in self.reduction.terms]
        outer, inner = self._split_predicate()
        if inner:
            spatial_of = self._loops_to_iters(renamed)
            guard = ir.all_of(ir.substitute(c, {**by_loop, **spatial_of}) for c in inner)
            if ir.uses_var(guard, set(self.state.tree.loops)):
                self.state.fail(
                    "a condition on a reduction loop uses a spatial loop that no iterator is bound "
                    "to",
                    code="BW332",
                    guilty=[*inner, self.block],
                    help="rfactor before the spatial loop is split",
                )
            none = self._initial(renamed)
            # The identity of float addition is -0.0: lowering can drop additions of it.
            if self.reduction.name == "sum":
                none = [ir.const(-0.0, e.dtype) if e.dtype.is_float else e for e in none]
            terms = [ir.if_then_else(guard, t, e) for t, e in zip(terms, none, strict=True)]
        elements = self._partial_elements(renamed, self.lane)
        body = step(self.reduction.reducer, elements, terms)
        init = stores(elements, self._initial(renamed))
        name = fresh_name(self.state, f"{self.block.name}_rf")
        result = ir.Block(
            name, tuple(iters), (), (), body, init, annotations=self.block.annotations
        )
        result = with_signature(result, self.known)
        nest: ir.Stmt = ir.BlockRealize(tuple(values), ir.all_of(outer), result)
        for loop in reversed(self.own):
            nest = loop.replace(body=nest)
        return nest, result

    def _loops_to_iters(self, renamed: dict[ir.Var, ir.Expr]) -> dict[ir.Var, ir.Expr]:
        """Map loop variables to the spatial iterators bound to them."""
        result: dict[ir.Var, ir.Expr] = {}
        for it, value in zip(self.block.iter_vars, self.realize.iter_values, strict=True):
            if isinstance(value, ir.Var) and it.iter_type is not ir.IterType.REDUCE:
                result[value] = renamed[it.var]
        return result

    def _initial(self, renamed: dict[ir.Var, ir.Expr]) -> list[ir.Expr]:
        return [ir.substitute(value, renamed) for value in self.reduction.initial]

    def _elements(self, renamed: dict[ir.Var, ir.Expr]) -> list[ir.BufferLoad]:
        """Rewrite the elements of the original block over renamed iterators."""
        return [
            ir.BufferLoad(e.buffer, tuple(ir.substitute(i, renamed) for i in e.indices))
            for e in self.reduction.elements
        ]

    def _partial_elements(
        self, renamed: dict[ir.Var, ir.Expr], lane: ir.Expr
    ) -> list[ir.BufferLoad]:
        result: list[ir.BufferLoad] = []
        for partial, element in zip(self.partials, self._elements(renamed), strict=True):
            index = list(element.indices)
            index.insert(self.axis, lane)
            result.append(ir.BufferLoad(partial, tuple(index)))
        return result

    def _final(self) -> tuple[ir.Stmt, ir.Block]:
        """Build the block that combines partial results, over spatial loops and the factor."""
        iters, values, renamed = self._spatial()
        lane = ir.Var(self.lane.name, self.lane.type)
        dom = self.loop.dom
        iters.insert(0, ir.IterVar(lane, dom, ir.IterType.REDUCE))
        loops = [n for n in self.own if n not in self.reducing or n is self.loop]
        fresh = {n.loop_var: ir.Var(n.loop_var.name, n.loop_var.type) for n in loops}
        values = [ir.substitute(v, fresh) for v in [self.loop.loop_var, *values]]
        elements = self._elements(renamed)
        body = step(self.reduction.reducer, elements, self._partial_elements(renamed, lane))
        init = stores(elements, self._initial(renamed))
        final = self.block.replace(iter_vars=tuple(iters), body=body, init=init)
        final = with_signature(final, self.known)
        outer = [ir.substitute(c, fresh) for c in self._split_predicate()[0]]
        nest: ir.Stmt = ir.BlockRealize(tuple(values), ir.all_of(outer), final)
        for own in reversed(loops):
            loop = own
            if own is self.loop:  # partial results are combined serially
                loop = loop.replace(kind=ir.ForKind.SERIAL, annotations={}, thread=None)
            nest = loop.replace(loop_var=fresh[own.loop_var], body=nest)
        return nest, final


def _own_chain(loops: list[ir.For], realize: ir.BlockRealize) -> list[ir.For]:
    """Return the innermost perfectly nested loops around a block."""
    own: list[ir.For] = []
    inner: ir.Stmt = realize
    for loop in reversed(loops):
        if loop.body is not inner:
            break
        own.insert(0, loop)
        inner = loop
    return own


def _from_first_reduction(own: list[ir.For], reducing: list[ir.For]) -> list[ir.For]:
    """Return the loops from the outermost reduction loop inwards.

    The spatial loops outside are shared by both new blocks.
    """
    first = next(k for k, loop in enumerate(own) if loop in reducing)
    return own[first:]
