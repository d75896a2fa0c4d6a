"""Targets as readable tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockwright.target.isa import GATHER_STRIDE

if TYPE_CHECKING:
    from blockwright.target.target import Target

Rows = Sequence[Sequence[str]]


def describe(target: Target) -> str:
    """All figures of a target, with units and sources."""
    heading = f"{target.name}: {target.arch}, {target.kind} device {target.device}"
    parts = [heading, *_machine(target), "", "Compute units, per core", *_units(target)]
    parts += ["", "Memory, nearest first", *_spaces(target)]
    parts += ["", "Execution levels", *_levels(target), "", "Sources", *_sources(target)]
    return "\n".join(parts)


def _machine(target: Target) -> list[str]:
    isa, gpu = target.isa, target.gpu
    if gpu is not None:
        rows = [
            ("product", gpu.product),
            ("multiprocessors", f"{gpu.count} at {gpu.clock_hz / 1e9:g} GHz"),
            ("resident", f"{gpu.threads} threads, {gpu.blocks} blocks per multiprocessor"),
            ("launch", f"{gpu.launch_seconds * 1e6:g} µs per kernel"),
        ]
        return _table(rows)
    assert isa is not None
    core = target.core
    masks = "free" if not isa.masked_store_cycles else f"{isa.masked_store_cycles:g} cycles a store"
    rows = [
        ("features", " ".join(sorted(target.feature_set))),
        ("vectors", f"{isa.name}: {isa.registers} registers of {isa.bits} bits; masks: {masks}"),
        ("issue", f"{core.issue:g} instructions, {core.arithmetic:g} FMA, {core.loads:g} loads, "
                  f"{core.stores:g} stores per cycle at {core.frequency_hz / 1e9:g} GHz; "
                  f"{core.narrow_arithmetic:g} FMA of half vectors"),
        ("latency", f"{core.latency} cycles of an FMA; a division takes "
                    f"{core.division_issue:g} issue slots"),
        ("vector moves", f"{core.lone_store_cycles:g} cycles to store an element alone; gathers "
                         f"from strides over {GATHER_STRIDE} elements"),
        ("prefetchers", f"{core.late_rows:.0%} of lines late when rows alternate, all when a store "
                        f"skips {core.skipped_lines:g} lines"),
        ("not hidden", f"{core.exposed:.0%} of the shorter of work and traffic"),
        ("layouts", f"channels first costs a byte copied per {core.reorder_flops:g} operations"),
        ("parallel loop", f"{core.parallel_launch_cycles} cycles to launch, "
                          f"{core.task_dispatch_cycles} to dispatch a task"),
        ("branches", f"{core.mispredict_cycles} cycles per mispredicted loop exit; those of up to "
                     f"{core.predicted_iterations} constant iterations are predicted"),
        ("TLB", f"{core.tlb_entries[0]} and {core.tlb_entries[1]} pages of {core.page_bytes} B; "
                f"misses {core.tlb_miss_cycles[0]} and {core.tlb_miss_cycles[1]} cycles"),
    ]  # fmt: skip
    return _table(rows)


def _units(target: Target) -> list[str]:
    head = ("instruction", "m×n×k", "A", "B", "accumulator", "per cycle", "MAC/cycle", "latency",
            "operands")  # fmt: skip
    rows = [
        (
            unit.name,
            f"{unit.m}×{unit.n}×{unit.k}",
            unit.a,
            unit.b,
            unit.accumulator,
            f"{unit.per_cycle:.3g}",
            f"{unit.multiply_adds_per_cycle:g}",
            str(unit.latency),
            ", ".join(unit.operands),
        )
        for unit in target.compute_units
    ]
    return _table([head, *rows]) if rows else ["  none"]


def _spaces(target: Target) -> list[str]:
    head = ("space", "size", "B/cycle", "latency", "shared by", "scope")
    rows = [
        (
            space.name,
            _size(space.size),
            f"{space.bandwidth:.3g}" if space.bandwidth else "",
            f"{space.latency:g}" if space.latency else "",
            str(space.shared_by),
            space.scope,
        )
        for space in target.memory_spaces
    ]
    return _table([head, *rows])


def _levels(target: Target) -> list[str]:
    sizes = {"thread": target.num_threads, "lane": target.lanes("float32")}
    rows: list[tuple[str, str, str]] = []
    for scope in target.execution_scopes:
        count = scope.max_size or sizes.get(scope.name, 0)
        limit = f"at most {count}" if scope.max_size else str(count or "")
        rows.append((scope.name, limit, " ".join(scope.thread_tags)))
    return _table([("level", "members", "axes"), *rows])


def _sources(target: Target) -> list[str]:
    gpu, isa = target.gpu, target.isa
    records = [gpu.source] if gpu is not None else [target.core.source]
    records += [isa.source] if isa is not None else []
    records += [unit.source for unit in target.compute_units]
    records += [space.source for space in target.memory_spaces]
    return [f"  {source}" for source in dict.fromkeys(filter(None, records))]


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B" if nbytes else ""


def _table(rows: Rows) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return [f"  {line}".rstrip() for line in lines]
