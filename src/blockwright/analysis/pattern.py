"""Compute patterns of tensor programs: how a program may be fused with its neighbours.

The pattern comes from the program alone (index expressions and block iterators), never from an
operator name, so hand-written programs fuse like generated ones. The classes and their order are
those of the Relax fusion pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise

from blockwright import ir
from blockwright.analysis.reducer import Reduction, find_reduction


class Pattern(IntEnum):
    """Compute patterns, the stricter ones first; a program has the largest of its blocks."""

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

    A last block that only rearranges what reductions before it made (softmax, layer norm) counts
    as OutputEwiseFusible: what follows it element by element can join it.
    """
    if not isinstance(func.body, ir.BlockRealize):
        return Pattern.Opaque
    outputs = set(func.buffers)
    kind = Pattern.ElementWise
    found = _leaf_blocks(func.root.body)
    if not found:
        return Pattern.Opaque
    for block in found:
        here = block_pattern(block)
        writes_output = any(region.buffer in outputs for region in block.writes)
        if here <= Pattern.Injective and kind is Pattern.CommReduce and writes_output:
            kind = Pattern.OutputEwiseFusible
        else:
            kind = max(kind, here)
    return kind


def block_pattern(block: ir.Block) -> Pattern:
    """The pattern of one leaf block: a single store, or a reduction with its initial value."""
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
    return _index_pattern(store, loads)


def _leaf_blocks(stmt: ir.Stmt) -> list[ir.Block]:
    """Blocks without inner blocks; a statement that writes outside blocks counts as none."""
    found = ir.blocks(stmt)
    return [b for b in found if not ir.collect(b.body, ir.BlockRealize)]


def _index_pattern(store: ir.BufferStore, loads: list[ir.BufferLoad]) -> Pattern:
    axes = [i for i in store.indices if isinstance(i, ir.Var)]
    constants = all(isinstance(i, (ir.Var, ir.IntImm)) for i in store.indices)
    if not constants or len(set(axes)) != len(axes):
        return Pattern.Opaque
    kind, elementwise = Pattern.ElementWise, False
    for load in loads:
        here = _pair(store, load, axes)
        elementwise = elementwise or here is Pattern.ElementWise
        kind = max(kind, here)
    return Pattern.ElementWise if kind is Pattern.Broadcast and elementwise else kind


def _pair(store: ir.BufferStore, load: ir.BufferLoad, axes: list[ir.Var]) -> Pattern:
    """How a load's indices relate to the store's."""
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
    """Whether `index` is one of the axes still to come; takes those before it."""
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
    """A reduction, if its reduction axes come last."""
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
