"""Check of kernel launches: axes, limits of the target, execution scopes.

- loops bound to one axis of a kernel have the same extent (BW236);
- no loop of a kernel is parallel, because its threads are those of its axes (BW231);
- numbers of threads and blocks, and memory per block and thread, are within the target's limits
  (BW237);
- a block or operation executed collectively by a warp or thread block is reached by all threads of
  a full one (BW239).

Without a target, only target-independent rules are checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from blockwright import ir
from blockwright.analysis.dataflow.contexts import BlockContext
from blockwright.analysis.facts import symbol_facts
from blockwright.analysis.kernels import (
    AXES,
    BLOCK_AXES,
    THREAD_AXES,
    VIRTUAL_AXES,
    KernelLaunch,
    ThreadAxis,
    shares,
    statements,
)
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import Analyzer, bound_region
from blockwright.target import LaunchLimits, Target

_ORDER = {"gpu_block": 0, "gpu_warp": 1, "gpu_thread": 2}
_WARP = 32
_TOGETHER: dict[str, str] = {
    "tvm_storage_sync": "gpu_block", "tvm_thread_allreduce": "gpu_block",
    **dict.fromkeys((
        "tvm_load_matrix_sync", "tvm_store_matrix_sync", "tvm_mma_sync", "tvm_bmma_sync",
        "tvm_fill_fragment", "ptx_mma", "ptx_mma_sp", "ptx_ldmatrix", "mma_fill", "mma_store",
        "tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down", "tvm_warp_shuffle_xor",
        "tvm_warp_ballot", "tvm_warp_any", "tvm_warp_all",
    ), "gpu_warp"),
}  # fmt: skip
"""Collective operations, with the group of threads that executes them."""


def launch_problems(
    func: ir.PrimFunc,
    kernels: Sequence[KernelLaunch],
    found: Sequence[BlockContext],
    target: Target | None,
) -> Iterator[Violation]:
    """Violations in all kernels of a function."""
    analyzer = symbol_facts(func)
    limits = None if target is None else target.launch
    for kernel in kernels:
        yield from _axes(kernel, analyzer)
        yield from _parallel(kernel)
        if limits is not None:
            yield from _sizes(kernel, limits, analyzer)
            inside = [v for v in found if v.kernel is kernel]
            yield from _memory(func, kernel, inside, limits, analyzer)
    for context in found:
        yield from _scope(context, limits, analyzer)
        yield from _operations(context, analyzer)


def _parallel(kernel: KernelLaunch) -> Iterator[Violation]:
    for nest in kernel.nests:
        for loop in ir.loops(nest):
            if loop.kind is ir.ForKind.PARALLEL:
                yield Violation(
                    "BW231",
                    f"loop {loop.loop_var.name} is parallel inside a kernel, "
                    "whose only threads are those of its axes",
                    (loop, nest),
                    "bind it to a thread axis, or run it serially",
                )


# ------------------------------------------------------------------------------------ axes
def _axes(kernel: KernelLaunch, analyzer: Analyzer) -> Iterator[Violation]:
    for tag, axes in kernel.axes.items():
        if tag not in AXES:
            yield Violation(
                "BW236",
                f"unknown thread axis {tag!r}",
                tuple(a.stmt for a in axes),
                f"axes: {', '.join(AXES)}",
            )
            continue
        wrong = [a for a in axes if not ir.is_const_int(a.low, 0)]
        if wrong:
            yield Violation(
                "BW236",
                f"loop {wrong[0].var.name} bound to {tag} does not start at 0",
                tuple(a.stmt for a in wrong),
            )
        if tag in VIRTUAL_AXES:
            continue
        other = next((a for a in axes if not _equal(a, axes[0], analyzer)), None)
        if other is not None:
            yield Violation(
                "BW236",
                f"loops {axes[0].var.name} and {other.var.name} of one kernel are bound to {tag} "
                f"with different extents, {axes[0].extent!r} and {other.extent!r}",
                (axes[0].stmt, other.stmt),
                "split or fuse them to the same extent, or bind them to different axes",
            )


def _equal(a: ThreadAxis, b: ThreadAxis, analyzer: Analyzer) -> bool:
    return analyzer.prove_equal(ir.cast_to(a.extent, b.extent.dtype), b.extent)


# ------------------------------------------------------------------------------------ sizes
def _sizes(kernel: KernelLaunch, limits: LaunchLimits, analyzer: Analyzer) -> Iterator[Violation]:
    threads = 1
    for tags, limits_of_tags, known in (
        (THREAD_AXES, limits.block, True),
        (BLOCK_AXES, limits.grid, False),
    ):
        for tag, limit in zip(tags, limits_of_tags, strict=True):
            extent = kernel.extent(tag)
            if extent is None:
                continue
            largest = analyzer.const_bounds(extent)[1]
            stmts = tuple(a.stmt for a in kernel.axes[tag])
            if largest is None:
                if known:
                    yield Violation(
                        "BW237",
                        f"the extent of {tag}, {extent!r}, has no known bound; "
                        f"the machine allows {limit}",
                        stmts,
                        "split off a constant factor and bind that loop",
                    )
            elif largest > limit:
                yield Violation(
                    "BW237",
                    f"the extent of {tag} is {largest}; the machine allows {limit}",
                    stmts,
                    "split the loop",
                )
            if known and largest is not None:
                threads *= largest
    if threads > limits.block_threads:
        stmts = tuple(a.stmt for tag in THREAD_AXES for a in kernel.axes.get(tag, ())[:1])
        yield Violation(
            "BW237",
            f"a block of the kernel has {threads} threads; the machine allows "
            f"{limits.block_threads}",
            stmts,
            "bind smaller loops",
        )


def _memory(
    func: ir.PrimFunc,
    kernel: KernelLaunch,
    inside: Sequence[BlockContext],
    limits: LaunchLimits,
    analyzer: Analyzer,
) -> Iterator[Violation]:
    """Check bytes per block and per thread, counting the parts of buffers that each accesses."""
    users = _users(func, inside)
    for what, largest, chosen in (
        ("shared memory per block", limits.shared_bytes, "shared"),
        ("private memory per thread", limits.local_bytes, "local"),
    ):
        mine = [b for b in users if b.scope.split(".")[0] == chosen]
        sizes = {b: _bytes(b, users[b], analyzer) for b in mine}
        total = sum(n for n in sizes.values() if n is not None)
        if total > largest:
            parts = ", ".join(f"{b.name} {n}" for b, n in sizes.items() if n is not None)
            yield Violation(
                "BW237",
                f"a kernel asks for {total} bytes of {what} ({parts}); the machine has {largest}",
                tuple(mine),
                "use smaller tiles, or fewer buffers at a time",
            )


def _users(
    func: ir.PrimFunc, contexts: Sequence[BlockContext]
) -> dict[ir.Buffer, list[BlockContext]]:
    """The blocks that access each buffer that the function allocates outside "global"."""
    result: dict[ir.Buffer, list[BlockContext]] = {}
    allocated = {b for block in ir.blocks(func.body) for b in block.alloc_buffers}
    for context in contexts:
        for region in (*context.block.reads, *context.block.writes):
            if region.buffer in allocated and region.buffer.scope != "global":
                result.setdefault(region.buffer, []).append(context)
    return result


def unit_memory_problems(
    func: ir.PrimFunc, contexts: Sequence[BlockContext], target: Target
) -> Iterator[Violation]:
    """Buffers that do not fit the memories of the target's own compute units."""
    users, analyzer = _users(func, contexts), symbol_facts(func)
    for space in target.own_spaces:
        sizes = {
            b: _bytes(b, found, analyzer) for b, found in users.items() if b.scope == space.scope
        }
        unknown = [b for b, size in sizes.items() if size is None]
        total = sum(size for size in sizes.values() if size is not None)
        if not unknown and (not space.size or total <= space.size):
            continue
        parts = ", ".join(f"{b.name} {'?' if n is None else n}" for b, n in sizes.items())
        yield Violation(
            "BW237",
            f"{space.name} ({space.scope!r}) must hold {parts} bytes; {target} has {space.size}",
            tuple(sizes),
            "compute_at the copies further inside, or use smaller tiles, of constant size",
        )


def _bytes(buffer: ir.Buffer, users: Sequence[BlockContext], analyzer: Analyzer) -> int | None:
    """Bytes of one copy of a buffer, reduced to the part in use at a time; None if unknown."""
    paths = [v.path for v in users]
    common = [
        level
        for level in paths[0]
        if all(any(x.var is level.var for x in p) for p in paths)
        and not (level.tag and shares(buffer.scope, level.tag))
    ]
    known = analyzer.copy()
    for level in common:
        known.bind(level.var, level.dom)
    extents = [0] * buffer.ndim
    for context in users:
        domains = {x.var: x.dom for x in context.path if all(x.var is not c.var for c in common)}
        for region in (*context.block.reads, *context.block.writes):
            if region.buffer is not buffer:
                continue
            ranges = [context.resolved(r) for r in region.region]
            box = bound_region(ranges, domains, known, None, buffer.shape)
            for k, (rng, full) in enumerate(zip(box, buffer.shape, strict=True)):
                bounds = [known.const_bounds(e)[1] for e in (rng.extent, full)]
                sizes = [b for b in bounds if b is not None]
                if not sizes:
                    return None
                extents[k] = max(extents[k], min(sizes))
    return math.prod(extents) * buffer.dtype.nbytes * buffer.dtype.lanes


# ------------------------------------------------------------------------------------ who runs
def _scope(
    context: BlockContext, limits: LaunchLimits | None, analyzer: Analyzer
) -> Iterator[Violation]:
    """Check the execution scope of a block."""
    wanted = context.block.exec_scope
    if not wanted:
        return
    name = context.block.name
    if wanted not in _ORDER:
        yield Violation(
            "BW231",
            f"block {name} runs in {wanted!r}, which is not an execution scope",
            (context.realize,),
            f"one of {', '.join(_ORDER)}",
        )
        return
    if context.kernel is None:
        yield Violation(
            "BW239",
            f"block {name} has execution scope {wanted}, but is in no kernel",
            (context.realize,),
            "bind a loop around it to a thread axis",
        )
        return
    outer = [s for s in context.around if isinstance(s, ir.Block) and s.exec_scope in _ORDER]
    finer = next((s for s in outer if _ORDER[s.exec_scope] > _ORDER[wanted]), None)
    if finer is not None:
        yield Violation(
            "BW239",
            f"block {name}, executed by a whole {wanted}, is in block {finer.name}, "
            f"executed by a {finer.exec_scope}",
            (finer, context.realize),
        )
    if wanted == "gpu_thread":
        if not any(level.tag in THREAD_AXES for level in context.path):
            yield Violation(
                "BW239",
                f"block {name} is for single threads, but no loop around it is bound to threadIdx",
                (context.realize,),
                "bind a loop around it to threadIdx",
            )
        return
    yield from _together(
        context,
        wanted,
        f"block {name}",
        context.realize,
        analyzer,
        limits.warp if limits else _WARP,
    )


def _operations(context: BlockContext, analyzer: Analyzer) -> Iterator[Violation]:
    """Check collective operations of a warp or thread block."""
    inner = {s.block for s in statements(context.block.body) if isinstance(s, ir.BlockRealize)}
    if inner:
        return
    for node in ir.walk(context.block.body):
        if not isinstance(node, ir.Call) or node.op not in _TOGETHER:
            continue
        wanted = _TOGETHER[node.op]
        if context.kernel is None:
            yield Violation(
                "BW239",
                f"{node.op} in block {context.block.name} is in no kernel",
                (node,),
                "bind loops around it to thread axes",
            )
            continue
        yield from _together(context, wanted, node.op, node, analyzer, _WARP)


def _together(
    context: BlockContext, wanted: str, what: str, node: ir.Node, analyzer: Analyzer, warp: int
) -> Iterator[Violation]:
    """Check that all threads of a warp or block reach a node and do the same there."""
    kernel = context.kernel
    assert kernel is not None
    group = ("threadIdx.x",) if wanted == "gpu_warp" else THREAD_AXES
    if wanted == "gpu_warp":
        lanes = kernel.extent("threadIdx.x")
        full = lanes is not None and analyzer.prove_equal(
            ir.floormod(lanes, warp), ir.const(0, lanes.dtype)
        )
        if not full:
            has = "has no threadIdx.x" if lanes is None else f"has {lanes!r} along threadIdx.x"
            yield Violation(
                "BW239",
                f"{what} needs a full warp of {warp} threads; the kernel {has}",
                (node,),
                f"bind a loop of {warp} iterations, or a multiple, to threadIdx.x",
            )
            return
    members = {level.var for level in context.path if level.tag in group}
    where = next((g for g in context.guards if ir.uses_var(g, members)), None)
    if where is not None:
        yield Violation(
            "BW239",
            f"{what} needs all threads of a {wanted}, but runs under {where!r}, "
            "which differs between them",
            (node, context.realize),
            "make the condition independent of the thread",
        )
        return
    if context.block.exec_scope != wanted:
        return
    moved = [it for it in context.block.iter_vars if ir.uses_var(context.values[it.var], members)]
    if moved:
        names = ", ".join(it.var.name for it in moved)
        yield Violation(
            "BW239",
            f"{what} runs once for a whole {wanted}, but its iterators "
            f"{names} differ between its threads",
            (node, *moved),
            "bind the thread axis inside the block, or drop its execution scope",
        )
