"""Matchers for block structure: leaf blocks, contractions, pure copies, memory strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from blockwright import ir
from blockwright.analysis import may_return
from blockwright.arith import IndexMap, simplify

# Function attribute: positions of parameters whose values are known at compile time.
CONSTANT_PARAMS = "tir.constant_params"
# The constant parameters that are in no cache at entry, because other programs run between calls.
UNCACHED_PARAMS = "tir.uncached_params"
# The constant parameters that are in no private cache (L1, L2) at entry.
OUTSIDE_PRIVATE_CACHE_PARAMS = "tir.outside_private_cache_params"


def is_constant(func: ir.PrimFunc, buffer: ir.Buffer) -> bool:
    """Whether a buffer is a compile-time constant: a parameter, or computed from such alone.

    Packing a constant buffer costs nothing at run time.
    """
    return _made_of(func, buffer, CONSTANT_PARAMS)


def is_uncached(func: ir.PrimFunc, buffer: ir.Buffer) -> bool:
    """Whether a buffer is in no cache at entry: an uncached parameter, or computed from such alone.

    Buffers computed from constants are computed at compile time, so they come from DRAM too.
    """
    return _made_of(func, buffer, UNCACHED_PARAMS)


def is_outside_private_cache(func: ir.PrimFunc, buffer: ir.Buffer) -> bool:
    """Whether a buffer is in no private cache (L1, L2) at entry; see `is_uncached`."""
    return _made_of(func, buffer, OUTSIDE_PRIVATE_CACHE_PARAMS)


def _made_of(func: ir.PrimFunc, buffer: ir.Buffer, kind: str) -> bool:
    if _is_param(func, buffer, kind):
        return True
    makers = [b for b in ir.blocks(func.body) if any(w.buffer is buffer for w in b.writes)]
    sources = {r.buffer for b in makers for r in b.reads} - {buffer}
    return bool(sources) and all(_made_of(func, source, kind) for source in sources)


def _is_param(func: ir.PrimFunc, buffer: ir.Buffer, kind: str) -> bool:
    return any(func.buffers[position] is buffer for position in func.attrs.get(kind, ()))


def leaf_blocks(func: ir.PrimFunc) -> list[ir.Block]:
    """Blocks directly under the root, in program order; empty for any other structure.

    Also empty if the program may return early: no step moves anything across a return.
    """
    return [*_leaf_blocks(func)]


@lru_cache(maxsize=64)  # every strategy calls it
def _leaf_blocks(func: ir.PrimFunc) -> tuple[ir.Block, ...]:
    if not isinstance(func.body, ir.BlockRealize) or may_return(func.body):
        return ()
    result = [b for b in ir.blocks(func.body) if b is not func.root]
    nested = any(ir.collect(b.body, ir.BlockRealize) for b in result)
    return () if nested else tuple(result)


def has_empty_axis(func: ir.PrimFunc) -> bool:
    """Whether some block has a constant trip count of zero: nothing to schedule."""
    return any(ir.is_const_int(it.dom.extent, 0) for b in leaf_blocks(func) for it in b.iter_vars)


def is_spatial(block: ir.Block) -> bool:
    """Whether all iterators are spatial and the block has no init statement."""
    return block.init is None and all(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)


def windowed(block: ir.Block) -> set[ir.Buffer]:
    """Buffers that a block reads through a window: their index is a sum of several iterators."""
    own = {it.var for it in block.iter_vars}
    return {
        load.buffer
        for load in ir.collect(block.body, ir.BufferLoad)
        if any(len(own.intersection(ir.free_vars(i))) > 1 for i in load.indices)
    }


def uncast(expr: ir.Expr) -> ir.Expr:
    """Strip the casts around an expression."""
    while isinstance(expr, ir.Cast):
        expr = expr.value
    return expr


class Contraction(msgspec.Struct, frozen=True, eq=False):
    """The contraction `C[batch, m, n] += A[batch, m, k] * B[batch, n, k]` matched in a block.

    Attributes:
        a, b: the operands' buffers. A shares the leading result axes.
        batch, m, n, k: positions of the block's iterators by role, in order.
    """

    a: ir.Buffer
    b: ir.Buffer
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def contraction_of(block: ir.Block, guarded: bool = False) -> Contraction | None:
    """Match the contraction of floats that a block computes.

    None unless it multiplies two different buffers. With `guarded`, the terms may be predicated:
    `T.Select(condition, a * b, neutral)`.
    """
    return _contraction(block, guarded) if _starts_with(block, ir.FloatImm) else None


def numeric_contraction_of(block: ir.Block) -> Contraction | None:
    """As `contraction_of`, of floats or integers."""
    return _contraction(block, False) if _starts_with(block, (ir.FloatImm, ir.IntImm)) else None


def widens_factors(block: ir.Block) -> bool:
    """Whether a contraction multiplies elements as they are, widened to the type of the sums.

    Dot-product instructions do. A product that is rounded to a narrow type is not one of theirs.
    """
    store = block.body
    assert isinstance(store, ir.BufferStore)
    assert isinstance(store.value, ir.Add)
    product = store.value.b
    return isinstance(product, ir.Mul) and all(
        isinstance(x, ir.Cast) and isinstance(x.value, ir.BufferLoad)
        for x in (product.a, product.b)
    )


def _starts_with(block: ir.Block, kinds: type[ir.Expr] | tuple[type[ir.Expr], ...]) -> bool:
    return isinstance(block.init, ir.BufferStore) and isinstance(block.init.value, kinds)


def _contraction(block: ir.Block, guarded: bool) -> Contraction | None:
    store = block.body
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, ir.Add):
        return None
    old, product = store.value.a, uncast(store.value.b)
    if guarded and isinstance(product, ir.Select):
        product = product.true_value
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
    if roles["m"][0] > roles["n"][0]:  # m is the axis that comes first in the result
        left, right = right, left
        roles["m"], roles["n"] = roles["n"], roles["m"]
    return Contraction(left, right, *(tuple(roles[r]) for r in ("batch", "m", "n", "k")))


def extent_of(block: ir.Block, positions: Sequence[int]) -> int | None:
    """Product of the extents of some iterators; None unless all are constant."""
    total = 1
    for position in positions:
        size = ir.const_int(block.iter_vars[position].dom.extent)
        if size is None:
            return None
        total *= size
    return total


def depth_groups(block: ir.Block, facts: Contraction) -> list[tuple[int, ...]]:
    """Group the reduction axes into axes along which the left operand's address is linear.

    The groups are in the memory order of the left operand, outermost first.

    A matrix product has one group. A convolution over (kh, kw, ci) of channels-last data has (kh)
    and (kw, ci), because a step to the next kw is a step over all ci, unless the kernel is dilated.
    """
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.a)
    address = address_of(load, block)
    order = sorted(facts.k, key=lambda p: -stride(address, block.iter_vars[p]))
    return linear_groups(block, [address], order)


def linear_groups(
    block: ir.Block, addresses: Sequence[ir.Expr], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Group adjacent iterators of `order` whose fusion keeps all addresses linear.

    Each group is one axis as far as memory is concerned.
    """
    groups: list[tuple[int, ...]] = []
    for position in reversed(order):
        merged = (position, *groups[0]) if groups else ()
        if merged and all(is_linear(address, block, merged) for address in addresses):
            groups[0] = merged
        else:
            groups.insert(0, (position,))
    return groups


def address_of(load: ir.BufferLoad, block: ir.Block) -> ir.Expr:
    """Row-major element offset of a load, in terms of the block's iterators."""
    address: ir.Expr = load.indices[0]
    for index, size in zip(load.indices[1:], load.buffer.shape[1:], strict=True):
        address = address * size + index
    return simplify(address, {it.var: it.dom for it in block.iter_vars})


def stride(address: ir.Expr, it: ir.IterVar) -> float:
    """Elements by which an address moves at the iterator's first step; infinite when unknown."""
    if ir.is_const_int(it.dom.extent, 1):
        return math.inf
    low, high = (ir.substitute(address, {it.var: v}) for v in (it.dom.min, it.dom.min + 1))
    step = ir.const_int(simplify(high - low))
    return math.inf if step is None else abs(step)


def is_linear(address: ir.Expr, block: ir.Block, group: tuple[int, ...]) -> bool:
    """Whether an address is linear in the fusion of some iterators."""
    iters = [block.iter_vars[p] for p in group]
    dtype = ir.widest_type(it.var for it in iters)
    total: ir.Expr = ir.const(1, dtype)
    fused = ir.Var("fused", dtype)
    values: dict[ir.Var, ir.Expr] = {}
    for it in reversed(iters):
        size = ir.cast_to(it.dom.extent, dtype)
        values[it.var] = ir.cast_to(fused // total % size, it.var.dtype)
        total = total * size
    ranges = {it.var: it.dom for it in block.iter_vars}
    ranges[fused] = ir.Range(ir.const(0, fused.dtype), total)
    result = simplify(ir.substitute(address, values), ranges)
    return not any(
        isinstance(n, ir.FloorDiv | ir.FloorMod) and ir.uses_var(n, fused) for n in ir.walk(result)
    )


def fusing_map(extents: Sequence[ir.Expr], groups: Sequence[Sequence[int]]) -> IndexMap:
    """The index map that fuses each group of positions, row-major, into one index."""
    dtype = ir.widest_type(extents)
    variables = tuple(ir.Var(f"i{k}", dtype) for k in range(len(extents)))
    final: list[ir.Expr] = []
    for group in groups:
        index: ir.Expr = ir.const(0, dtype)
        for position in group:
            index = index * ir.cast_to(extents[position], dtype) + variables[position]
        final.append(index)
    return IndexMap(variables, tuple(final))


def position_of(buffer: ir.Buffer, regions: Sequence[ir.BufferRegion]) -> int:
    """Position of a buffer among a block's regions."""
    return next(k for k, region in enumerate(regions) if region.buffer is buffer)
