"""Check of region views, such as operands of tensorized blocks, against their constraints (BW241).

Layout constraints must be proved: an intrinsic that loads 16 aligned bytes must never get
unaligned ones. A region that may leave its buffer is rejected only with a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides, unmet_demands
from blockwright.analysis.access.stride_alignment import alignments
from blockwright.analysis.access.views import box_behind_view
from blockwright.analysis.dataflow.contexts import BlockContext
from blockwright.analysis.dataflow.counterexample import (
    DependsOnMore,
    shown,
    sizes_to_try,
    value_of,
)
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import Analyzer


def boundary_problems(func: ir.PrimFunc, found: Sequence[BlockContext]) -> Iterator[Violation]:
    """Violations in all views of a function."""
    viewing = [context for context in found if context.block.match_buffers]
    if not viewing:
        return
    align, params = alignments(func.body), set(func.buffers)
    for context in viewing:
        analyzer = symbol_facts(func)
        for level in context.path:
            analyzer.bind(level.var, level.dom)
        for match in context.block.match_buffers:
            source = resolved_region(context, match.source)
            strides = buffer_strides(source.buffer, align.get(source.buffer, ()))
            unmet = unmet_demands(
                match.buffer,
                source,
                strides,
                source.buffer not in params,
                analyzer,
                context.resolved,
            )
            for demand, known, remedy in unmet:
                yield Violation(
                    "BW241",
                    f"view {match.buffer.name} in block {context.block.name} "
                    f"requires {demand}, but {known}",
                    (match,),
                    remedy,
                )
            where = _outside(func, context, source, analyzer)
            if where is not None:
                yield Violation(
                    "BW241",
                    f"the region of view {match.buffer.name} in block "
                    f"{context.block.name} leaves {source.buffer.name}: {where}",
                    (match,),
                    "pad the buffer, or split by factors that divide it",
                )


def resolved_region(context: BlockContext, region: ir.BufferRegion) -> ir.BufferRegion:
    """A region expressed in the underlying buffer, through views of enclosing blocks."""
    for view in context.views():
        if view.buffer is region.buffer:
            box = box_behind_view(view.source, region.region)
            region = ir.BufferRegion(view.source.buffer, box)
    return region


def _outside(
    func: ir.PrimFunc, context: BlockContext, source: ir.BufferRegion, analyzer: Analyzer
) -> str | None:
    """Description of an instance at which a region leaves its buffer, or None."""
    for axis, (rng, size) in enumerate(zip(source.region, source.buffer.shape, strict=True)):
        low = context.resolved(rng.min)
        high = ir.add(low, context.resolved(rng.extent))
        inside = ir.logical_and(ir.compare(ir.GE, low, 0), ir.compare(ir.LE, high, size))
        if analyzer.prove(inside):
            continue
        for sizes in sizes_to_try(func):
            try:
                rows = context.instances(sizes)
                fits = np.broadcast_to(value_of(inside, rows.env), (rows.rows,))
            except DependsOnMore:
                break
            hits = np.flatnonzero(~fits)
            if len(hits):
                at = rows.at(int(hits[0]))
                start, stop = (int(value_of(e, at)) for e in (low, high))
                return (
                    f"at {shown(at, at)} it takes [{start}, {stop}) of {value_of(size, at)} in "
                    f"dimension {axis}"
                )
    return None
