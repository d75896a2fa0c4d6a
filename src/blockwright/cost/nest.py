"""A program as the cost model sees it: loops around steps, and what the steps touch.

A `Nest` is read from a scheduled program (`read`), or written down by a rule that compares plans
before it has scheduled any. Distances are in bytes. Counts may be fractions: 3.5 iterations are
as many on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

Kind = Literal["serial", "parallel", "unrolled", "lanes"]


class LoopNode(msgspec.Struct, eq=False):
    """A loop: how often its body runs in one thread.

    Attributes:
        count: iterations; of a parallel loop, those of the busiest thread.
        kind: "unrolled" and "lanes" loops are instructions, not time.
        body: what runs in each iteration, in order.
        tasks: of a parallel loop, the iterations of all threads; else 0.
        divided: whether the threads have different iterations of it.
        whole: of a parallel loop, its iterations in all threads; else 0.
    """

    count: float
    kind: Kind = "serial"
    body: list[LoopNode | StatementNode] = []
    tasks: float = 0
    divided: bool = False
    whole: float = 0


class BufferNode(msgspec.Struct, eq=False):
    """A buffer: its size in bytes, and whether it is meant to lie in registers; a cold one is in no
    cache when the program begins, however often it runs."""

    name: str
    size: float
    registers: bool = False
    cold: bool = False


class AccessNode(msgspec.Struct, eq=False):
    """A load or store of one element, or with loops of lanes of as many.

    Attributes:
        storage: what is touched.
        moves: bytes by which each loop moves it; loops that do not are left out.
        width: bytes of an element.
        base: bytes from the start of the storage when all counters are 0.
        stored: whether it is a store.
        scattered: whether it may be anywhere, as an index that is read from memory.
    """

    storage: BufferNode
    moves: dict[LoopNode, float]
    width: int = 4
    base: float = 0
    stored: bool = False
    scattered: bool = False


class StatementNode(msgspec.Struct, eq=False):
    """A statement.

    Attributes:
        accesses: what it loads and stores.
        operations: arithmetic instructions per element, or per vector within loops of lanes.
        chained: whether it updates what it stores, so that one instance waits for the last.
        share: of the times it is passed, how often it runs.
        width: bytes of an element of its arithmetic.
    """

    accesses: tuple[AccessNode, ...]
    operations: float = 0
    chained: bool = False
    share: float = 1.0
    width: int = 4


def steps(
    nodes: list[LoopNode | StatementNode],
) -> Iterator[tuple[StatementNode, tuple[LoopNode, ...]]]:
    """All steps below some nodes, each with the loops from these nodes down to it."""
    for node in nodes:
        if isinstance(node, StatementNode):
            yield node, ()
        else:
            for step, loops in steps(node.body):
                yield step, (node, *loops)
