"""Loop nests as the cost model sees them: loops around statements, and their memory accesses.

A nest is read from a scheduled program (`read`) or written down by a strategy that compares plans
before it schedules. Distances are in bytes. Counts may be fractional averages, such as 3.5
iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

Kind = Literal["serial", "parallel", "unrolled", "lanes"]


class LoopNode(msgspec.Struct, eq=False):
    """A loop and how often its body runs in one thread.

    Attributes:
        count: iterations; for a parallel loop, those of the busiest thread.
        kind: "unrolled" and "lanes" loops multiply instructions instead of iterations.
        body: statements and loops of each iteration, in order.
        tasks: for a parallel loop, the iterations of all threads, rounded up; else 0.
        divided: whether the threads execute different iterations of it.
        whole: for a parallel loop, its iterations in all threads; else 0.
        predicted: whether its exit is predicted: it always has the same few iterations.
    """

    count: float
    kind: Kind = "serial"
    body: list[LoopNode | StatementNode] = []
    tasks: float = 0
    divided: bool = False
    whole: float = 0
    predicted: bool = False


class BufferNode(msgspec.Struct, eq=False):
    """A buffer of a loop nest.

    Attributes:
        name: for notes.
        size: bytes.
        registers: whether it is meant to be kept in registers.
        uncached: whether it is in no cache when the program begins, even if called repeatedly.
        common: whether all threads read the same part of it, which a shared cache holds once.
    """

    name: str
    size: float
    registers: bool = False
    uncached: bool = False
    common: bool = False


class AccessNode(msgspec.Struct, eq=False):
    """A load or store of one element, or of one vector inside loops of kind "lanes".

    Attributes:
        storage: the buffer accessed.
        moves: byte stride per loop; loops that do not move the access are omitted.
        width: bytes of an element.
        base: byte offset in the buffer when all counters are 0.
        stored: whether it is a store.
        scattered: whether it may be anywhere in the buffer, as with an index loaded from memory.
        prefetched: whether instructions prefetch its lines, so that they arrive in time.
    """

    storage: BufferNode
    moves: dict[LoopNode, float]
    width: int = 4
    base: float = 0
    stored: bool = False
    scattered: bool = False
    prefetched: bool = False


class StatementNode(msgspec.Struct, eq=False):
    """A statement: its memory accesses and arithmetic.

    Attributes:
        accesses: its loads and stores.
        operations: arithmetic instructions per element, or per vector inside lane loops.
        chained: whether it updates what it stores, so that each instance waits for the previous.
        restarts: whether such a chain begins anew in each execution of the code around it, so that
            the processor computes as many of them at a time as fit its reorder window.
        share: fraction of the surrounding iterations in which it runs.
        width: bytes of an element of its arithmetic.
    """

    accesses: tuple[AccessNode, ...]
    operations: float = 0
    chained: bool = False
    restarts: bool = False
    share: float = 1.0
    width: int = 4


def steps(
    nodes: list[LoopNode | StatementNode],
) -> Iterator[tuple[StatementNode, tuple[LoopNode, ...]]]:
    """All statements below some nodes, each with the loops from these nodes down to it."""
    for node in nodes:
        if isinstance(node, StatementNode):
            yield node, ()
        else:
            for step, loops in steps(node.body):
                yield step, (node, *loops)
