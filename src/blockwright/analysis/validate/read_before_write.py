"""Detection of reads from allocated buffers before any write.

A violation needs an instance that reads an element which no writer can have written by then
(BW235). The instance belongs to the first iteration of the loops that the reader shares with
writers, so that only earlier writers in program order have run; what they may have written is
bounded from above by the boxes of their signatures. What is not refuted is accepted; the
interpreter and sanitizer builds find the rest. Conditional reads count where their condition holds;
reads at data-dependent positions are not checked.

For threads, the check is done per copy of the buffer. All threads that share a copy have written
their part, guaranteed by a barrier between writer and reader; other threads have written nothing to
this copy (BW238). A barrier must be reached by all threads of the block, so it cannot be placed
where only some of them arrive (BW239).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np

from blockwright import ir
from blockwright.analysis.access.regions import relax_region
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.dataflow.contexts import (
    BlockContext,
    ConditionalAccess,
    LoopLevel,
    definite_accesses,
)
from blockwright.analysis.dataflow.counterexample import (
    Array,
    DependsOnMore,
    Env,
    Instances,
    VarRange,
    end_lanes,
    instances,
    shown,
    sizes_to_try,
    value_of,
)
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.kernels import BLOCK_AXES, shares
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import Analyzer, is_bijective


def coverage_problems(func: ir.PrimFunc, found: Sequence[BlockContext]) -> Iterator[Violation]:
    """Violations for all allocated buffers of a function, and for its outputs."""
    parents = {
        inner for context in found for inner in context.around if isinstance(inner, ir.Block)
    }
    leaves = {context.block for context in found} - parents
    # Buffers of a leaf block are written and read inside it; signatures do not state the order.
    buffers = {
        b for block in ir.blocks(func.body) if block not in leaves for b in block.alloc_buffers
    }
    if _accesses_outside_blocks(func.body, buffers):
        return
    buffers |= {b for b in func.outputs if not _accesses_outside_blocks(func.body, {b})}
    if not buffers:
        return
    analyzer, roots = symbol_facts(func), memory_roots(func)
    writers: dict[ir.Buffer, list[_Writer]] = {}
    for context in found:
        for region in context.block.writes:
            if region.buffer in buffers and not _delegates(context, region.buffer, found):
                writers.setdefault(region.buffer, []).append(_Writer(context, region))
    for context in found:
        if context.block in parents:
            continue
        told: set[ir.Buffer] = set()
        boxes: dict[ir.Buffer, _Boxes] = {}
        before = _written_before(context, roots)
        for number, access in enumerate(definite_accesses(context)):
            wanted = access.buffer in buffers and access.how != "write"
            own = context.block.init is not None and any(
                r.buffer is access.buffer for r in context.block.writes
            )
            if wanted and not own and access.buffer not in told:
                own_boxes = boxes.setdefault(access.buffer, {})
                own_writers = writers.get(access.buffer, [])
                begun = number in before
                problem = _Read(
                    func, context, access, own_writers, analyzer, own_boxes, begun
                ).check()
                if problem is not None:
                    told.add(access.buffer)
                    yield problem


def _written_before(context: BlockContext, roots: Mapping[ir.Buffer, ir.Buffer]) -> set[int]:
    """Indices of accesses that may see values stored by the same block instance.

    A store to the same memory precedes them, or shares a loop inside the block with them.
    """
    result: set[int] = set()
    listed = definite_accesses(context)
    stores = [(k, t) for k, t in enumerate(listed) if t.how != "read"]
    for number, access in enumerate(listed):
        loops = {span.var for span in access.spans}
        memory = roots.get(access.buffer, access.buffer)
        if any(
            roots.get(store.buffer, store.buffer) is memory
            and (k < number or loops & {span.var for span in store.spans})
            for k, store in stores
        ):
            result.add(number)
    return result


@dataclasses.dataclass(eq=False)
class _Writer:
    context: BlockContext
    region: ir.BufferRegion


def _delegates(context: BlockContext, buffer: ir.Buffer, found: Sequence[BlockContext]) -> bool:
    """Whether inner blocks state all writes of this block more precisely."""
    if any(m.source.buffer is buffer for m in context.block.match_buffers):
        return False
    if _stores_itself(context.block, buffer):
        return False
    return any(
        context.block in other.around and any(r.buffer is buffer for r in other.block.writes)
        for other in found[context.order + 1 :]
    )


def _stores_itself(block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether statements of a block or its init, outside of inner blocks, may store to a buffer."""
    stack: list[ir.Stmt] = [block.body] if block.init is None else [block.init, block.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.BufferStore) and node.buffer is buffer:
            return True
        if isinstance(node, ir.Evaluate) and buffer in ir.collect(node, ir.Buffer):
            return True
        if not isinstance(node, ir.BlockRealize):
            stack += child_stmts(node)
    return False


def _accesses_outside_blocks(body: ir.Stmt, buffers: set[ir.Buffer]) -> bool:
    """Whether statements outside of blocks, which have no signature, access the buffers."""
    stack: list[ir.Node] = [body.block.body] if isinstance(body, ir.BlockRealize) else [body]
    while stack:
        node = stack.pop()
        if isinstance(node, (ir.BufferStore, ir.BufferLoad)) and node.buffer in buffers:
            return True
        if isinstance(node, ir.BlockRealize):
            stack += [*node.iter_values, node.predicate]
        else:
            stack += node.children()
    return False


# Upper bound of what each writer of a buffer has written, as seen by one block.
_Boxes = dict[tuple[_Writer, bool, bool], tuple[ir.Range, ...]]


class _Read:
    """A reading access, and the writers that may have written what it reads.

    `boxes` caches the boxes of writers for one buffer and block. `begun`: the same instance may
    have written the element.
    """

    def __init__(
        self,
        func: ir.PrimFunc,
        context: BlockContext,
        access: ConditionalAccess,
        writers: Sequence[_Writer],
        analyzer: Analyzer,
        boxes: _Boxes,
        begun: bool,
    ) -> None:
        self.func, self.context, self.access, self.begun = func, context, access, begun
        self.writers, self.analyzer, self.boxes = writers, analyzer, boxes
        self.path = (*context.path, *self._axes_of_writers())

    def check(self) -> Violation | None:
        name, reader = self.access.buffer.name, self.context.block.name
        if not self.writers:
            return Violation(
                "BW235",
                f"block {reader} reads {name}, which no block writes",
                (self.context.realize,),
                "fill the buffer before it is read",
            )
        where = self._refuted()
        if where is None:
            return self._barrier()
        lonely = self._refuted(everyone=True) is None
        guilty = (self.context.realize, *(w.context.realize for w in self.writers))
        if lonely:
            return Violation(
                "BW238",
                f"block {reader} reads {where}, which another {self._member()} writes: "
                + self._apart(),
                guilty,
                "let each read what it wrote, or give the buffer a scope that they share",
            )
        return Violation(
            "BW235",
            f"block {reader} reads {where}, which no block has written by then",
            guilty,
            "let the producer write all that is read, before the read and in every iteration of "
            "their shared loops",
        )

    def _axes_of_writers(self) -> list[LoopLevel]:
        """Thread axes of writers, with private copies per thread, that the reader lacks.

        All threads along these axes read.
        """
        result: dict[ir.Var, LoopLevel] = {}
        for writer in self.writers:
            if writer.context.kernel is not None and writer.context.kernel is self.context.kernel:
                result |= {
                    level.var: level
                    for level in writer.context.path
                    if level.tag and not shares(self.access.buffer.scope, level.tag)
                }
        return [
            level
            for var, level in result.items()
            if all(mine.var is not var for mine in self.context.path)
        ]

    # ------------------------------------------------------------------ counterexamples
    def _refuted(
        self, everyone: bool = False, alone: Container[_Writer] = frozenset()
    ) -> str | None:
        """Description of an instance that reads what no writer can have written, or None.

        `everyone`: assume that all threads share one copy. `alone`: writers not followed by a
        barrier, so that a thread sees only its own writes.
        """
        first = self._shared_loops()
        boxes = [
            (self._box(w, everyone, w in alone), self._led(w) if w in alone else ())
            for w in self.writers
            if (w.context.order < self.context.order or (self.begun and w.context is self.context))
            and self._may_meet(w, everyone)
        ]
        for sizes in sizes_to_try(self.func):
            try:
                rows = self._instances(sizes, first)
                for indices in end_lanes(self.access.indices) if rows.rows else ():
                    place = self._missed(rows, indices, boxes)
                    if place is not None:
                        return place
            except DependsOnMore:
                return None
        return None

    def _missed(
        self,
        rows: Instances,
        indices: Sequence[ir.Expr],
        boxes: Sequence[tuple[tuple[ir.Range, ...], Sequence[LoopLevel]]],
    ) -> str | None:
        """Description of the first instance whose element lies in no box, or None."""
        read = [np.broadcast_to(value_of(i, rows.env), (rows.rows,)) for i in indices]
        missed: Array = np.ones(rows.rows, bool)
        for box, led in boxes:
            own = _inside(read, box, rows)
            for level in led:
                own &= value_of(ir.compare(ir.EQ, level.var, level.low), rows.env)
            missed &= ~own
        hits = np.flatnonzero(missed)
        if not len(hits):
            return None
        at = rows.at(int(hits[0]))
        element = ", ".join(str(int(c[hits[0]])) for c in read)
        place = f"{self.access.buffer.name}[{element}]"
        known = shown(at, at)
        return f"{place} at {known}" if known else place

    def _instances(self, sizes: Env, first: set[ir.Var]) -> Instances:
        """Instances of the read in the first iteration of the shared loops."""
        spans: list[VarRange] = []
        for level in self.path:
            span = level.span
            if level.var in first:
                span = span._replace(extent=ir.const(1, span.low.dtype))
                if np.any(value_of(level.extent, {**sizes, **_starts(self.path)}) < 1):
                    raise DependsOnMore
            spans.append(span)
        rows = instances([*spans, *self.access.spans], sizes)
        for guard in (*self.context.guards, *self.access.guards):
            rows = rows.where(value_of(guard, rows.env))
        return rows

    def _shared_loops(self) -> set[ir.Var]:
        """Loops that order the read after writes of earlier iterations."""
        mine = {level.stmt: level.var for level in self.context.path if not level.tag}
        alone = all(w.context is not self.context for w in self.writers)
        spatial: set[ir.Var] = set() if alone else self._own_elements()
        return {
            mine[level.stmt]
            for w in self.writers
            for level in w.context.path
            if level.stmt in mine and not (w.context is self.context and level.var in spatial)
        }

    def _own_elements(self) -> set[ir.Var]:
        """Loops that move an update to elements it has not accessed before.

        These are the loops of its scope that drive only spatial iterators, provided that the map
        from loops to instances is bijective and the element read is the one written.
        """
        block, realize = self.context.block, self.context.realize
        own = any(
            t.buffer is self.access.buffer
            and t.how != "read"
            and ir.structural_equal(t.indices, self.access.indices)
            for t in definite_accesses(self.context)
        )
        last = max(
            (k for k, s in enumerate(self.context.around) if isinstance(s, ir.Block)), default=0
        )
        loops = [s for s in self.context.around[last:] if isinstance(s, ir.For)]
        domains = {f.loop_var: f.dom for f in loops}
        pairs = list(zip(block.iter_vars, realize.iter_values, strict=True))
        terms = [v for it, v in pairs if it.iter_type is not ir.IterType.SPATIAL]
        if not own or not is_bijective([v for _, v in pairs], domains, None, self.analyzer):
            return set()
        return {v for v in domains if not any(ir.uses_var(t, v) for t in terms)}

    def _may_meet(self, writer: _Writer, everyone: bool) -> bool:
        """Whether writer and reader may see the same copy: on-chip memory ends with its kernel."""
        same = writer.context.kernel is self.context.kernel
        return same or everyone or self.access.buffer.scope == "global"

    def _box(self, writer: _Writer, everyone: bool, alone: bool) -> tuple[ir.Range, ...]:
        """Upper bound of what a writer has written, in terms of loops it shares with the reader."""
        key = (writer, everyone, alone)
        if key not in self.boxes:
            self.boxes[key] = self._found_box(writer, everyone, alone)
        return self.boxes[key]

    def _found_box(self, writer: _Writer, everyone: bool, alone: bool) -> tuple[ir.Range, ...]:
        fixed = {level.var for level in self.path if self._in_step(level, writer, everyone, alone)}
        domains = {
            level.var: ir.Range(level.low, level.extent)
            for level in writer.context.path
            if level.var not in fixed
        }
        if alone:  # only the first thread along these axes reads; it sees its own write
            for level in self._only_in(writer.context.path, self.path):
                domains[level.var] = ir.Range(level.low, ir.const(1, level.extent.dtype))
        region = ir.BufferRegion(
            writer.region.buffer,
            tuple(ir.substitute(r, writer.context.values) for r in writer.region.region),
        )
        guards = ir.all_of(writer.context.guards)
        predicate = None if ir.is_const_int(guards) else guards
        known = self.analyzer.copy()
        for level in self.path:
            if level.var in fixed:
                known.bind(level.var, ir.Range(level.low, level.extent))
        return relax_region(region, domains, known, predicate).region

    def _in_step(self, level: LoopLevel, writer: _Writer, everyone: bool, alone: bool) -> bool:
        """Whether the visible writes at a level are those of the same iteration."""
        around = [w for w in writer.context.path if w.var is level.var]
        if not around:
            return False
        if not level.tag:
            return around[0].stmt is level.stmt
        if everyone or writer.context.kernel is not self.context.kernel:
            return False
        if alone and level.tag not in BLOCK_AXES:
            return True
        scope = self.access.buffer.scope
        return not shares(scope, level.tag) or (scope == "global" and level.tag in BLOCK_AXES)

    def _led(self, writer: _Writer) -> list[LoopLevel]:
        """Thread axes of the reader that the writer lacks; their first thread alone writes."""
        return self._only_in(self.context.path, writer.context.path)

    def _only_in(self, path: Sequence[LoopLevel], other: Sequence[LoopLevel]) -> list[LoopLevel]:
        """Thread axes in `path` but not in `other` whose threads share the buffer."""
        tags = {level.tag for level in other}
        return [
            level
            for level in path
            if level.tag
            and level.tag not in (*tags, *BLOCK_AXES)
            and shares(self.access.buffer.scope, level.tag)
        ]

    def _member(self) -> str:
        """The kind of unit between which the buffer is not shared."""
        if any(w.context.kernel is not self.context.kernel for w in self.writers):
            return "kernel"
        return {"local": "thread", "warp": "warp"}.get(self.access.buffer.scope, "block")

    def _apart(self) -> str:
        buffer, member = self.access.buffer, self._member()
        if buffer.scope == "global":
            return "blocks of one kernel do not wait for one another"
        if member == "kernel":
            return f"{buffer.name} is in scope {buffer.scope!r}, which ends with its kernel"
        return f"{buffer.name} is in scope {buffer.scope!r}: every {member} has its own copy"

    # ------------------------------------------------------------------ barriers
    def _barrier(self) -> Violation | None:
        """A violation if a barrier is needed where not all threads of a block arrive."""
        kernel = self.context.kernel
        if kernel is None or self.access.buffer.scope == "local":
            return None
        met = {
            w: _divergent(w.context, self.context)
            for w in self.writers
            if w.context.kernel is kernel
        }
        apart = {w: condition for w, condition in met.items() if condition is not None}
        if not apart or self._refuted(alone=apart) is None:
            return None
        writer, condition = next(iter(apart.items()))
        return Violation(
            "BW239",
            f"block {self.context.block.name} reads what other threads write to "
            f"{self.access.buffer.name}, under a condition that not all threads satisfy: no "
            "barrier can be placed between them",
            (self.context.realize, writer.context.realize, condition),
            "move the condition to the blocks themselves instead of around both",
        )


def _divergent(a: BlockContext, b: BlockContext) -> ir.Node | None:
    """A condition around two blocks that may differ between threads of a block, or None."""
    lanes = {level.var for level in b.path if level.tag and level.tag not in BLOCK_AXES}
    for x, y in zip(a.around, b.around, strict=False):
        if x is not y:
            return None
        condition: ir.Expr | None = None
        if isinstance(x, ir.IfThenElse):
            condition = x.condition
        elif isinstance(x, ir.BlockRealize):
            condition = x.predicate
        elif isinstance(x, ir.For):
            condition = x.extent
        if condition is not None and ir.uses_var(b.resolved(condition), lanes):
            return condition
    return None


def _starts(path: Sequence[LoopLevel]) -> Env:
    """Values of the loops that start at 0 in their first iteration."""
    return {level.var: 0 for level in path if ir.is_const_int(level.low, 0)}


def _inside(read: Sequence[Array], box: tuple[ir.Range, ...], rows: Instances) -> Array:
    """Mask of the reads that lie in a box."""
    inside: Array = np.ones(rows.rows, bool)
    for column, rng in zip(read, box, strict=True):
        low = value_of(rng.min, rows.env)
        inside &= (column >= low) & (column < low + value_of(rng.extent, rows.env))
    return inside
