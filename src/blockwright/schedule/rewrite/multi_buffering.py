"""Multi-buffering for pipelined loops: iteration `i` uses version `i mod count` of a buffer.

Each version stores the footprint of one iteration: dimension `d` shrinks to the extent `e` of the
iteration's bounding box, and an index becomes `index % e`. The indices of one iteration lie within
a range of `e`, so that distinct indices stay distinct.

A block that passes a buffer to a function as a tensor passes a view of the version instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blockwright import ir
from blockwright.analysis import AlignRow, align_rows
from blockwright.analysis.access.layout import span
from blockwright.analysis.access.regions import block_access_regions
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import Analyzer, IntervalSet, eval_set, union
from blockwright.ir.annotations import DIM_ALIGN, DOUBLE_BUFFER
from blockwright.schedule.engine.state import StepState


class Version(msgspec.Struct, frozen=True, eq=False):
    """The multi-versioned replacement of a buffer.

    Attributes:
        buffer: the new buffer, with a leading dimension if `count` is more than 1.
        count: number of versions.
        folded: per dimension of the old buffer, the modulus of its indices, or None.
    """

    buffer: ir.Buffer
    count: int
    folded: tuple[ir.Expr | None, ...]


def versioned(state: StepState, loop: ir.For, counts: Mapping[ir.Buffer, int]) -> dict[
    ir.Buffer, Version
]:  # fmt: skip
    """The replacement of each buffer, with the number of versions in `counts`."""
    return {buffer: _version(state, loop, buffer, n) for buffer, n in counts.items()}


def _version(state: StepState, loop: ir.For, buffer: ir.Buffer, count: int) -> Version:
    folded = _foldable(state, loop, buffer)
    around = state.analyzer(loop)
    shape = tuple(
        dim if e is None else ir.cast_to(nonnegative(e, around), dim.dtype)
        for e, dim in zip(folded, buffer.shape, strict=True)
    )
    changes: dict[str, Any] = {"shape": shape}
    if count > 1:
        dtype = shape[0].dtype if shape else loop.loop_var.type
        changes["shape"] = (ir.const(count, dtype), *shape)
        changes["axis_separators"] = tuple(a + 1 for a in buffer.axis_separators)
        if buffer.strides:
            whole = around.simplify(span(buffer.shape, buffer.strides))
            changes["strides"] = (nonnegative(whole, around), *buffer.strides)
    return Version(buffer.replace(**changes), count, folded)


# -------------------------------------------------------------------- footprint of one iteration
def _foldable(state: StepState, loop: ir.For, buffer: ir.Buffer) -> tuple[ir.Expr | None, ...]:
    """Per dimension, the extent of one iteration's footprint.

    None if the footprint is empty or the whole dimension, or if some access cannot be expressed
    modulo the extent.
    """
    if buffer.strides or buffer.offset is not None:
        return (None,) * buffer.ndim
    result: list[ir.Expr | None] = []
    around = state.analyzer(loop)
    for dim, (extent, size) in enumerate(
        zip(_touched(state, loop, buffer), buffer.shape, strict=True)
    ):
        smaller = (
            extent is not None
            and not around.prove(ir.LE(extent, ir.const(0, extent.dtype)))
            and not around.prove(ir.GE(*ir.match_types(extent, size)))
        )
        fits = smaller and extent is not None and _expressible(state, loop, buffer, dim, extent)
        result.append(extent if fits else None)
    return tuple(result)


def _touched(state: StepState, loop: ir.For, buffer: ir.Buffer) -> list[ir.Expr | None]:
    """Per dimension, an upper bound of one iteration's footprint that holds for every iteration."""
    flow = state.flow_at(loop)
    around = [*state.tree.loops_above(loop), loop]
    analyzer = state.analyzer(loop.body)
    domains = {f.loop_var: f.dom for f in around}
    boxes = [
        flow.region_under(around, block, region, analyzer, tight=False).region
        for block in state.tree.child_blocks(loop)
        for region in (*block.reads, *block.writes)
        if region.buffer is buffer
    ]
    result: list[ir.Expr | None] = []
    for parts in zip(*boxes, strict=True):
        hull = union([IntervalSet.of_range(p) for p in parts], analyzer).range(analyzer)
        largest = None if hull is None else eval_set(hull.extent, domains, analyzer).max
        fixed = largest is not None and not ir.uses_var(largest, set(domains))
        result.append(analyzer.simplify(largest) if fixed and largest is not None else None)
    return result


def _expressible(
    state: StepState, loop: ir.For, buffer: ir.Buffer, dim: int, extent: ir.Expr
) -> bool:
    """Whether every access and region of the buffer can be reduced modulo an extent."""
    for top in state.tree.child_blocks(loop):
        analyzer = state.analyzer(top)
        for it in (it for block in ir.blocks(top) for it in block.iter_vars):
            analyzer.bind(it.var, it.dom)
        if not all(_fits(node, buffer, dim, extent, analyzer) for node in ir.walk(top)):
            return False
    return True


def _fits(node: ir.Node, buffer: ir.Buffer, dim: int, extent: ir.Expr, analyzer: Analyzer) -> bool:
    """Whether one node, if it accesses the buffer, can do so modulo an extent."""
    match node:
        case ir.Call(op="address_of" | "tensor"):
            return not any(isinstance(a, ir.BufferLoad) and a.buffer is buffer for a in node.args)
        case ir.BufferLoad() | ir.BufferStore():
            return node.buffer is not buffer or node.indices[dim].dtype.is_scalar
        case ir.BufferRegion():
            same = node.buffer is buffer
            return not same or folded_range(node.region[dim], extent, analyzer) is not None
        case _:
            return True


def folded_range(rng: ir.Range, extent: ir.Expr, analyzer: Analyzer) -> ir.Range | None:
    """A range modulo an extent; None if it may wrap around or be empty."""
    low = ir.floormod(*ir.match_types(rng.min, extent))
    if not ir.is_const_int(rng.extent, 1):
        end = ir.add(*ir.match_types(low, rng.extent))
        some = ir.GE(rng.extent, ir.const(1, rng.extent.dtype))
        if not analyzer.prove(ir.all_of([ir.LE(*ir.match_types(end, extent)), some])):
            return None
    return ir.Range(analyzer.simplify(low), rng.extent)


# ------------------------------------------------------------------------------------- rewriting
class UseVersions(ir.Mutator):
    """Redirects accesses inside a pipelined loop to the buffer version of their iteration.

    Inside a block the version is computed from an iterator that determines the iteration number; a
    block without such an iterator gets an additional one, `version`.

    Args:
        state: the program before the step.
        loop: the pipelined loop.
        versions: old buffer → replacement.
        forward: receives the blocks that change (old → new).
    """

    def __init__(
        self,
        state: StepState,
        loop: ir.For,
        versions: Mapping[ir.Buffer, Version],
        forward: dict[ir.Block, ir.Block],
    ) -> None:
        super().__init__()
        self.state, self.loop, self.versions, self.forward = state, loop, versions, forward
        self.analyzer = state.analyzer(loop.body)
        self.numbers: dict[int, ir.Expr] | None = None  # count → version; None outside blocks
        self.views: dict[ir.Buffer, ir.Buffer] = {}  # buffer → view of its version in this block

    def rewrite_Var(self, node: ir.Var) -> ir.Var:
        return node

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> Any:
        if self.numbers is not None:
            return self.descend(node)
        touched = {r.buffer for r in (*node.block.reads, *node.block.writes)}
        counts = {v.count for b, v in self.versions.items() if b in touched and v.count > 1}
        self.analyzer = self.state.analyzer(node)
        self.numbers, extra = {}, list[tuple[ir.IterVar, ir.Expr]]()
        self._memo = {}  # rewrites depend on the block
        for count in sorted(counts):
            number = self.analyzer.simplify((self.loop.loop_var - self.loop.min) % count)
            own = self._from_iterators(node, number, count)
            if own is None:
                var = ir.Var("version", self.loop.loop_var.type)
                dom = ir.Range(ir.const(0, var.type), ir.const(count, var.type))
                extra.append((ir.IterVar(var, dom, ir.IterType.OPAQUE), number))
                own = var
            self.numbers[count] = own
        for it in (
            *(it for b in ir.blocks(node.block) for it in b.iter_vars),
            *(it for it, _ in extra),
        ):
            self.analyzer.bind(it.var, it.dom)
        block = self(node.block)
        self.numbers, self._memo = None, {}
        if extra:
            block = block.replace(iter_vars=(*block.iter_vars, *(it for it, _ in extra)))
            self.forward[node.block] = block
        values = (*node.iter_values, *(value for _, value in extra))
        return node.replace(block=block, iter_values=values)

    def _from_iterators(self, node: ir.BlockRealize, number: ir.Expr, count: int) -> ir.Expr | None:
        """The version as an expression of one of the block's iterators; None if there is none."""
        var = self.loop.loop_var
        for it, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if not ir.uses_var(value, var):
                continue
            after = ir.substitute(value, {var: ir.add(var, 1)})
            step = ir.const_int(self.analyzer.simplify(ir.sub(after, value)))
            if step is None or step < 1:
                continue
            first = ir.cast_to(self.loop.min, it.var.type)
            for low in (ir.const(0, it.var.type), first):
                tile = ir.sub(ir.floordiv(it.var, step), low)
                own = ir.floormod(tile, count)
                here = ir.substitute(own, {it.var: ir.cast_to(value, it.var.type)})
                if self.analyzer.prove_equal(*ir.match_types(here, number)):
                    inside = Analyzer({it.var: it.dom})
                    return inside.simplify(own)
        return None

    def rewrite_Block(self, node: ir.Block) -> Any:
        outside, self.views = self.views, {}
        new = self.descend(node)
        if self.views:
            shown = (self._shown(buffer, view) for buffer, view in self.views.items())
            new = new.replace(match_buffers=(*new.match_buffers, *shown))
        self.views = outside
        notes = {k: v for k, v in node.annotations.items() if k != DOUBLE_BUFFER}
        if DIM_ALIGN in notes:
            notes[DIM_ALIGN] = tuple(self._aligned(node, *row) for row in align_rows(node))
        if notes != node.annotations:
            new = new.replace(annotations=notes)
        if new is not node:
            new = self._restated(new)
            self.forward[node] = new
        return new

    def _restated(self, block: ir.Block) -> ir.Block:
        """Recompute the regions of folded buffers for a block with blocks or loops inside.

        The bounding box of the inner accesses modulo an extent may be larger than the block's own
        box modulo that extent.
        """
        folded = {v.buffer for v in self.versions.values() if any(e is not None for e in v.folded)}
        touched = {r.buffer for r in (*block.reads, *block.writes)}
        inside = (isinstance(n, (ir.Block, ir.For)) for n in ir.walk(block.body))
        if folded.isdisjoint(touched) or not any(inside):
            return block
        reads, writes = (
            {region.buffer: region for region in regions if region.buffer in folded}
            for regions in block_access_regions(block, self.analyzer)
        )
        return block.replace(
            reads=tuple(reads.get(r.buffer, r) for r in block.reads),
            writes=tuple(writes.get(r.buffer, r) for r in block.writes),
        )

    def _aligned(self, node: ir.Block, index: int, row: AlignRow) -> tuple[int, ...]:
        """An alignment annotation, with the dimension number of the new buffer."""
        version = self.versions.get(node.writes[index].buffer)
        moved = version is not None and version.count > 1
        return (index, row[0] + 1, *row[1:]) if moved else (index, *row)

    # ------------------------------------------------------------------ tensors
    def rewrite_Call(self, node: ir.Call) -> Any:
        place = node.args[0] if node.op == "tensor" else None
        version = self.versions.get(place.buffer) if isinstance(place, ir.BufferLoad) else None
        if not isinstance(place, ir.BufferLoad) or version is None or version.count == 1:
            return self.descend(node)
        old = place.buffer
        if old not in self.views:
            strides = tuple(ir.Var(f"s{k}", n.dtype) for k, n in enumerate(old.strides))
            name = f"{old.name}_version"
            self.views[old] = ir.Buffer(name, old.dtype, old.shape, strides, scope=old.scope)
        return ir.tensor_of(self.views[old])

    def _shown(self, buffer: ir.Buffer, view: ir.Buffer) -> ir.MatchBufferRegion:
        """The declaration of a view of the version that a block uses."""
        version = self.versions[buffer]
        region = (*map(ir.point, self._version(version)), *ir.full_region(buffer).region)
        return ir.MatchBufferRegion(view, ir.BufferRegion(version.buffer, region))

    # ------------------------------------------------------------------ accesses
    def _version(self, version: Version) -> tuple[ir.Expr, ...]:
        if version.count == 1:
            return ()
        assert self.numbers is not None  # buffers with versions are used only in blocks
        return (self.numbers[version.count],)

    def _access(self, node: ir.BufferLoad | ir.BufferStore) -> Any:
        new = self.descend(node)
        version = self.versions.get(node.buffer)
        if version is None:
            return new
        indices = [
            i if e is None else self.analyzer.simplify(ir.floormod(*ir.match_types(i, e)))
            for i, e in zip(new.indices, version.folded, strict=True)
        ]
        return new.replace(buffer=version.buffer, indices=(*self._version(version), *indices))

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return self._access(node)

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        return self._access(node)

    def rewrite_BufferRegion(self, node: ir.BufferRegion) -> Any:
        version = self.versions.get(node.buffer)
        if version is None:
            return self.descend(node)
        leading = [ir.point(n) for n in self._version(version)]
        ranges = [
            r if e is None else folded_range(r, e, self.analyzer)
            for r, e in zip(node.region, version.folded, strict=True)
        ]
        kept = [r for r in ranges if r is not None]
        assert len(kept) == len(ranges)  # `_expressible` has checked this
        return ir.BufferRegion(version.buffer, (*leading, *kept))
