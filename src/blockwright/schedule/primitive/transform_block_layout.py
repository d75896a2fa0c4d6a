"""transform_block_layout: change the iteration space of a block by an index map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from blockwright import ir
from blockwright.arith import Analyzer, IndexMap, IterMapError
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import rewritten_accesses, with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import AnyIndexMap, Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_known_kind
from blockwright.schedule.legality.own_loops import nest_of, trivial_loops
from blockwright.schedule.legality.reduction import (
    fail_order,
    row_major,
    terms_in_order,
    why_ordered,
)
from blockwright.schedule.legality.try_remedies import calls, first_legal
from blockwright.schedule.rewrite.copy_nest import (
    lowest_indices,
    simplified_indices,
    with_index_type,
)


class TransformBlockLayout(Primitive, frozen=True, eq=False):
    """Run a block over new iterators that are an injective function of its old ones.

    If an extent is not a multiple of a divisor in the map, some points of the new iterators have no
    old point; a predicate masks them.

    Args:
        block: a block under loops of its own, one for each iterator.
        index_map: map from the old iterators to the new ones; each result uses either only spatial
            or only reduction iterators.

    Requires:
    - each loop drives one iterator and is serial, without annotations; there is no predicate and
      no other loop around the block (BW322);
    - instances may run in any order: the block is complete or a reduction (BW314);
    - the map has one parameter per iterator, is injective, starts each new iterator at 0 (BW324),
      and does not mix iterator kinds (BW364);
    - the terms of a reduction are reordered only if its reducer allows any order (BW330).

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

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        loops = trivial_loops(state, block, self.method, _mere_order(state, block, self.index_map))
        require_known_kind(state, state.flow_at(block), block)
        around = state.analyzer(nest_of(state, block, loops))
        extents = [it.dom.extent for it in block.iter_vars]
        dtype = ir.widest_type(extents)
        mapping = with_index_type(self.index_map, dtype)
        if len(mapping.initial) != len(extents):
            state.fail(
                f"the map takes {len(mapping.initial)} iterators, {block.name} has {len(extents)}",
                code="BW324",
                guilty=[block],
                help="give the map one parameter per iterator of the block, in their order",
            )
        kinds = self._kinds(state, block, mapping)
        try:
            inverse, outside, shape = _turned(block, mapping, kinds, extents, around)
        except IterMapError as error:
            state.fail(
                f"the index map is not one to one: {error.reason}",
                code="BW324",
                guilty=[block],
                help="map each point of the domain to a different point: "
                "build the map from sums, // and % of the iterators by constants, as in "
                "lambda i, j: (i // 4, j, i % 4)",
            )
        for low in lowest_indices(mapping, extents, around):
            if low is None or not around.prove_equal(low, ir.const(0, low.dtype)):
                state.fail(
                    "a new iterator does not start at 0",
                    code="BW324",
                    guilty=[block],
                    help="subtract the smallest value in the map, so that every result starts at 0",
                )
        self._require_order(state, block, mapping, extents, shape, kinds)
        fresh = [
            ir.IterVar(ir.Var(f"v{k}", dtype), ir.Range(ir.const(0, dtype), extent), kind)
            for k, (extent, kind) in enumerate(zip(shape, kinds, strict=True))
        ]
        own = _Facts(around, fresh)
        old = own.values(inverse, block)
        pairs = zip(block.iter_vars, old, strict=True)
        values = {it.var: ir.cast_to(v, it.var.type) for it, v in pairs}
        edit = Edit(state)
        inside = edit.inside(block, values)
        body = _indexed(inside.body, values.values(), own.stepping)
        init = None if inside.init is None else _indexed(inside.init, values.values(), own.always)
        new = inside.replace(iter_vars=tuple(fresh), body=body, init=init)
        new = with_signature(new, state.signature_facts(block))
        edit.forward[block] = new
        variables = [ir.Var(f"ax{k}", dtype) for k in range(len(fresh))]
        predicate = ir.const(True, "bool")
        if not ir.is_const_int(outside, 0):
            loops_of = [it.replace(var=v) for it, v in zip(fresh, variables, strict=True)]
            predicate = _Facts(around, loops_of).inside(inverse, block)
        nest: ir.Stmt = ir.BlockRealize(tuple(variables), predicate, new)
        for var, extent in reversed(list(zip(variables, shape, strict=True))):
            nest = ir.For(var, ir.const(0, dtype), extent, ir.ForKind.SERIAL, nest)
        edit.replace(nest_of(state, block, loops), nest)
        return edit.finish()

    @staticmethod
    def _require_order(
        state: StepState,
        block: ir.Block,
        mapping: IndexMap,
        extents: Sequence[ir.Expr],
        shape: Sequence[ir.Expr],
        kinds: Sequence[ir.IterType],
    ) -> None:
        """Require that reduction terms keep their order, unless the reducer allows any order."""
        why = why_ordered(block)
        if not why:
            return
        known = state.analyzer(block)
        for var, extent in zip(mapping.initial, extents, strict=True):
            known.bind(var, ir.Range(ir.const(0, var.type), ir.cast_to(extent, var.type)))
        old = zip(mapping.initial, extents, (it.iter_type for it in block.iter_vars), strict=True)
        new = zip(mapping.final, shape, kinds, strict=True)
        ranks = [
            row_major([(v, n) for v, n, kind in side if kind is ir.IterType.REDUCE])
            for side in (old, new)
        ]
        if not terms_in_order(state, block) or not known.prove_equal(*ranks):
            fail_order(state, block, why)

    def _kinds(self, state: StepState, block: ir.Block, mapping: IndexMap) -> list[ir.IterType]:
        kind_of = {v: it.iter_type for v, it in zip(mapping.initial, block.iter_vars, strict=True)}
        kinds: list[ir.IterType] = []
        for index in mapping.final:
            used = {kind_of[v] for v in ir.free_vars(index) if v in kind_of}
            if len(used) > 1:
                state.fail(
                    "a new iterator would mix spatial and reduction iterators",
                    code="BW364",
                    guilty=[block],
                    help="fuse spatial iterators with spatial ones and reduction "
                    "iterators with reduction ones",
                )
            kinds.append(used.pop() if used else ir.IterType.SPATIAL)
        return kinds


def _indexed(stmt: ir.Stmt, values: Iterable[ir.Expr], analyzer: Analyzer) -> Any:
    """Simplify the indices of a statement.

    Indices may have any integer type, so casts of the substituted values to the types of the old
    iterators are dropped there.
    """
    wide = {value: value.value for value in values if isinstance(value, ir.Cast)}

    def change(node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        indices = tuple(ir.substitute(i, wide) for i in node.indices)
        return node.replace(indices=indices)

    if wide:
        stmt = rewritten_accesses(stmt, change)
    return simplified_indices(stmt, analyzer)


def _mere_order(state: StepState, block: ir.Block, mapping: IndexMap) -> str:
    """Suggest the equivalent `reorder` if the map only permutes iterators; else return ""."""
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


def _turned(
    block: ir.Block,
    mapping: IndexMap,
    kinds: Sequence[ir.IterType],
    extents: Sequence[ir.Expr],
    around: Analyzer,
) -> tuple[IndexMap, ir.Expr, list[ir.Expr]]:
    """Return the inverse of an iterator map, its padding condition, and the new extents.

    Spatial and reduction iterators are inverted separately: the extents of spatial iterators must
    not depend on reduction domains, which may be empty while the initial value is still set.
    """
    outputs = tuple(ir.Var(f"ax{k}", e.dtype) for k, e in enumerate(mapping.final))
    outside: ir.Expr = ir.const(False, "bool")
    old: dict[int, ir.Expr] = {}
    shape: dict[int, ir.Expr] = {}
    for reduced in (False, True):
        mine = [
            k
            for k, it in enumerate(block.iter_vars)
            if (it.iter_type is ir.IterType.REDUCE) is reduced
        ]
        result = [k for k, kind in enumerate(kinds) if (kind is ir.IterType.REDUCE) is reduced]
        part = IndexMap(
            tuple(mapping.initial[k] for k in mine), tuple(mapping.final[k] for k in result)
        )
        sizes = [extents[k] for k in mine]
        inverse, nowhere = part.non_surjective_inverse(sizes, around)
        here = dict(zip(inverse.initial, (outputs[k] for k in result), strict=True))
        outside = ir.logical_or(outside, ir.substitute(nowhere, here))
        old |= {k: ir.substitute(e, here) for k, e in zip(mine, inverse.final, strict=True)}
        shape |= dict(zip(result, part.map_shape(sizes, around), strict=True))
    inverse = IndexMap(outputs, tuple(old[k] for k in range(len(extents))))
    return inverse, outside, [shape[k] for k in range(len(outputs))]


class _Facts:
    """Facts about the new iterators, or about the loops over them.

    Attributes:
        stepping: facts that hold in a step of the reduction.
        always: facts that also hold in the init of a reduction without steps.
    """

    def __init__(self, around: Analyzer, iters: Sequence[ir.IterVar]) -> None:
        self.iters = [it.var for it in iters]
        self.stepping = around.copy()
        for it in iters:
            self.stepping.bind(it.var, it.dom)
        reduced = [it.var for it in iters if it.iter_type is ir.IterType.REDUCE]
        self.always = self.stepping.without_empty(reduced)

    def _of(self, it: ir.IterVar) -> Analyzer:
        return self.stepping if it.iter_type is ir.IterType.REDUCE else self.always

    def values(self, inverse: IndexMap, block: ir.Block) -> list[ir.Expr]:
        """Return the old iterators in terms of the new ones."""
        stepping, always = (inverse.apply(self.iters, a) for a in (self.stepping, self.always))
        return [
            a if self._of(it) is self.stepping else b
            for it, a, b in zip(block.iter_vars, stepping, always, strict=True)
        ]

    def inside(self, inverse: IndexMap, block: ir.Block) -> ir.Expr:
        """Return the condition that the value of every old iterator is in [0, extent)."""
        parts: list[ir.Expr] = []
        for value, it in zip(self.values(inverse, block), block.iter_vars, strict=True):
            ends = (ir.GE(*ir.match_types(value, 0)), ir.LT(*ir.match_types(value, it.dom.extent)))
            parts += [end for end in ends if not self._of(it).prove(end)]
        return ir.all_of(parts)
