"""Explain a `compute_at` without applying it: axis alignment, tile footprints, recomputation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import Analyzer, IntervalSet, eval_set, union
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.buffers import home
from blockwright.schedule.primitive.compute_at import computed_at, needed_domains
from blockwright.schedule.rewrite.move import within
from blockwright.support import ScheduleError


class AxisNeed(msgspec.Struct, frozen=True, eq=False):
    """The range of one producer iterator that one iteration of the loop needs.

    Attributes:
        iterator: the iterator, with its whole domain.
        needed: the values that one iteration of the loop needs.
        follows: the target loop and enclosing loops on which the needed range depends.
        made: the loop that would be generated for the range; "" if one value is needed.
    """

    iterator: ir.IterVar
    needed: ir.Range
    follows: tuple[str, ...]
    made: str

    @property
    def is_whole(self) -> bool:
        """Whether each iteration needs the whole domain."""
        return self.needed is self.iterator.dom


class BufferNeed(msgspec.Struct, frozen=True, eq=False):
    """The region of a producer's output that one consumer reads in one iteration."""

    consumer: str
    region: ir.BufferRegion


class BufferKept(msgspec.Struct, frozen=True, eq=False):
    """The memory that a producer's output buffer occupies after lowering.

    The step moves the computation and keeps the declared shape of the buffer. During lowering,
    `compact_buffers` shrinks a buffer that is used only inside the loop to the footprint of one
    iteration.

    Attributes:
        buffer: the buffer with its declared shape.
        box: its extents after lowering; the whole shape if it is not shrunk.
        outside: a block that uses it outside the loop, or "the caller"; empty if there is none.
    """

    buffer: ir.Buffer
    box: tuple[ir.Expr, ...]
    outside: str

    def __str__(self) -> str:
        whole = " x ".join(map(expr_text, self.buffer.shape))
        box = " x ".join(map(expr_text, self.box))
        name = self.buffer.name
        if self.outside:
            return f"{name} keeps its {whole} elements: {self.outside} uses it outside the loop"
        if box == whole:
            return f"{name} keeps its {whole} elements, which one iteration needs"
        return (
            f"{name} is still {whole} in the program; lowering (compact_buffers) keeps the "
            f"{box} that one iteration needs"
        )


class ComputeAtExplanation(msgspec.Struct, frozen=True, eq=False):
    """The effect of `compute_at(block, loop)`.

    Attributes:
        block, loop: names of the producer and of the loop's variable.
        axes: the producer's iterators; empty if nothing in the loop reads the producer.
        buffers: the regions that consumers in the loop read.
        kept: the memory of the producer's outputs after lowering.
        idle: the target loop and enclosing loops that no axis follows: each of their iterations
            recomputes the same values.
        instances: how often the producer's body would run (an upper bound under predicates).
        domain: the number of points in the producer's iteration domain.
        recomputation: `instances / domain`, if both are constants.
        refusal: why the step would be rejected, with the error code; empty if it is legal.
    """

    block: str
    loop: str
    axes: tuple[AxisNeed, ...]
    buffers: tuple[BufferNeed, ...]
    kept: tuple[BufferKept, ...]
    idle: tuple[str, ...]
    instances: ir.Expr
    domain: ir.Expr
    recomputation: float | None
    refusal: str

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops that would be generated, outermost first."""
        return tuple(axis.made for axis in self.axes if axis.made)

    def __str__(self) -> str:
        lines = [f"compute_at({self.block}, {self.loop})"]
        lines += [f"  refused: {self.refusal}"] if self.refusal else []
        lines += [
            f"  {need.consumer} reads {_region(need.region)} in one iteration"
            for need in self.buffers
        ]
        rows = [_row(axis) for axis in self.axes]
        widths = [max(len(row[k]) for row in rows) for k in range(3)] if rows else []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, *row[3:]]).rstrip())
        if self.axes:
            lines.append(f"  {self._work()}")
        lines += [f"  {kept}" for kept in self.kept]
        return "\n".join(lines)

    def _work(self) -> str:
        again = f"; the same in each iteration of {', '.join(self.idle)}" if self.idle else ""
        counts = f"{expr_text(self.instances)} runs for {expr_text(self.domain)} instances"
        if self.recomputation is None:
            return f"work: {counts}{again}"
        return f"work: {self.recomputation:.3g} times ({counts}){again}"


def explain_compute_at(state: StepState, block: ir.Block, loop: ir.For) -> ComputeAtExplanation:
    """Analyze a `compute_at`: alignment, footprint, new loops, recomputation, and legality."""
    scope = state.scope(block)
    flow = state.flow_at(block)
    consumers = (
        []
        if state.scope(loop) is not scope
        else [c for c in flow.consumers(block) if state.tree.is_below(state.tree.realize(c), loop)]
    )
    above = [*state.tree.loops_above(loop), loop]
    analyzer = state.analyzer(loop.body)
    buffers = tuple(
        BufferNeed(c.name, flow.region_under(above, c, read, analyzer, tight=False))
        for c in consumers
        for read in c.reads
        if any(write.buffer is read.buffer for write in block.writes)
    )
    axes = _axes(state, block, loop, consumers, analyzer) if consumers else ()
    followed = {name for axis in axes for name in axis.follows}
    domain = _product([it.dom.extent for it in block.iter_vars], analyzer)
    trips = [f.extent for f in above] if consumers else []
    instances = _product([*trips, *(axis.needed.extent for axis in axes)], analyzer)
    runs, all_of_them = ir.const_int(instances), ir.const_int(domain)
    return ComputeAtExplanation(
        block.name,
        loop.loop_var.name,
        axes,
        buffers,
        tuple(
            _kept(state, block, loop, write.buffer, buffers) for write in block.writes if consumers
        ),
        tuple(
            f.loop_var.name
            for f in above
            if consumers and f.loop_var.name not in followed and not ir.is_const_int(f.extent, 1)
        ),
        instances,
        domain,
        runs / all_of_them if axes and runs is not None and all_of_them else None,
        _refusal(state, block, loop),
    )


def _kept(
    state: StepState, block: ir.Block, loop: ir.For, buffer: ir.Buffer, needs: Sequence[BufferNeed]
) -> BufferKept:
    """The part of an output buffer that remains once lowering shrinks it to one iteration."""
    users = [
        b
        for b in state.tree.blocks
        if b is not block
        and b is not state.func.root
        and any(r.buffer is buffer for r in (*b.reads, *b.writes))
    ]
    outside = [f"block {b.name}" for b in users if not state.tree.is_below(b, loop)]
    if home(state, buffer) is None:
        outside.insert(0, "the caller")
    analyzer = state.analyzer(loop.body)
    boxes = [need.region.region for need in needs if need.region.buffer is buffer]
    if outside or not boxes or buffer.strides:
        return BufferKept(buffer, buffer.shape, outside[0] if outside else "")
    above = [*state.tree.loops_above(loop), loop]
    domains = {f.loop_var: f.dom for f in above}
    box: list[ir.Expr] = []
    for size, *parts in zip(buffer.shape, *boxes, strict=True):
        hull = union([IntervalSet.of_range(p) for p in parts], analyzer).range(analyzer)
        largest = None if hull is None else eval_set(hull.extent, domains, analyzer).max
        fits = largest is not None and analyzer.prove(ir.LE(*ir.match_types(largest, size)))
        box.append(analyzer.simplify(largest) if fits and largest is not None else size)
    return BufferKept(buffer, tuple(box), "")


def _axes(
    state: StepState, block: ir.Block, loop: ir.For, consumers: list[ir.Block], analyzer: Analyzer
) -> tuple[AxisNeed, ...]:
    flow = state.flow_at(block)
    domains = needed_domains(state, flow, block, loop, consumers)
    above = [*state.tree.loops_above(loop), loop]
    result: list[AxisNeed] = []
    for k, it in enumerate(block.iter_vars):
        needed = within(domains.get(it.var), it.dom, analyzer)
        follows = tuple(f.loop_var.name for f in above if ir.uses_var(needed, f.loop_var))
        single = analyzer.prove_equal(needed.extent, ir.const(1, needed.extent.dtype))
        result.append(AxisNeed(it, needed, follows, "" if single else f"ax{k}"))
    return tuple(result)


def _refusal(state: StepState, block: ir.Block, loop: ir.For) -> str:
    try:
        computed_at(state, block, loop)
    except ScheduleError as error:
        return f"{error.message} [{error.code}]"
    return ""


def _product(extents: list[ir.Expr], analyzer: Analyzer) -> ir.Expr:
    total: ir.Expr = ir.const(1, "int64")
    for extent in extents:
        total = ir.mul(total, ir.cast_to(extent, "int64"))
    return analyzer.simplify(total)


def _row(axis: AxisNeed) -> tuple[str, str, str, str]:
    it = axis.iterator
    needs = "all of it" if axis.is_whole else f"needs {_range(axis.needed)}"
    follows = f"follows {', '.join(axis.follows)}" if axis.follows else ""
    result = f"loop {axis.made} of {expr_text(axis.needed.extent)}" if axis.made else ""
    name = f"{it.var.name} ({it.iter_type.value}) in {_range(it.dom)}"
    return name, needs, result, follows


def _region(region: ir.BufferRegion) -> str:
    return f"{region.buffer.name}[{', '.join(map(_range, region.region))}]"


def _range(rng: ir.Range) -> str:
    if ir.is_const_int(rng.extent, 1):
        return expr_text(rng.min)
    end = Analyzer().simplify(ir.add(rng.min, rng.extent))
    return f"{expr_text(rng.min)}:{expr_text(end)}"
