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

from collections.abc import Container, Iterator, Sequence

import numpy as np

from blockwright import ir
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.dataflow.accesses import ConditionalAccess, definite_accesses
from blockwright.analysis.dataflow.contexts import BlockContext, LoopLevel, leaf_contexts
from blockwright.analysis.dataflow.counterexample import (
    Array,
    DependsOnMore,
    Env,
    Instances,
    VarRange,
    end_lanes,
    shown,
    sizes_to_try,
    value_of,
)
from blockwright.analysis.dataflow.order import after_own_stores, divergent_condition, shared_loops
from blockwright.analysis.dataflow.visible_writes import (
    VisibleBox,
    VisibleWrites,
    Writer,
    writers_by_buffer,
)
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import is_bijective


def coverage_problems(func: ir.PrimFunc, found: Sequence[BlockContext]) -> Iterator[Violation]:
    """Violations for all allocated buffers of a function, and for its outputs."""
    leaves = leaf_contexts(found)
    inner = {context.block for context in leaves}
    # Buffers of a leaf block are written and read inside it; signatures do not state the order.
    # Neither does one state what statements outside of leaf blocks access.
    roots = memory_roots(func)
    outside = {roots.get(b, b) for b in _accessed_outside(func.body, inner)}
    buffers = {
        b for block in ir.blocks(func.body) if block not in inner for b in block.alloc_buffers
    }
    buffers = {b for b in (*buffers, *func.outputs) if roots.get(b, b) not in outside}
    if not buffers:
        return
    analyzer = symbol_facts(func)
    writers = writers_by_buffer(found, buffers)
    for context in leaves:
        initial = set[ir.Buffer]()  # updated elements that the block initializes
        if context.block.init is not None:
            initial = {r.buffer for r in context.block.writes}
        accesses = definite_accesses(context)
        begun = after_own_stores(accesses, roots)
        visible: dict[ir.Buffer, VisibleWrites] = {}
        reported: set[ir.Buffer] = set()
        for number, access in enumerate(accesses):
            buffer = access.buffer
            if access.how == "write" or buffer not in buffers or buffer in initial | reported:
                continue
            if buffer not in visible:
                own = writers.get(buffer, [])
                visible[buffer] = VisibleWrites(context, buffer, own, analyzer)
            problem = _Read(func, access, visible[buffer], number in begun).check()
            if problem is not None:
                reported.add(buffer)
                yield problem


def _accessed_outside(body: ir.Stmt, leaves: Container[ir.Block]) -> set[ir.Buffer]:
    """The buffers that statements outside of leaf blocks access."""
    result = set[ir.Buffer]()
    stack: list[ir.Node] = [body]
    while stack:
        node = stack.pop()
        if isinstance(node, (ir.BufferStore, ir.BufferLoad)):
            result.add(node.buffer)
        if isinstance(node, ir.BlockRealize):
            stack += [*node.iter_values, node.predicate]
            if node.block not in leaves:
                stack += [node.block.body, *([] if node.block.init is None else [node.block.init])]
        else:
            stack += node.children()
    return result


class _Read:
    """A reading access, and the writes that it may see.

    `begun`: the same instance may have written the element.
    """

    def __init__(
        self, func: ir.PrimFunc, access: ConditionalAccess, visible: VisibleWrites, begun: bool
    ) -> None:
        self.func, self.access, self.visible, self.begun = func, access, visible, begun
        self.context, self.writers = visible.reader, visible.writers

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

    # ------------------------------------------------------------------ counterexamples
    def _refuted(
        self, everyone: bool = False, alone: Container[Writer] = frozenset()
    ) -> str | None:
        """Description of an instance that reads what no writer can have written, or None.

        The arguments are those of `VisibleWrites.boxes`.
        """
        first = self._loops_after_writers()
        boxes = self.visible.boxes(self.begun, everyone=everyone, alone=alone)
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
        boxes: Sequence[VisibleBox],
    ) -> str | None:
        """Description of the first instance whose element lies in no box, or None."""
        read = [np.broadcast_to(value_of(i, rows.env), (rows.rows,)) for i in indices]
        missed: Array = np.ones(rows.rows, bool)
        for box, leaders in boxes:
            own = _inside(read, box, rows)
            for level in leaders:
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
        """Instances of the read in the first iteration of the given loops."""
        spans: list[VarRange] = []
        path = self.visible.path
        for level in path:
            span = level.span
            if level.var in first:
                span = span._replace(extent=ir.const(1, span.low.dtype))
                if np.any(value_of(level.extent, {**sizes, **_starts(path)}) < 1):
                    raise DependsOnMore
            spans.append(span)
        return self.context.instances(sizes, (*spans, *self.access.spans), self.access.guards)

    def _loops_after_writers(self) -> set[ir.Var]:
        """Loops that order the read after writes of earlier iterations."""
        alone = all(w.context is not self.context for w in self.writers)
        spatial: set[ir.Var] = set() if alone else self._own_elements()
        return {
            level.var
            for w in self.writers
            for level in shared_loops(self.context, w.context)
            if not (w.context is self.context and level.var in spatial)
        }

    def _own_elements(self) -> set[ir.Var]:
        """Loops that move an update to elements it has not accessed before.

        These are the loops of its scope that drive only spatial iterators, provided that the map
        from loops to instances is bijective and the element read is the one written.
        """
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
        pairs = self.context.realize.bindings
        terms = [v for it, v in pairs if it.iter_type is not ir.IterType.SPATIAL]
        if not own or not is_bijective([v for _, v in pairs], domains, None, self.visible.analyzer):
            return set()
        return {v for v in domains if not any(ir.uses_var(t, v) for t in terms)}

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
            w: divergent_condition(w.context, self.context)
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
