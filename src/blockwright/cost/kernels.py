"""Kernels: straight-line code between loops, and its cycles if all data is in the first cache.

A kernel is the code inside the innermost loops that remain loops in machine code; unrolled loops
and lanes become instructions. Values that do not depend on the innermost loop are loaded before it
and stored after it, as long as registers suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright.cost.footprint import (
    CacheLevel,
    Footprint,
    ReuseGroup,
    footprint,
    grouped,
)
from blockwright.cost.nest import AccessNode, BufferNode, LoopNode, StatementNode, steps
from blockwright.target import Target


class CodeRegion(msgspec.Struct, eq=False):
    """Straight-line code and the loops around it.

    Attributes:
        loops: outermost first.
        body: its statements, each with the unrolled loops and lanes around it.
        groups: its memory accesses by reuse group, without those to registers.
        spilled: bytes of register buffers that do not fit.
        touched: footprints computed so far.
    """

    loops: tuple[LoopNode, ...]
    body: list[tuple[StatementNode, tuple[LoopNode, ...]]]
    groups: list[ReuseGroup] = []
    spilled: float = 0
    touched: dict[tuple[int, int], list[tuple[BufferNode, Footprint]]] = {}

    def footprints(self, depth: int, line: int) -> list[tuple[BufferNode, Footprint]]:
        """Footprint of each group in lines of a size, for one iteration of the outermost loops.

        Arguments: `depth` is the number of these outermost loops.
        """
        result = self.touched.get((depth, line))
        if result is None:
            still = self.loops[:depth]
            times = math.prod(loop.count for loop in self.loops[depth:])
            result = [(g.access.storage, footprint(g, still, times, line)) for g in self.groups]
            self.touched[depth, line] = result
        return result

    def occupied(self, depth: int, level: CacheLevel) -> dict[BufferNode, tuple[float, float]]:
        """Lines of each buffer, and the fraction of a level that they occupy; see `footprints`."""
        result: dict[BufferNode, tuple[float, float]] = {}
        for storage, touched in self.footprints(depth, level.line):
            lines, share = result.get(storage, (0.0, 0.0))
            own = touched.share(level) / (level.threads if storage.common else 1)
            result[storage] = lines + touched.lines, share + own
        return result

    @property
    def share(self) -> float:
        """Fraction of the iterations around it in which its conditions hold."""
        return max(step.share for step, _ in self.body)

    @property
    def times(self) -> float:
        """Executions of the code in the busiest thread."""
        return self.share * math.prod(loop.count for loop in self.loops)


def kernels(nodes: list[LoopNode | StatementNode], target: Target) -> list[CodeRegion]:
    """All kernels in program order."""
    result = list(_kernels(nodes, ()))
    registers = target.vector_registers * target.vector_bits / 8
    for kernel in result:
        held = _registers(kernel)
        kernel.spilled = max(0.0, sum(held.values()) + target.vector_bits / 8 - registers)
        touched = [a for step, _ in kernel.body for a in step.accesses if a.storage not in held]
        kernel.groups = grouped(touched)
    return result


def _kernels(
    nodes: list[LoopNode | StatementNode], around: tuple[LoopNode, ...]
) -> Iterator[CodeRegion]:
    straight: list[tuple[StatementNode, tuple[LoopNode, ...]]] = []
    for node in nodes:
        if isinstance(node, StatementNode) or _is_straight(node):
            straight += steps([node])
            continue
        if straight:
            yield CodeRegion(around, straight)
            straight = []
        yield from _kernels(node.body, (*around, node))
    if straight:
        yield CodeRegion(around, straight)


def _is_straight(loop: LoopNode) -> bool:
    if loop.kind not in ("unrolled", "lanes"):
        return False
    return all(isinstance(node, StatementNode) or _is_straight(node) for node in loop.body)


def _registers(kernel: CodeRegion) -> dict[BufferNode, float]:
    """Buffers kept in registers and their bytes; buffers indexed by a loop stay in memory."""
    held: dict[BufferNode, float] = {}
    moved: set[BufferNode] = set()
    for step, _ in kernel.body:
        for access in step.accesses:
            if access.storage.registers:
                held[access.storage] = access.storage.size
                if access.moves.keys() & set(kernel.loops):
                    moved.add(access.storage)
    return {storage: size for storage, size in held.items() if storage not in moved}


def cycles(kernel: CodeRegion, target: Target) -> float:
    """Cycles of all executions, with all data in the first-level cache."""
    core, vector = target.core, target.vector_bits / 8
    arithmetic = busy = loads = stores = chain = anew = 0.0
    load_bytes = store_bytes = 0.0
    inner = kernel.loops[-1] if kernel.loops else None
    counted: set[tuple[object, ...]] = set()
    for step, loops in kernel.body:
        share = step.share / kernel.share
        instances = share * math.prod(_vectors(loop, step.width, vector) for loop in loops)
        wide = math.prod(loop.count for loop in loops if loop.kind == "lanes") * step.width
        rate = core.arithmetic if 2 * wide > vector else core.narrow_arithmetic
        arithmetic += step.operations * instances
        busy += step.operations * instances / rate
        for access in step.accesses:
            key = (access.storage, access.stored, access.base, frozenset(access.moves.items()))
            if key in counted or not any(access.storage is g.access.storage for g in kernel.groups):
                continue
            counted.add(key)
            count = share * _instructions(access, loops, vector) / _hoisted(access, inner)
            size = count * _reach(access, loops, vector)
            if access.stored:
                stores, store_bytes = stores + count, store_bytes + size
            else:
                loads, load_bytes = loads + count, load_bytes + size
        if step.restarts:
            anew = max(anew, share * _length(step, loops) * core.latency)
        else:
            chain = max(chain, share * _chain(step, loops, inner) * core.latency)
    spilled = kernel.spilled / vector
    loads, stores = loads + spilled, stores + spilled
    load_bytes, store_bytes = load_bytes + kernel.spilled, store_bytes + kernel.spilled
    instructions = arithmetic + loads + stores + (2 if inner is not None else 0)
    moved = max(
        loads / core.loads,
        load_bytes / core.load_bytes,
        stores / core.stores,
        store_bytes / core.store_bytes,
    )
    chain = max(chain, anew * min(1.0, instructions / core.reorder_window))
    updates = core.chained(busy, chain)
    once = max(updates, moved, instructions / core.issue)
    exits = 0.0 if inner is None or inner.predicted else kernel.times / inner.count
    return kernel.times * once + exits * core.mispredict_cycles


def lone_store_cycles(kernel: CodeRegion, target: Target, level: CacheLevel) -> float:
    """Cycles to store elements of vectors one by one, at a distance from each other.

    The lines of a vector may map to so few sets of the first-level cache, `level`, that each store
    drives out one that the next vector needs; then each waits for a line to be written and read.
    """
    core, total = target.core, 0.0
    for step, loops in kernel.body:
        for access in step.accesses:
            apart = [(abs(access.moves.get(n, 0)), n.count) for n in loops if n.kind == "lanes"]
            lone = [(move, count) for move, count in apart if move not in (0, access.width)]
            memory = any(access.storage is g.access.storage for g in kernel.groups)
            if not (access.stored and memory and lone):
                continue
            each = core.lone_store_cycles
            lines = math.prod(count for _, count in lone)
            if Footprint(lines, access.width, tuple(sorted(lone))).share(level) > 1:
                each += 2 * core.strided_line_cycles(level.line)
            total += each * step.share * _instructions(access, loops, target.vector_bits / 8)
    return total * kernel.times / kernel.share


def _vectors(loop: LoopNode, width: int, vector: float) -> float:
    return math.ceil(loop.count * width / vector) if loop.kind == "lanes" else loop.count


def _instructions(access: AccessNode, loops: tuple[LoopNode, ...], vector: float) -> float:
    """Number of loads or stores of an access; loops that do not move it add none."""
    count = 1.0
    lanes = {loop for loop in (*loops, *access.moves) if loop.kind == "lanes"}
    for loop in lanes | set(loops):
        step = abs(access.moves.get(loop, 0))
        if step:
            together = loop.kind == "lanes" and step == access.width
            count *= _vectors(loop, access.width, vector) if together else loop.count
    return count


def _reach(access: AccessNode, loops: tuple[LoopNode, ...], vector: float) -> float:
    """Bytes that each of these instructions transfers."""
    together = [
        loop.count
        for loop in {*loops, *access.moves}
        if loop.kind == "lanes" and abs(access.moves.get(loop, 0)) == access.width
    ]
    return min(vector, access.width * math.prod(together))


def _hoisted(access: AccessNode, inner: LoopNode | None) -> float:
    """Iterations per executed access: all those of the innermost loop if it is hoisted from it."""
    return 1 if inner is None or inner in access.moves or access.scattered else inner.count


def _chain(step: StatementNode, loops: tuple[LoopNode, ...], inner: LoopNode | None) -> float:
    """Dependent updates of one accumulator per execution."""
    if not step.chained or inner is None:
        return 0
    return 0 if inner in step.accesses[0].moves else _length(step, loops)


def _length(step: StatementNode, loops: tuple[LoopNode, ...]) -> float:
    """Updates of one accumulator in straight-line code."""
    return math.prod(loop.count for loop in loops if loop not in step.accesses[0].moves)
