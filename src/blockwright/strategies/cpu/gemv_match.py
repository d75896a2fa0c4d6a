"""Match of the GEMV strategy: products of a few rows with a matrix that is read once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.strategies.cpu.micro_kernel import MicroKernel, micro_kernel
from blockwright.strategies.cpu.register_tiling import max_skinny_rows
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    contraction_of,
    depth_groups,
    extent_of,
    is_constant,
    is_spatial,
    leaf_blocks,
    stride,
    widens_factors,
    windowed,
)
from blockwright.target import Target

_GATHERED = 3  # rows up to which vectors of strided elements are worth gathering
_TILES = 8  # passes of dot products over matrix rows in cache, at most


class Skinny(msgspec.Struct, frozen=True, eq=False):
    """A contraction with the block's iterators by role.

    Attributes:
        matrix: the operand that is read once.
        few, many: the rows of the other operand, and of the matrix.
        dots: whether the matrix is contiguous along the reduction.
    """

    matrix: ir.Buffer
    batch: tuple[int, ...]
    few: tuple[int, ...]
    many: tuple[int, ...]
    k: tuple[int, ...]
    dots: bool


def skinny(block: ir.Block, target: Target) -> Skinny | str:
    """Match a skinny product; return the reason as text if it is not one."""
    facts = contraction_of(block)
    if facts is None:
        return "no contraction"
    largest = _TILES * max_skinny_rows(target, block.writes[0].buffer.dtype.bits)
    sides = [(facts.m, facts.n, facts.b), (facts.n, facts.m, facts.a)]
    sides.sort(key=lambda side: extent_of(block, side[0]) or largest + 1)
    few, count, matrix = sides[0]
    if (extent_of(block, few) or largest + 1) > largest:
        return f"both operands have more than {largest // _TILES} rows"
    if extent_of(block, facts.k) == 1 or extent_of(block, count) == 1:
        return "there is no matrix"
    if len(long_axes(block, count)) > 1:
        return "the rows of the matrix span several axes"
    if not windowed(block).isdisjoint((facts.a, facts.b)):
        return "a window slides over an operand"
    loads = [n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is matrix]
    address = address_of(loads[0], block)
    near = {p for p in (*count, *facts.k) if stride(address, block.iter_vars[p]) == 1}
    if not near:
        return "no axis of the matrix is contiguous"
    dots = not near.isdisjoint(facts.k)
    rows = extent_of(block, few) or 1
    # The GEMM strategy would pack a right operand into panels; a left one it reads in place.
    saves_panels = dots and matrix is facts.b and len(long_axes(block, few)) == 1
    if rows * (1 if saves_panels else _TILES) > largest:
        return f"both operands have more than {largest // _TILES} rows"
    if dots and rows > _GATHERED and not _contiguous(block, facts, matrix):
        return f"more than {_GATHERED} rows of the other operand are not contiguous"
    return Skinny(matrix, facts.batch, few, count, facts.k, dots)


def _contiguous(block: ir.Block, facts: Contraction, matrix: ir.Buffer) -> bool:
    """Whether the operand that meets the matrix is contiguous along the reduction."""
    other = facts.a if matrix is facts.b else facts.b
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is other)
    address = address_of(load, block)
    return any(stride(address, block.iter_vars[p]) == 1 for p in facts.k)


def long_axes(block: ir.Block, axes: Sequence[int]) -> list[int]:
    """The axes of more than one element."""
    return [p for p in axes if not ir.is_const_int(block.iter_vars[p].dom.extent, 1)]


def why_not(func: ir.PrimFunc, target: Target) -> str:
    matches = leaf_blocks(func)
    contractions = [b for b in matches if contraction_of(b) is not None]
    if len(contractions) != 1:
        return f"{len(contractions)} contractions instead of one"
    (product,) = contractions
    if not all(is_spatial(b) for b in matches if b is not product):
        return "other blocks reduce too"
    roles = skinny(product, target)
    if isinstance(roles, str):
        return roles
    if is_constant(func, roles.matrix):
        return "the matrix is a constant: it is packed into panels at compile time"
    facts = contraction_of(product)
    assert facts is not None
    result = product.writes[0].buffer.dtype
    if not result.is_float or micro_kernel(target, facts.a.dtype, facts.b.dtype, result) is None:
        types = [x.name for x in (facts.a.dtype, facts.b.dtype, result)]
        return "no micro-kernel for {} x {} -> {}".format(*types)
    depth = extent_of(product, roles.k)
    if roles.dots and depth is not None and depth < 2 * target.lanes(result):
        return "the reduction is shorter than two vectors"
    along = msgspec.structs.replace(facts, a=roles.matrix)
    if roles.dots and len(depth_groups(product, along)) > 1:
        return "the rows of the matrix are not contiguous"
    return ""


def dot_kernel(block: ir.Block, target: Target) -> MicroKernel | None:
    """The micro-kernel of the dot product that multiplies the elements of a block, if any."""
    facts = contraction_of(block)
    if facts is None or not widens_factors(block):
        return None
    kernel = micro_kernel(target, facts.a.dtype, facts.b.dtype, block.writes[0].buffer.dtype)
    return kernel if kernel is not None and kernel.dot else None
