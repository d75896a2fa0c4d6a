"""transform_layout: change the layout of a buffer; padding holds a known value."""

from __future__ import annotations

import math
from typing import ClassVar, cast

from blockwright import ir
from blockwright.analysis import alignments
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import IndexMap, IterMapError
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import AnyIndexMap, BufferName, PadValue, Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_elements
from blockwright.schedule.legality.buffers import named_buffer, require_home
from blockwright.schedule.legality.injective import (
    MOST_COUNTED,
    all_places,
    spans,
    why_not_injective,
)
from blockwright.schedule.rewrite.copy_nest import with_index_type
from blockwright.schedule.rewrite.layout_padding import LayoutPadding, filling, who_pads
from blockwright.schedule.rewrite.relayout import relayout


class TransformLayout(Primitive, frozen=True, eq=False):
    """Change the layout of a buffer: element `i` moves to `index_map(i)`.

    Args:
        block: a block that reads or writes the buffer.
        buffer: ("read" | "write", position) or a name.
        index_map: injective map from old indices to new indices. `IndexMap.AXIS_SEPARATOR` among
            the results starts a new physical axis.
        pad_value: value of the elements of the new shape that no old index maps to: a number, or a
            function from new indices to a value. None: there is no padding.
        assume_injective_transform: accept a map whose injectivity no iterator map proves. The map
            is checked by enumerating every index, so sizes must be constants.

    With padding, a block that writes the buffer one element per iterator iterates over the new
    shape and writes the padding as well. For other producers, a new block after them writes the
    padding, in the innermost parallel or thread-bound loop whose iterations have private buffers.

    Requires:
    - the buffer is allocated in the program; the padding of a parameter would have to be written
      by the caller (BW321);
    - the map has one parameter per dimension, is injective and produces no negative index (BW324);
    - without a pad value the map is surjective; with a pad value its inverse is known, and the
      value does not read memory (BW324);
    - every use of the buffer is an element access: no view (`match_buffer`), address or vector
      access (BW324); the buffer has no stride alignment (BW328).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((128, 64), "float32")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0

    Steps::

        sch.transform_layout(sch.get_block("B"), ("write", 0), lambda i, j: (i // 16, j, i % 16))

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((8, 64, 16), "float32")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi // 16, vj, vi % 16] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi // 16, vj, vi % 16] + 1.0
    """

    method: ClassVar[str] = "transform_layout"

    block: BlockRV
    buffer: BufferName
    index_map: AnyIndexMap
    pad_value: PadValue = None
    assume_injective_transform: bool = False

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = named_buffer(state, block, self.buffer)
        owner = require_home(state, block, buffer)
        mapping, shape = self._mapping(state, block, owner, buffer)
        require_elements(state, owner, buffer)
        if buffer in alignments(owner):
            state.fail(
                f"{buffer.name} has a stride alignment, and the step would change its strides",
                code="BW328",
                guilty=[buffer],
                help="use storage_align after transform_layout",
            )
        gaps = self._gaps(state, block, owner, buffer, mapping, shape)
        filled_by = filling(state, owner, buffer)
        known = state.analyzer(owner.body)
        sizes = tuple(nonnegative(extent, known) for extent in shape)
        fresh: ir.Buffer = buffer.replace(
            shape=sizes, strides=(), axis_separators=mapping.separators
        )
        edit = Edit(state)
        new = relayout(state, edit, owner, buffer, fresh, lambda i, known: mapping.apply(i, known))
        edit.replace_block(owner, new)
        step = edit.finish()
        if gaps is None:
            return step
        inverse, outside = gaps
        after = state.following(step.func)
        result = LayoutPadding(
            after, edit.latest(owner), fresh, inverse, outside, self._pad_values(fresh), filled_by
        ).step()
        return StepResult(result.func, {**step.forward, **result.forward})

    def _mapping(
        self, state: StepState, block: ir.Block, owner: ir.Block, buffer: ir.Buffer
    ) -> tuple[IndexMap, tuple[ir.Expr, ...]]:
        """Return the map over the buffer's index type, and the shape that holds its results.

        Both are valid anywhere in the block that owns the buffer. Facts from the loops around
        `block` are not used, because they do not apply to other accesses.
        """
        dtype = ir.widest_type(buffer.shape)
        mapping = with_index_type(self.index_map, dtype)
        if len(mapping.initial) != buffer.ndim:
            state.fail(
                f"the map takes {len(mapping.initial)} indices, {buffer.name} has "
                f"{buffer.ndim} dimensions",
                code="BW324",
                guilty=[block],
                help="give the map one parameter per dimension of the buffer, for "
                "example lambda i, j: (j, i)",
            )
        analyzer = state.analyzer(owner.body)
        domains = mapping.domains(buffer.shape)
        largest = MOST_COUNTED if self.assume_injective_transform else 0
        why = why_not_injective(mapping.final, domains, analyzer, largest)
        if why:
            state.fail(
                f"the index map is not one to one: {why}",
                code="BW324",
                guilty=[block],
                help="map each element to a different index; "
                "assume_injective_transform=True checks the map by enumerating every index",
            )
        shape: list[ir.Expr] = []
        for span in spans(mapping.final, domains, analyzer):
            if span is None or not analyzer.prove(ir.GE(*ir.match_types(span[0], 0))):
                state.fail(
                    "the index map leads to negative indices, or to indices without a known bound",
                    code="BW324",
                    guilty=[block],
                    help="use a map whose results are nonnegative and bounded by the shape",
                )
            shape.append(analyzer.simplify(span[1] + 1))
        return mapping, tuple(shape)

    def _gaps(
        self,
        state: StepState,
        block: ir.Block,
        owner: ir.Block,
        buffer: ir.Buffer,
        mapping: IndexMap,
        shape: tuple[ir.Expr, ...],
    ) -> tuple[IndexMap, ir.Expr] | None:
        """Return the inverse map and the condition under which it is undefined (padding).

        None if every new element has an old one.
        """
        analyzer = state.analyzer(owner.body)
        try:
            inverse, outside = mapping.non_surjective_inverse(buffer.shape, analyzer)
        except IterMapError as error:
            places = all_places(mapping.final, mapping.domains(buffer.shape), MOST_COUNTED)
            sizes = [ir.const_int(n) for n in shape]
            full = math.prod(n for n in sizes if n is not None) if None not in sizes else -1
            if places is not None and places[0].size == full:
                return None
            state.fail(
                f"the inverse of the map, which locates the padding, is not known: {error.reason}",
                code="BW324",
                guilty=[block],
                help="build the map from sums, // and % of the indices by "
                "constants, or choose sizes that leave no padding",
            )
        if ir.is_const_int(outside, 0):
            return None
        if self.pad_value is None:
            fresh, old = (", ".join(map(expr_text, s)) for s in (shape, buffer.shape))
            zero = "0.0" if buffer.dtype.is_float else "0"
            state.fail(
                f"the new shape ({fresh}) has padding: no element of {buffer.name}, of shape "
                f"({old}), maps to it, and the call does not give its value",
                code="BW324",
                guilty=[block, buffer],
                help=f"transform_layout(…, index_map, pad_value={zero}) pads with {zero}: "
                f"{who_pads(state, owner, buffer)}; or use sizes in the map that divide "
                f"those of {buffer.name}",
            )
        problem = _pad_problem(self.pad_value, buffer.dtype, len(shape))
        if problem is not None:
            state.fail(
                problem,
                code="BW324",
                guilty=[block],
                help="give a number, or a function such as lambda i, j: 0.0 of the new indices",
            )
        return inverse, outside

    def _pad_values(self, fresh: ir.Buffer) -> IndexMap:
        """Return the value of the padding as a function of the new indices."""
        dtype = ir.widest_type(fresh.shape)
        if isinstance(self.pad_value, IndexMap):
            typed = with_index_type(IndexMap(self.pad_value.initial, ()), dtype)
            pairs = zip(self.pad_value.initial, typed.initial, strict=True)
            renamed = {a: ir.cast_to(b, a.type) for a, b in pairs}
            value = ir.substitute(self.pad_value.final[0], renamed)
            value = ir.cast_to(value, fresh.dtype.with_lanes(value.dtype.lanes))
            if value.dtype.lanes < fresh.dtype.lanes:
                value = ir.Broadcast(value, fresh.dtype.lanes)
            return IndexMap(typed.initial, (value,))
        variables = tuple(ir.Var(f"i{k}", dtype) for k in range(fresh.ndim))
        return IndexMap(variables, (ir.const(cast("float", self.pad_value), fresh.dtype),))


def _pad_problem(pad: int | float | bool | IndexMap, dtype: ir.DType, rank: int) -> str | None:
    """Why a value cannot fill the padding of a buffer; None if it can."""
    if isinstance(pad, IndexMap):
        (value,) = pad.final
        loads = any(isinstance(n, ir.BufferLoad) for n in ir.walk(value))
        if len(pad.initial) != rank or loads:
            return f"pad_value must be a function of the {rank} new indices that reads no memory"
        if value.dtype.is_handle or value.dtype.lanes not in (1, dtype.lanes):
            return f"pad_value returns {value.dtype}, but the elements are {dtype}"
        return None
    if dtype.is_int and not (
        math.isfinite(pad) and pad == int(pad) and dtype.min_value <= pad <= dtype.max_value
    ):
        return f"pad_value {pad} is not a number of type {dtype.element}"
    return None
