"""transform_block_layout: a block's iterators replaced by functions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer, IndexMap, IterMapError
from blockwright.schedule.buffers import (
    lowest_indices,
    nest_of,
    simplified_indices,
    trivial_loops,
    with_index_type,
)
from blockwright.schedule.checks import require_known_kind
from blockwright.schedule.edit import Edit
from blockwright.schedule.forwarding import with_signature
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.record import AnyIndexMap, Primitive
from blockwright.schedule.reduction import fail_order, row_major, terms_in_order, why_ordered
from blockwright.schedule.state import State, Step
from blockwright.schedule.trial import calls, first_legal


class TransformBlockLayout(Primitive, frozen=True, eq=False):
    """Run a block over new iterators that are a one-to-one function of its old ones.

    Where the new iterators have points that no old one reaches, because an extent is no multiple
    of a divisor, a predicate leaves these out.

    Args:
        block: a block under loops of its own, one for each iterator.
        index_map: from the old iterators to the new; each result uses either only spatial or only
            reduction iterators.

    Requires:
    - each loop binds one iterator and is serial, without annotations; there is no predicate and
      no other loop around the block (BW322);
    - instances may run in any order: the block is complete or a reduction (BW314);
    - the map takes every iterator, is one to one, starts each new iterator at 0 (BW324), and mixes
      no kinds (BW364);
    - terms of a reduction are combined in another order only where any order will do (BW330).

    Before::

        @T.prim_func
        def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8, 16), "float32")):
            for i, j in T.grid(8, 16):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.transform_block_layout(sch.get_block("B"), lambda i, j: (i * 16 + j,))

    After::

        @T.prim_func
        def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8, 16), "float32")):
            for ax0 in range(128):
                with T.block("B"):
                    v0 = T.axis.spatial(128, ax0)
                    B[v0 // 16, v0 % 16] = A[v0 // 16, v0 % 16] * 2.0
    """

    method: ClassVar[str] = "transform_block_layout"

    block: BlockRV
    index_map: AnyIndexMap

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        loops = trivial_loops(state, block, self.method, _mere_order(state, block, self.index_map))
        require_known_kind(state, state.flow_at(block), block)
        analyzer = state.analyzer(block)
        around = state.analyzer(loops[0] if loops else block)
        extents = [it.dom.extent for it in block.iter_vars]
        dtype = ir.widest_type(extents)
        mapping = with_index_type(self.index_map, dtype)
        if len(mapping.initial) != len(extents):
            state.fail(f"the map takes {len(mapping.initial)} iterators, {block.name} has "
                       f"{len(extents)}", code="BW324", guilty=[block],
                       help="give the map one parameter per iterator of the block, in "
                            "their order")  # fmt: skip
        try:
            inverse, outside = mapping.non_surjective_inverse(extents, analyzer)
            # The new loops stand outside of the old ones, which may be empty.
            shape = mapping.map_shape(extents, around)
        except IterMapError as error:
            state.fail(f"the index map is not one to one: {error.reason}", code="BW324",
                       guilty=[block], help="map each point of the domain to a place of its own: "
                       "build it from sums, // and % of the iterators by constants, as in "
                       "lambda i, j: (i // 4, j, i % 4)")  # fmt: skip
        for low in lowest_indices(mapping, extents, analyzer):
            if low is None or not analyzer.prove_equal(low, ir.const(0, low.dtype)):
                state.fail("a new iterator does not start at 0",
                           code="BW324", guilty=[block],
                           help="subtract the smallest value in the map, so that every result "
                           "starts at 0")  # fmt: skip
        kinds = self._kinds(state, block, mapping)
        self._require_order(state, block, mapping, extents, shape, kinds)
        fresh = [
            ir.IterVar(ir.Var(f"v{k}", dtype), ir.Range(ir.const(0, dtype), extent), kind)
            for k, (extent, kind) in enumerate(zip(shape, kinds, strict=True))
        ]
        known = state.analyzer(block)
        for it in fresh:
            known.bind(it.var, it.dom)
        old = inverse.apply([it.var for it in fresh], known)
        values = {it.var: v for it, v in zip(block.iter_vars, old, strict=True)}
        edit = Edit(state)
        inside = edit.inside(block, values)
        body = simplified_indices(inside.body, known)
        init = None if inside.init is None else simplified_indices(inside.init, known)
        new = with_signature(inside.replace(iter_vars=tuple(fresh), body=body, init=init), known)
        edit.forward[block] = new
        variables = [ir.Var(f"ax{k}", dtype) for k in range(len(fresh))]
        predicate = ir.const(True, "bool")
        if not ir.is_const_int(outside, 0):
            for var, extent in zip(variables, shape, strict=True):
                analyzer.bind(var, ir.Range(ir.const(0, dtype), extent))
            predicate = _inside(inverse.apply(variables, analyzer), extents, analyzer)
        nest: ir.Stmt = ir.BlockRealize(tuple(variables), predicate, new)
        for var, extent in reversed(list(zip(variables, shape, strict=True))):
            nest = ir.For(var, ir.const(0, dtype), extent, ir.ForKind.SERIAL, nest)
        edit.replace(nest_of(state, block, loops), nest)
        return edit.finish()

    @staticmethod
    def _require_order(
        state: State, block: ir.Block, mapping: IndexMap, extents: Sequence[ir.Expr],
        shape: Sequence[ir.Expr], kinds: Sequence[ir.IterType],
    ) -> None:  # fmt: skip
        """The terms of a reduction run in the order in which they did, unless any order will do."""
        why = why_ordered(block)
        if not why:
            return
        known = state.analyzer(block)
        for var, extent in zip(mapping.initial, extents, strict=True):
            known.bind(var, ir.Range(ir.const(0, var.type), ir.cast_to(extent, var.type)))
        old = zip(mapping.initial, extents, (it.iter_type for it in block.iter_vars), strict=True)
        new = zip(mapping.final, shape, kinds, strict=True)
        ranks = [row_major([(v, n) for v, n, kind in side if kind is ir.IterType.REDUCE])
                 for side in (old, new)]  # fmt: skip
        if not terms_in_order(state, block) or not known.prove_equal(*ranks):
            fail_order(state, block, why)

    def _kinds(self, state: State, block: ir.Block, mapping: IndexMap) -> list[ir.IterType]:
        kind_of = {v: it.iter_type for v, it in zip(mapping.initial, block.iter_vars, strict=True)}
        kinds: list[ir.IterType] = []
        for index in mapping.final:
            used = {kind_of[v] for v in ir.free_vars(index) if v in kind_of}
            if len(used) > 1:
                state.fail("a new iterator would mix spatial and reduction iterators",
                           code="BW364", guilty=[block],
                           help="fuse spatial iterators with spatial ones and reduction "
                                "iterators with reduction ones")  # fmt: skip
            kinds.append(used.pop() if used else ir.IterType.SPATIAL)
        return kinds


def _mere_order(state: State, block: ir.Block, mapping: IndexMap) -> str:
    """The step that a map which only changes the order of iterators stands for."""
    first, last = list(mapping.initial), list(mapping.final)
    realize = state.realize(block)
    if len(first) != len(realize.iter_values) or sorted(map(id, first)) != sorted(map(id, last)):
        return ""
    above = state.tree.loops_above(block)
    order: list[ir.For] = []
    for new in last:
        value = realize.iter_values[next(k for k, v in enumerate(first) if v is new)]
        order += [f for f in above if ir.uses_var(value, f.loop_var) and f not in order]
    way = first_legal(state, [f"reorder({calls(state, order)})"])
    return f"to change the order of loops only, {way} is enough; " if way else ""


def _inside(
    values: Sequence[ir.Expr], extents: Sequence[ir.Expr], analyzer: Analyzer
) -> ir.Expr:  # fmt: skip
    """The condition, one part per old iterator, that values lie in [0, extent)."""
    parts: list[ir.Expr] = []
    for value, extent in zip(values, extents, strict=True):
        ends = (ir.GE(*ir.match_types(value, 0)), ir.LT(*ir.match_types(value, extent)))
        parts += [end for end in ends if not analyzer.prove(end)]
    return ir.all_of(parts)
