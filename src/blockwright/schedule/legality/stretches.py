"""What the stretches of a program access between statements that a step may not cross.

`returns` and `assertions` divide the program before a step and the one after it into stretches, and
compare them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from blockwright import ir
from blockwright.analysis.access.stable_values import written_buffers


class Part:
    """What a stretch reads, in how many statements it writes each buffer, and what it calls."""

    def __init__(self) -> None:
        self.reads: set[ir.Buffer] = set()
        self.writes: Counter[ir.Buffer] = Counter()
        self.calls: set[str] = set()

    def add(self, stmt: ir.Stmt) -> None:
        stack: list[ir.Node] = [stmt]
        while stack:
            node = stack.pop()
            if isinstance(node, ir.BlockRealize):
                self.reads.update(r.buffer for r in node.block.reads)
                self.writes.update({r.buffer for r in node.block.writes})
                self._calls(node.block)
                stack += [*node.iter_values, node.predicate]
            elif isinstance(node, (ir.BufferStore, ir.Evaluate, ir.AssertStmt)):
                self.reads.update(load.buffer for load in ir.collect(node, ir.BufferLoad))
                self.writes.update(written_buffers(node))
                self._calls(node)
            elif isinstance(node, ir.BufferLoad):
                self.reads.add(node.buffer)
                stack += node.indices
            elif not isinstance(node, ir.Buffer):
                stack += node.children()

    def _calls(self, stmt: ir.Stmt) -> None:
        for node in ir.walk(stmt):
            if isinstance(node, ir.AssertStmt):
                self.calls.add("assert")
            elif isinstance(node, ir.Call) and ir.op_has_effect(node.op) and not ir.is_atomic(node):
                self.calls.add(node.op)


def common_buffers(before: Iterable[Part], after: Iterable[Part]) -> set[ir.Buffer]:
    """The buffers that both programs access."""
    return _buffers(before) & _buffers(after)


def _buffers(parts: Iterable[Part]) -> set[ir.Buffer]:
    return {buffer for part in parts for buffer in (*part.reads, *part.writes)}


class Uses:
    """Which stretches use each buffer, and the number of blocks and statements that write it.

    A buffer that the step replaced, as by one of another layout, has the name of the new one.
    """

    def __init__(self, parts: list[Part], kept: set[ir.Buffer]) -> None:
        self.used: dict[ir.Buffer | str, set[int]] = {}
        self.writers: dict[ir.Buffer | str, list[int]] = {}
        for k, part in enumerate(parts):
            for buffer in (*part.reads, *part.writes):
                key = buffer if buffer in kept else buffer.name
                self.used.setdefault(key, set()).add(k)
                self.writers.setdefault(key, [0] * len(parts))
            for buffer, count in part.writes.items():
                self.writers[buffer if buffer in kept else buffer.name][k] += count
