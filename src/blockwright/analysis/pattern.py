"""Compute patterns of tensor programs, which determine how operators may be fused.

The pattern is derived from the program alone (index expressions and block iterators), never from an
operator name, so hand-written programs fuse like generated ones. The patterns and their order are
those of the Relax fusion pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from enum import IntEnum
from itertools import combinations, pairwise

from blockwright import ir
from blockwright.analysis.dataflow.overlap import apart
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.reduction.reducer import Reduction, find_reduction
from blockwright.analysis.sole_blocks import sole_blocks
from blockwright.arith import Analyzer


class Pattern(IntEnum):
    """Compute patterns, from most to least restricted; a program has the maximum of its blocks."""

    ElementWise = 0
    Broadcast = 1
    Injective = 2
    CommReduce = 3
    OutputEwiseFusible = 4
    Opaque = 8

    def __str__(self) -> str:
        return self.name


def compute_pattern(func: ir.PrimFunc) -> Pattern:
    """The pattern of a whole program.

    If a final block only rearranges the results of preceding reductions (softmax, layer norm), the
    program is OutputEwiseFusible: elementwise consumers can be fused. Several blocks that write
    parts of one buffer (concatenation) are Injective, or Opaque if the parts may overlap. A program
    that does anything outside of these blocks is Opaque.
    """
    if not isinstance(func.body, ir.BlockRealize):
        return Pattern.Opaque
    outputs = set(func.buffers)
    kind = Pattern.ElementWise
    result = sole_blocks(func)
    if not result:
        return Pattern.Opaque
    for block in result:
        here = block_pattern(block)
        writes_output = any(region.buffer in outputs for region in block.writes)
        if here <= Pattern.Injective and kind is Pattern.CommReduce and writes_output:
            kind = Pattern.OutputEwiseFusible
        else:
            kind = max(kind, here)
    joined = joined_buffers(result)
    if joined:
        parts_apart = all(stores_apart(blocks, symbol_facts(func)) for blocks in joined.values())
        kind = max(kind, Pattern.Injective if parts_apart else Pattern.Opaque)
    return kind


def joined_buffers(found: Sequence[ir.Block]) -> dict[ir.Buffer, list[ir.Block]]:
    """Buffers written by several of these blocks, with those blocks."""
    writers: dict[ir.Buffer, list[ir.Block]] = {}
    for block in found:
        for buffer in dict.fromkeys(region.buffer for region in block.writes):
            writers.setdefault(buffer, []).append(block)
    return {buffer: blocks for buffer, blocks in writers.items() if len(blocks) > 1}


def stores_apart(blocks: Sequence[ir.Block], analyzer: Analyzer) -> bool:
    """Whether no two blocks, each a single store to one buffer, write a common element."""
    boxes: list[ir.BufferRegion] = []
    for block in blocks:
        store = block.body
        if not isinstance(store, ir.BufferStore):
            return False
        if boxes and store.buffer is not boxes[0].buffer:
            return False  # a view of it
        domains = {it.var: it.dom for it in block.iter_vars}
        boxes.append(
            ir.BufferRegion(store.buffer, tuple(_range(index, domains) for index in store.indices))
        )
    return all(apart(a, b, analyzer) for a, b in combinations(boxes, 2))


def _range(index: ir.Expr, domains: dict[ir.Var, ir.Range]) -> ir.Range:
    """Range of an index of the form iterator + offset, or of a constant index."""
    axis, offset = _axis_of(index, domains.keys())
    if axis is None:
        return ir.point(index)
    domain = domains[axis]
    return ir.Range(ir.add(domain.min, offset), domain.extent)


def _axis_of(index: ir.Expr, iterators: Set[ir.Var]) -> tuple[ir.Var | None, ir.Expr]:
    """(iterator, offset) of an index `iterator + offset`; (None, index) for any other index."""
    if isinstance(index, ir.Var) and index in iterators:
        return index, ir.const(0, index.dtype)
    if isinstance(index, ir.Add):
        for axis, offset in ((index.a, index.b), (index.b, index.a)):
            if isinstance(axis, ir.Var) and axis in iterators:
                return axis, offset
    return None, index


def block_pattern(block: ir.Block) -> Pattern:
    """The pattern of one leaf block: a single store, or a reduction with its init statement."""
    stores = ir.collect(block.body, ir.BufferStore)
    reduce_axes = [it.iter_type is ir.IterType.REDUCE for it in block.iter_vars]
    if any(it.iter_type in (ir.IterType.SCAN, ir.IterType.OPAQUE) for it in block.iter_vars):
        return Pattern.Opaque
    if len(stores) != 1 or stores[0] is not block.body:
        tuples = any(reduce_axes) and isinstance(find_reduction(block), Reduction)
        return _axes_in_order(block) if tuples else Pattern.Opaque
    store = stores[0]
    loads = ir.collect(store.value, ir.BufferLoad)
    if any(reduce_axes):
        return _reduction(block, store)
    if any(isinstance(n, ir.Call) and ir.op_row(n.op).kind == "effect" for n in ir.walk(store)):
        return Pattern.Opaque
    if any(load.buffer is store.buffer for load in loads):
        return Pattern.Opaque
    return _index_pattern(block, store, loads)


def _index_pattern(block: ir.Block, store: ir.BufferStore, loads: list[ir.BufferLoad]) -> Pattern:
    """Classify a block by its only store, such as `C[vi, 0]` or a slice `C[vi + 10, vj]`."""
    iterators = {it.var for it in block.iter_vars}
    symbols = _shape_symbols(store)
    axes: list[ir.Var] = []
    shifted = False
    for index in store.indices:
        axis, offset = _axis_of(index, iterators)
        if axis is None:
            if not isinstance(index, ir.IntImm):
                return Pattern.Opaque
            continue
        axes.append(axis)
        shifted = shifted or not ir.is_const_int(offset, 0)
        for load in loads:
            symbols |= _shape_symbols(load)
        if not symbols.issuperset(ir.collect(offset, ir.Var)) or ir.collect(offset, ir.BufferLoad):
            return Pattern.Opaque
    if len(set(axes)) != len(axes):
        return Pattern.Opaque
    if shifted:
        used = {v for load in loads for i in load.indices for v in ir.collect(i, ir.Var)}
        return Pattern.Injective if used <= symbols | set(axes) else Pattern.Opaque
    kind, elementwise = Pattern.ElementWise, False
    for load in loads:
        here = _pair(store, load, axes)
        elementwise = elementwise or here is Pattern.ElementWise
        kind = max(kind, here)
    return Pattern.ElementWise if kind is Pattern.Broadcast and elementwise else kind


def _pair(store: ir.BufferStore, load: ir.BufferLoad, axes: list[ir.Var]) -> Pattern:
    """Classify a load by how its indices relate to those of the store."""
    if len(load.indices) == len(store.indices) and all(
        a is b or _same_constant(a, b) for a, b in zip(load.indices, store.indices, strict=True)
    ):
        return Pattern.ElementWise
    remaining = iter(axes)
    plain = all(isinstance(i, ir.IntImm) or _advance(remaining, i) for i in load.indices)
    if plain:
        return Pattern.Broadcast
    known = set(axes)
    used = {v for i in load.indices for v in ir.collect(i, ir.Var)}
    iterators = used - known - _shape_symbols(load) - _shape_symbols(store)
    return Pattern.Opaque if iterators else Pattern.Injective


def _same_constant(a: ir.Expr, b: ir.Expr) -> bool:
    return isinstance(a, ir.IntImm) and isinstance(b, ir.IntImm) and a.value == b.value


def _advance(remaining: Iterator[ir.Var], index: ir.Expr) -> bool:
    """Whether `index` is one of the remaining axes; consumes the axes before it."""
    return any(axis is index for axis in remaining)


def _shape_symbols(access: ir.BufferLoad | ir.BufferStore) -> set[ir.Var]:
    buffers = {access.buffer}
    for node in ir.walk(access):
        if isinstance(node, ir.BufferLoad):
            buffers.add(node.buffer)
    return {v for b in buffers for d in b.shape for v in ir.collect(d, ir.Var)}


def _reduction(block: ir.Block, store: ir.BufferStore) -> Pattern:
    if _is_multiply_add(store):
        return Pattern.OutputEwiseFusible
    return _axes_in_order(block)


def _axes_in_order(block: ir.Block) -> Pattern:
    """CommReduce if the reduction axes come last, else Opaque."""
    kinds = [it.iter_type is ir.IterType.REDUCE for it in block.iter_vars]
    if any(a and not b for a, b in pairwise(kinds)):
        return Pattern.Opaque  # a reduction axis before a spatial one
    return Pattern.CommReduce


def _is_multiply_add(store: ir.BufferStore) -> bool:
    """`C[...] = C[...] + a * b` with both factors read from buffers."""
    value = store.value
    if not isinstance(value, ir.Add):
        return False
    for old, term in ((value.a, value.b), (value.b, value.a)):
        if isinstance(old, ir.BufferLoad) and old.buffer is store.buffer:
            product = _uncast(term)
            return isinstance(product, ir.Mul) and all(
                isinstance(_uncast(f), ir.BufferLoad) for f in (product.a, product.b)
            )
    return False


def _uncast(node: ir.Expr) -> ir.Expr:
    while isinstance(node, ir.Cast):
        node = node.value
    return node
