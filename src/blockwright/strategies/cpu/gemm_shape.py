"""The shape of a GEMM, read from the block of a contraction."""

from __future__ import annotations

import math

from blockwright import ir
from blockwright.analysis.facts import symbol_facts
from blockwright.strategies.cpu.gemm_cost import GemmShape
from blockwright.strategies.cpu.micro_kernel import MicroKernel
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    extent_of,
    is_constant,
    is_outside_private_cache,
    is_uncached,
    stride,
    windowed,
)


def shape_of(
    func: ir.PrimFunc, block: ir.Block, facts: Contraction, kernel: MicroKernel
) -> GemmShape:
    """Extents, and the strides of the left operand along the last m and k axes.

    One step of the reduction is a group of the micro-kernel.
    """
    bits = kernel.accumulator.bits
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.a)
    address = address_of(load, block)
    steps: list[int] = []
    for axes, count in ((facts.m, 1), (facts.k, kernel.group)):
        result = (stride(address, block.iter_vars[p]) for p in axes)
        step = min(result, default=math.inf)
        steps.append(0 if math.isinf(step) else int(step) * count * facts.a.dtype.nbytes)
    batch, rows, columns, depth = (
        extent_of(block, axes) for axes in (facts.batch, facts.m, facts.n, facts.k)
    )
    lengths = [block.iter_vars[p].dom.extent for p in facts.m]
    smallest = math.prod(max(1, symbol_facts(func).const_bounds(n)[0] or 1) for n in lengths)
    return GemmShape(
        batch,
        rows,
        columns,
        None if depth is None else -(-depth // kernel.group),
        *steps,
        bits=bits,
        b_bits=kernel.b.bits * kernel.group,
        shifts=kernel.shifts,
        uncached=is_uncached(func, facts.b),
        outside_private_cache=is_outside_private_cache(func, facts.b),
        packed=not is_constant(func, facts.b),
        min_m=smallest,
        m_multiple=math.prod(map(_multiple, lengths)),
        unit=kernel.unit,
        gathers=bool(kernel.unit) and facts.a in windowed(block),
    )


def _multiple(length: ir.Expr) -> int:
    """A known divisor of a length."""
    if isinstance(length, ir.Mul):
        return _multiple(length.a) * _multiple(length.b)
    return max(1, ir.const_int(length) or 1)
