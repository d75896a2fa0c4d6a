"""Predicted time of a scheduled program, and the resources that limit it.

Each kernel has compute cycles (`kernels`) and lines to fetch from each level (`traffic`). A core
overlaps these, so the longest decides; a fraction of the others is added, because they do not
overlap perfectly. Elements of vectors that are stored one by one are added to all that. Threads
share the memory bandwidth; the busiest thread decides.

The model ignores other programs, frequency changes, instruction caches, the state of the caches
before the first call, and the code of remainders (counted like the rest of their loop).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.cost.footprint import CacheLevel, ReuseGroup, footprint
from blockwright.cost.kernels import CodeRegion, cycles, kernels, lone_store_cycles
from blockwright.cost.nest import LoopNode, StatementNode
from blockwright.cost.read import Reader
from blockwright.cost.traffic import cache_levels, page_levels, traffic
from blockwright.target import Core, Target


class KernelTime(msgspec.Struct, frozen=True):
    """The predicted time of one kernel.

    Attributes:
        seconds: time of all its executions.
        limit: the longest of its causes: "compute", the cache that supplies lines, "memory", "TLB".
        causes: seconds that each resource would take alone.
    """

    seconds: float
    limit: str
    causes: dict[str, float]


class Estimate(msgspec.Struct, frozen=True):
    """The predicted time of a program.

    Attributes:
        seconds: time of one call on an otherwise idle machine.
        parts: its kernels, in program order.
        causes: seconds by limiting resource: "compute", "L2", "L3", "memory", "TLB" and "threads"
            (starting and ending parallel loops). They add up to `seconds`.
        notes: properties that the program does not determine, and the assumptions made instead.
    """

    seconds: float
    parts: tuple[KernelTime, ...]
    causes: dict[str, float]
    notes: tuple[str, ...] = ()

    def waits(self, cause: str) -> float:
        """Seconds that a resource would take alone, whether computation hides them or not."""
        return sum(part.causes.get(cause, 0.0) for part in self.parts)

    @property
    def limits(self) -> str:
        """The resource that accounts for most of the time."""
        return max(self.causes, key=lambda cause: self.causes[cause], default="threads")


def estimate(
    func: ir.PrimFunc,
    target: Target | str = "native",
    sizes: Mapping[str, int] | None = None,
    *,
    again: bool = True,
) -> Estimate:
    """Predict the time of a scheduled program.

    Args:
        func: a tensor program with blocks, scheduled or not; or one in flat form.
        target: the machine to predict for.
        sizes: values of symbolic sizes, by name.
        again: whether the program is called repeatedly, so that caches keep what fits; otherwise
            all data is read from memory first.
    """
    machine = Target(target)
    reader = Reader(func, machine, sizes or {})
    result = estimate_nest(reader.body, machine, again=again)
    return msgspec.structs.replace(result, notes=tuple(dict.fromkeys(reader.notes)))


def estimate_nest(
    body: list[LoopNode | StatementNode], target: Target, *, again: bool = True
) -> Estimate:
    """Predict the time of a loop nest that was written down instead of read from a program."""
    result = kernels(body, target)
    fetched = _fetch_cycles(result, target, again)
    hertz = target.core.frequency_hz
    parts: list[KernelTime] = []
    causes: dict[str, float] = {}
    for kernel, waits in zip(result, fetched, strict=True):
        times = {"compute": cycles(kernel, target), **waits}
        limit = max(times, key=lambda cause: times[cause])
        longest = times[limit]
        total = longest + target.core.exposed * (sum(times.values()) - longest)
        # Where memory takes longest anyway, the first reading is part of that time.
        late = times["compute"] + _late(kernel, target, times["compute"]) - longest
        if late > 0:
            times["memory"] = times.get("memory", 0.0) + late
            total += late
        lone = lone_store_cycles(kernel, target, cache_levels(target)[0])
        times["compute"] += lone
        total += lone
        parts.append(KernelTime(total / hertz, limit, {c: t / hertz for c, t in times.items()}))
        causes[limit] = causes.get(limit, 0) + total / hertz
    threads = _threads(body, target, 1.0) / hertz
    if threads:
        causes["threads"] = threads
    return Estimate(sum(causes.values()), tuple(parts), causes)


def _fetch_cycles(
    found: Sequence[CodeRegion], target: Target, again: bool
) -> list[dict[str, float]]:
    """Cycles per kernel to fetch lines from each outer cache and from memory, and TLB misses.

    Written lines are fetched and written back. Irregular accesses pay the miss latency too.
    """
    core = target.core
    caches = cache_levels(target)
    waits: list[dict[str, float]] = [{} for _ in found]
    sources = [level.name for level in caches[1:]] + ["memory"]
    rates, alone = (
        [*figures[: len(sources) - 1], figures[-1]]
        for figures in (core.cache_bandwidth, core.miss_latency)
    )
    rates[-1] = core.dram_bandwidth_per_core(target.num_threads)
    for level, source, rate, wait in zip(caches, sources, rates, alone, strict=True):
        for (number, storage), lines in traffic(found, level, again).items():
            groups = [g for g in found[number].groups if g.access.storage is storage]
            ways = 2 if any(g.stored for g in groups) else 1
            each = ways * level.line / rate
            each += wait * max(_alone(found[number], group, level, core) for group in groups)
            waits[number][source] = waits[number].get(source, 0.0) + lines * each
    for level, wait in zip(page_levels(target), core.tlb_miss_cycles, strict=True):
        for (number, _), pages in traffic(found, level, again).items():
            waits[number]["TLB"] = waits[number].get("TLB", 0.0) + pages * wait
    return waits


def _late(kernel: CodeRegion, target: Target, compute: float) -> float:
    """Cycles in which a kernel stalls because uncached data is still being read.

    Uncached data is read when the loops that do not move through it begin: only the computation of
    their first iterations can overlap with it. Threads that read different parts of it alternate,
    each at the full bandwidth of one core. Threads that all need the whole request the same lines
    at the same time, so each gets only its share of the memory bandwidth.
    """
    core, total = target.core, 0.0
    last = cache_levels(target)[-1]
    for storage in dict.fromkeys(
        g.access.storage for g in kernel.groups if g.access.storage.uncached
    ):
        moving = {m for g in kernel.groups if g.access.storage is storage for m in g.access.moves}
        first = math.prod(1 / loop.count for loop in kernel.loops if loop not in moving)
        rate = core.cache_bandwidth[-1]
        if not any(loop.divided for loop in kernel.loops if loop in moving):
            rate = core.dram_bandwidth_per_core(target.num_threads)
        lines = sum(f.lines for s, f in kernel.footprints(0, last.line) if s is storage)
        total += max(0.0, lines * last.line / rate - first * compute)
    return total


def _alone(kernel: CodeRegion, group: ReuseGroup, level: CacheLevel, core: Core) -> float:
    """Fraction of the lines that pay the full miss latency because prefetching fails.

    This holds for all lines of scattered accesses, for some lines of loads that read a little from
    each of several rows at a time, and for all lines of stores whose innermost moving loop skips
    lines.
    """
    if group.access.scattered:
        return 1.0
    if group.access.prefetched:
        return 0.0
    moves = group.access.moves
    inner = next((loop for loop in reversed(kernel.loops) if loop in moves), None)
    if inner is None:
        return 0.0
    each = footprint(group, kernel.loops, 1, level.line)
    if group.stored:
        return float(abs(moves[inner]) >= each.run + core.skipped_lines * level.line)
    if each.share(level) >= 1 and each.lines < level.lines:  # its lines evict each other
        return 1.0
    return core.late_rows if each.apart else 0.0


def _threads(body: list[LoopNode | StatementNode], target: Target, times: float) -> float:
    """Cycles to start parallel loops, dispatch their tasks, and join them."""
    total = 0.0
    for node in body:
        if isinstance(node, StatementNode):
            continue
        if node.kind == "parallel":
            handed = node.tasks / target.num_threads * target.core.task_dispatch_cycles
            total += times * (target.core.parallel_launch_cycles + handed)
        else:
            total += _threads(node.body, target, times * node.count)
    return total
