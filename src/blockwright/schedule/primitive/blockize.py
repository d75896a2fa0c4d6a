"""blockize: wrap a loop nest, or several blocks, in a new block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import (
    require_known_kind,
    require_once,
    require_only_blocks,
)
from blockwright.schedule.rewrite.grouping import grouped, parts_around, require_own_names
from blockwright.schedule.rewrite.split_iterators import (
    Bound,
    bounds,
    divide,
    iterators,
    predicate,
    rebuild,
    shortened,
    simplified,
)


class Blockize(Primitive, frozen=True, eq=False):
    """Wrap a loop and everything below it, or several blocks with their own loops, in a new block.

    Args:
        target: a loop, whose blocks become inner blocks; or adjacent blocks. A buffer that only
            blocks inside the new block use is moved into it if each instance of the new block
            writes what it reads.
        preserve_unit_iters: keep outer iterators of extent 1.

    Requires:
    - the blocks are complete, reductions or updates, and no other block is between the given ones;
    - several blocks bind a shared outer loop in the same way, and a reduction among them is
      complete inside the new block;
    - each iterator binding divides into an outer part driven by the loops outside the new block
      and an inner part driven by the loops inside;
    - a predicate that involves both parts involves a single binding.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            for i, j in T.grid(8, 8):
                with T.block("B"):
                    vi = T.axis.spatial(64, i * 8 + j)
                    B[vi] = A[vi] * 2.0

    Steps::

        i, j = sch.get_loops(sch.get_block("B"))
        sch.blockize(j)

    After::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
            for i in range(8):
                with T.block("B_o"):
                    vi_o = T.axis.spatial(8, i)
                    T.reads(A[vi_o * 8:vi_o * 8 + 8])
                    T.writes(B[vi_o * 8:vi_o * 8 + 8])
                    for j in range(8):
                        with T.block("B"):
                            vi_i = T.axis.spatial(8, j)
                            B[vi_o * 8 + vi_i] = A[vi_o * 8 + vi_i] * 2.0
    """

    method: ClassVar[str] = "blockize"
    returns: ClassVar[Returns] = "block"

    target: LoopRV | tuple[BlockRV, ...]
    preserve_unit_iters: bool = True

    def apply(self, state: StepState) -> StepResult:
        edit = Edit(state)
        if isinstance(self.target, tuple):
            blocks = [state.block(handle) for handle in self.target]
            parts = parts_around(state, blocks)
            result = grouped(state, edit, blocks, parts, self.preserve_unit_iters)
        else:
            loop = state.loop(self.target)
            blocks = require_only_blocks(state, loop)
            if len(blocks) > 1:
                result = grouped(state, edit, blocks, [loop], self.preserve_unit_iters)
            else:
                _, result = blockized(state, edit, loop, self.preserve_unit_iters)
        return edit.finish(result)


def blockized(
    state: StepState, edit: Edit, loop: ir.For, preserve_unit_iters: bool
) -> tuple[ir.BlockRealize, ir.Block]:
    """Replace a loop with a new block around it; return the block realize and the block."""
    below = require_only_blocks(state, loop)
    if len(below) != 1:
        state.fail(
            f"{len(below)} blocks are below loop {loop.loop_var.name}, not one",
            code="BW310",
            guilty=[loop, *map(state.tree.realize, below)],
            help="choose a loop around one block",
        )
    block = below[0]
    flow = state.flow_at(block)
    require_known_kind(state, flow, block)
    loops = state.tree.loops_above(block)
    require_once(state, block, loops[loops.index(loop) :], "of the new block")
    analyzer = state.analyzer(loop)
    given = state.tree.realize(block).predicate
    division = divide(state, block, loops[loops.index(loop) :], given)
    outer_iters, outer_values, inner_iters, inner_values, mapping = iterators(
        block, division, preserve_unit_iters, analyzer, {f.loop_var for f in loops}
    )
    limits = bounds(state, block, conjuncts(division.inner_predicate))
    bound = dict(zip((it.var for it in inner_iters), inner_values, strict=True))
    inside = predicate(limits, {v: ir.substitute(e, bound) for v, e in mapping.items()})
    within = analyzer.copy()
    for it in outer_iters:
        within.bind(it.var, it.dom)
    inner_iters = shortened(inner_iters, limits, mapping, within)
    inner = edit.inside(block.replace(init=None), mapping).replace(iter_vars=tuple(inner_iters))
    known = analyzer.copy()
    for it in (*outer_iters, *inner_iters):
        known.bind(it.var, it.dom)
    inner = with_signature(simplified(inner, known, edit.forward), known)
    edit.forward[block] = inner
    realize = ir.BlockRealize(tuple(inner_values), inside, inner)
    body = rebuild(loop, state.tree.realize(block), realize)
    require_own_names(state, [body], [loop])
    steps = {it.var for it in inner_iters if it.iter_type is ir.IterType.REDUCE}
    init = _outer_init(block, mapping, inner_iters, limits, known.without_empty(steps))
    outer = ir.Block(f"{block.name}_o", tuple(outer_iters), (), (), body, init)
    outer = with_signature(outer, analyzer)
    result = ir.BlockRealize(tuple(outer_values), division.outer_predicate, outer)
    edit.replace(loop, result)
    edit.refresh_signatures()
    return result, outer


def _outer_init(
    block: ir.Block,
    mapping: dict[ir.Var, ir.Expr],
    inner: list[ir.IterVar],
    limits: list[Bound],
    analyzer: Analyzer,
) -> ir.Stmt | None:
    """Return the init of the outer block: a nest of the inner spatial iterators; None if none."""
    if block.init is None:
        return None
    spatial = [it for it in inner if it.iter_type is not ir.IterType.REDUCE]
    fresh = {it.var: ir.Var(it.var.name, it.var.type) for it in spatial}
    first = {it.var: it.dom.min for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    values = {v: ir.substitute(e, fresh) for v, e in mapping.items()} | first
    iters = tuple(it.replace(var=fresh[it.var]) for it in spatial)
    known = analyzer.copy()
    for it in iters:
        known.bind(it.var, it.dom)
    result = ir.Block(f"{block.name}_init", iters, (), (), ir.substitute(block.init, values))
    result = with_signature(simplified(result, known, {}), known)
    loops = [(ir.Var(f"{it.var.name}_loop", it.var.type), it.dom.extent) for it in spatial]
    running = {it.var: it.dom.min + var for it, (var, _) in zip(iters, loops, strict=True)}
    outside = [b for b in limits if b[0].iter_type is not ir.IterType.REDUCE]
    open_ones = [c for c in conjuncts(predicate(outside, values)) if not known.prove(c)]
    inside = ir.substitute(ir.all_of(open_ones), running)
    realize = ir.BlockRealize(tuple(map(known.simplify, running.values())), inside, result)
    return wrap_loops(realize, loops)
