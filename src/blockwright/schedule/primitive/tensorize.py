"""tensorize: replace a computation with a tensor intrinsic."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from blockwright import ir
from blockwright.analysis import alignments
from blockwright.analysis.access.layout import buffer_strides, unmet_demands
from blockwright.arith import is_bijective
from blockwright.arith.text import expr_text
from blockwright.intrin import TensorIntrin
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.fresh_copy import copied
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive.blockize import blockized
from blockwright.schedule.rewrite.match import Match, seen_through
from blockwright.support import IRError


class Tensorize(Primitive, frozen=True, eq=False):
    """Replace a loop nest, or a block made by `blockize`, with the implementation of an intrinsic.

    Args:
        block_or_loop: the nest; its extents equal those of the intrinsic's meaning.
        tensor_intrin: name of the intrinsic.
        preserve_unit_iters: keep outer iterators of extent 1.

    Requires:
    - the nest can be blockized;
    - its only store matches the meaning: the same expression, in which the indices of each access
      may be offset from those in the meaning;
    - no predicate restricts the tile;
    - every operand satisfies the buffer declarations of the intrinsic (BW373): element type; scope,
      if it is not "global"; strides and element offset, if they are numbers; an offset that is a
      multiple of `offset_factor`; an address that is a multiple of `align` bytes. This is proved
      here, and again when the program is built. A symbolic stride is bound to the actual stride.

    The block gets the execution scope of the implementation's root block.

    Before::

        @T.prim_func
        def main(
            A: T.Buffer((4, 32), "float32"),
            B: T.Buffer((32, 8), "float32"),
            C: T.Buffer((4, 8), "float32"),
        ):
            for k, i, j in T.grid(32, 4, 8):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    Steps::

        k, i, j = sch.get_loops(sch.get_block("C"))
        sch.tensorize(i, "outer_product_4x8_float32")
    """

    method: ClassVar[str] = "tensorize"

    block_or_loop: BlockRV | LoopRV
    tensor_intrin: str
    preserve_unit_iters: bool = True

    def apply(self, state: StepState) -> StepResult:
        node = state.stmt(self.block_or_loop)
        try:
            intrin = TensorIntrin.get(self.tensor_intrin)
        except IRError as error:
            state.fail(error.message, code="BW302", guilty=[node], help=error.help)
        edit = Edit(state)
        if isinstance(node, ir.For):
            realize, outer = blockized(state, edit, node, self.preserve_unit_iters)
            target: ir.Stmt = node
        else:
            realize = state.realize(node)
            outer, target = node, realize
        inner = self._inner(state, outer, node)
        match = self._match(state, intrin, outer, inner, node)
        _require_demands(state, intrin, match, realize.replace(block=outer), node)
        implementation = intrin.implementation
        body, views, allocs = _placed(implementation, intrin.meaning, match)
        new = outer.replace(
            body=body,
            match_buffers=(*outer.match_buffers, *views),
            alloc_buffers=(*outer.alloc_buffers, *allocs),
            exec_scope=implementation.root.exec_scope or outer.exec_scope,
        )
        edit.forward.pop(inner.block, None)
        for old, became in list(edit.forward.items()):
            if became is inner.block:
                del edit.forward[old]  # consumed
        if isinstance(node, ir.Block):
            edit.forward[node] = new
        edit.replace(target, realize.replace(block=new))
        return edit.finish()

    @staticmethod
    def _inner(state: StepState, outer: ir.Block, guilty: ir.Node) -> ir.BlockRealize:
        """Return the only block inside the tile; its plain loops must run each instance once."""
        stmt = outer.body
        loops: dict[ir.Var, ir.For] = {}
        while isinstance(stmt, ir.For):
            loops[stmt.loop_var] = stmt
            stmt = stmt.body
        if not isinstance(stmt, ir.BlockRealize):
            state.fail(
                "the tile is not loops around one block",
                code="BW327",
                guilty=[guilty],
                help="blockize the loops of the tile",
            )
        if not ir.is_const_int(stmt.predicate, 1):
            state.fail(
                "a predicate restricts the tile",
                code="BW327",
                guilty=[guilty],
                help="use pad_einsum, or split by a factor that divides the extent",
            )
        domains = {v: f.dom for v, f in loops.items()}
        if not is_bijective(stmt.iter_values, domains, None, state.analyzer()):
            state.fail(
                "the loops of the tile do not run each of its instances once",
                code="BW327",
                guilty=[guilty],
                help="choose the outermost loop of the tile, all of whose loops drive an iterator",
            )
        return stmt

    @staticmethod
    def _match(
        state: StepState,
        intrin: TensorIntrin,
        outer: ir.Block,
        realize: ir.BlockRealize,
        guilty: ir.Node,
    ) -> Match:
        inner = seen_through(realize.block)  # a tile of one element may be tensorized again
        analyzer = state.analyzer(guilty if isinstance(guilty, ir.Stmt) else None)
        for it in (*outer.iter_vars, *inner.iter_vars):
            analyzer.bind(it.var, it.dom)
        meaning = ir.blocks(intrin.meaning.root.body)[0]
        loops = {
            it.var: v
            for it, v in zip(inner.iter_vars, realize.iter_values, strict=True)
            if isinstance(v, ir.Var)
        }
        match = Match(meaning, inner, analyzer, loops)
        if inner.init is not None:
            state.fail(
                f"the tile does not match {intrin.name}: block {inner.name} sets an initial "
                "value, the intrinsic only updates",
                code="BW327",
                guilty=[guilty],
                help=f"decompose_reduction({inner.name}, loop) at a loop outside the "
                "tile first; the remaining block is the update",
            )
        if not match.run(meaning.body, inner.body):
            marks = [
                state.tree.loops.get(n, n) if isinstance(n, ir.Var) else n for n in match.guilty
            ]
            remedy = f"{match.remedy}; " if match.remedy else ""
            state.fail(
                f"the tile does not match {intrin.name}: {match.why}",
                code="BW327",
                guilty=[guilty, *marks],
                help=f"{remedy}{intrin.name} computes {_stated(meaning)}",
            )
        return match


def _stated(meaning: ir.Block) -> str:
    """Format the computation of an intrinsic on one line, for messages."""
    ranges = [
        f"{it.var.name} ({it.iter_type.value}) < {expr_text(it.dom.extent)}"
        for it in meaning.iter_vars
    ]
    body = meaning.body
    shown = " ".join(repr(body).split())
    if isinstance(body, ir.BufferStore):
        indices = ", ".join(map(expr_text, body.indices))
        shown = f"{body.buffer.name}[{indices}] = {expr_text(body.value)}"
    return f"{shown} for {', '.join(ranges)}"


def _require_demands(
    state: StepState, intrin: TensorIntrin, match: Match, realize: ir.BlockRealize, guilty: ir.Node
) -> None:
    """Require that the operands satisfy the memory constraints of the intrinsic's buffers."""
    align, outer = alignments(state.func.body), realize.block
    analyzer = state.analyzer(guilty if isinstance(guilty, ir.Stmt) else None)
    for it in outer.iter_vars:
        analyzer.bind(it.var, it.dom)
    values = {it.var: v for it, v in zip(outer.iter_vars, realize.iter_values, strict=True)}
    result: list[str] = []
    helps: dict[str, None] = {}
    pairs = zip(intrin.meaning.buffers, intrin.implementation.buffers, strict=True)
    for mine, formal in pairs:
        region = match.regions[mine]
        allocated = region.buffer not in set(state.func.buffers)
        strides = buffer_strides(region.buffer, align.get(region.buffer, ()))
        for demand, known, remedy in unmet_demands(
            _demanding(mine, formal),
            region,
            strides,
            allocated,
            analyzer,
            lambda e: ir.substitute(e, values),
        ):
            result.append(
                f"operand {mine.name} ({region.buffer.name}) must have {demand}, but {known}"
            )
            helps[remedy] = None
    if result:
        state.fail(
            f"{intrin.name} does not fit its operands: " + "; ".join(result),
            code="BW373",
            guilty=[guilty],
            help="; ".join(helps),
        )


def _demanding(meaning: ir.Buffer, implementation: ir.Buffer) -> ir.Buffer:
    """Return a buffer with the combined constraints of both programs of an intrinsic."""
    a, b = meaning, implementation
    return b.replace(
        strides=b.strides or a.strides,
        offset=a.offset if b.offset is None else b.offset,
        scope=a.scope if b.scope == "global" else b.scope,
        data_alignment=math.lcm(max(a.data_alignment, 1), max(b.data_alignment, 1)),
        offset_factor=math.lcm(max(a.offset_factor, 1), max(b.offset_factor, 1)),
    )


def _placed(
    implementation: ir.PrimFunc, meaning: ir.PrimFunc, match: Match
) -> tuple[ir.Stmt, list[ir.MatchBufferRegion], tuple[ir.Buffer, ...]]:
    """Return the implementation's body on views of the matched regions, the views and buffers."""
    root: ir.Block = copied(implementation.root)
    views: list[ir.MatchBufferRegion] = []
    mapping: dict[Any, ir.Node] = {}
    for mine, formal in zip(meaning.buffers, implementation.buffers, strict=True):
        region, demanding = match.regions[mine], _demanding(mine, formal)
        symbols = {
            v: ir.Var(v.name, v.type)
            for e in (*demanding.strides, demanding.offset)
            if e is not None
            for v in ir.free_vars(e)
        }
        name = f"{region.buffer.name}_tile"
        view = ir.substitute(demanding, symbols).replace(name=name)
        mapping.update(symbols)
        mapping[formal] = view
        views.append(ir.MatchBufferRegion(view, region))
    return ir.substitute(root.body, mapping), views, root.alloc_buffers
