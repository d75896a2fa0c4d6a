"""What rules look for in a program: its leaf blocks, contractions, pure copies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap


def leaf_blocks(func: ir.PrimFunc) -> list[ir.Block]:
    """Blocks directly under the root, in program order; empty for any other structure."""
    if not isinstance(func.body, ir.BlockRealize):
        return []
    found = [b for b in ir.blocks(func.body) if b is not func.root]
    nested = any(ir.collect(b.body, ir.BlockRealize) for b in found)
    return [] if nested else found


def has_empty_axis(func: ir.PrimFunc) -> bool:
    """Whether some block certainly runs no iteration: there is nothing to schedule."""
    return any(ir.is_const_int(it.dom.extent, 0) for b in leaf_blocks(func) for it in b.iter_vars)


def is_spatial(block: ir.Block) -> bool:
    """Whether all iterators are spatial and there is no initial value."""
    return block.init is None and all(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)


def windowed(block: ir.Block) -> set[ir.Buffer]:
    """Buffers that a block reads through a window: at sums of several of its iterators."""
    own = {it.var for it in block.iter_vars}
    return {
        load.buffer
        for load in ir.collect(block.body, ir.BufferLoad)
        if any(len(own.intersection(ir.free_vars(i))) > 1 for i in load.indices)
    }


def uncast(expr: ir.Expr) -> ir.Expr:
    """The expression below casts."""
    while isinstance(expr, ir.Cast):
        expr = expr.value
    return expr


class Contraction(msgspec.Struct, frozen=True, eq=False):
    """`C[batch, m, n] += A[batch, m, k] * B[batch, n, k]` found in a block.

    Attributes:
        a, b: the operands' buffers, A being the one that shares the leading result axes.
        batch, m, n, k: positions of the block's iterators by role, in order.
    """

    a: ir.Buffer
    b: ir.Buffer
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def contraction_of(block: ir.Block) -> Contraction | None:
    """The contraction a block computes, if it is one of two different buffers."""
    store, init = block.body, block.init
    if not isinstance(store, ir.BufferStore) or not isinstance(init, ir.BufferStore):
        return None
    if not isinstance(store.value, ir.Add) or not isinstance(init.value, ir.FloatImm):
        return None
    old, product = store.value.a, uncast(store.value.b)
    if not isinstance(old, ir.BufferLoad) or old.buffer is not store.buffer:
        return None
    if not isinstance(product, ir.Mul):
        return None
    a, b = uncast(product.a), uncast(product.b)
    if not isinstance(a, ir.BufferLoad) or not isinstance(b, ir.BufferLoad):
        return None
    if a.buffer is b.buffer or store.buffer in (a.buffer, b.buffer):
        return None
    return _classify(block, store, a, b)


def _classify(
    block: ir.Block, store: ir.BufferStore, a: ir.BufferLoad, b: ir.BufferLoad
) -> Contraction | None:
    def uses(access: ir.BufferLoad | ir.BufferStore, var: ir.Var) -> bool:
        return any(ir.uses_var(i, var) for i in access.indices)

    roles: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for position, it in enumerate(block.iter_vars):
        in_a, in_b, in_c = uses(a, it.var), uses(b, it.var), uses(store, it.var)
        key = {
            (True, True, True): "batch",
            (True, False, True): "m",
            (False, True, True): "n",
            (True, True, False): "k",
        }.get((in_a, in_b, in_c))
        if key is None:
            return None
        roles[key].append(position)
    if not roles["m"] or not roles["n"] or not roles["k"]:
        return None
    left, right = a.buffer, b.buffer
    if roles["m"][0] > roles["n"][0]:  # rows are what comes first in the result
        left, right = right, left
        roles["m"], roles["n"] = roles["n"], roles["m"]
    return Contraction(left, right, *(tuple(roles[r]) for r in ("batch", "m", "n", "k")))


def extent_of(block: ir.Block, positions: Sequence[int]) -> int | None:
    """Product of the extents of some iterators when all are constant."""
    total = 1
    for position in positions:
        size = ir.const_int(block.iter_vars[position].dom.extent)
        if size is None:
            return None
        total *= size
    return total


def fusing_map(extents: Sequence[ir.Expr], groups: Sequence[Sequence[int]]) -> IndexMap:
    """The index map that fuses each group of positions, row-major, into one index."""
    dtype = extents[0].dtype if extents else ir.dtype_of("int64")
    variables = tuple(ir.Var(f"i{k}", dtype) for k in range(len(extents)))
    final: list[ir.Expr] = []
    for group in groups:
        index: ir.Expr = ir.const(0, dtype)
        for position in group:
            index = index * extents[position] + variables[position]
        final.append(index)
    return IndexMap(variables, tuple(final))


def position_of(buffer: ir.Buffer, regions: Sequence[ir.BufferRegion]) -> int:
    """Where a buffer stands among a block's regions."""
    return next(k for k, region in enumerate(regions) if region.buffer is buffer)
