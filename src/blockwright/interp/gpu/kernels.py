"""Analysis of kernels before they run: thread axes, on-chip memory, blocks that need barriers.

All threads of a block run at once, as lanes (`launch`). For this, the analysis determines:

- the loops bound to thread axes, with `T.launch_thread` rewritten to loops;
- on-chip buffers allocated outside of their kernel, which are fresh in each thread block;
- blocks (of the program) that access the same shared buffer, at least one of them writing: threads
  synchronize between two of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from blockwright.analysis.kernels import (
    BLOCK_AXES,
    THREAD_AXES,
    VIRTUAL_AXES,
    KernelLaunch,
    axis_of,
    kernels,
    shares,
    statements,
)
from blockwright.interp.gpu.asynchronous import WRITES
from blockwright.interp.memories import Memories
from blockwright.ir import (
    AttrStmt,
    Block,
    BlockRealize,
    Buffer,
    BufferLoad,
    BufferRegion,
    BufferStore,
    Call,
    Expr,
    For,
    ForKind,
    IterVar,
    Mutator,
    Node,
    PrimFunc,
    Range,
    Stmt,
    Var,
    collect,
    maximum,
    walk,
)
from blockwright.ir import stmt as S
from blockwright.ir.annotations import LAUNCH_THREAD
from blockwright.ir.attributes import NOALIAS
from blockwright.support import InterpretError


@dataclasses.dataclass(eq=False)
class Launch:
    """One nest of a kernel.

    Attributes:
        extents: extent of each thread axis of the kernel, `threadIdx.x` first. Nested virtual
            threads on one axis are separate axes.
        home: the statement that contains all nests of the kernel, if there are several. The kernel
            and its on-chip memory begin where this statement does; otherwise with every launch.
        owned: blockIdx loop, or None for the nest itself → buffers that are fresh there.
        leaves: blocks without nested blocks.
        written: leaf → storage scopes it writes; empty where threads synchronize or cooperate.
        rivals: leaf → other leaves with which it may exchange values.
        tracked: buffers and views that threads share and the kernel writes.
    """

    extents: dict[str, Expr]
    home: Stmt | None
    owned: dict[For | None, list[Buffer]]
    leaves: set[Block]
    written: dict[Block, list[str]]
    rivals: dict[Block, frozenset[Block]]
    tracked: set[Buffer]


def with_axis_loops(func: PrimFunc) -> PrimFunc:
    """Rewrite `T.launch_thread` to loops."""
    return func.replace(body=_AxisLoops()(func.body)) if kernels(func) else func


class _AxisLoops(Mutator):
    def rewrite_AttrStmt(self, node: AttrStmt) -> Stmt:
        axis = axis_of(node)
        if axis is None:
            return self.descend(node)
        thread = IterVar(
            Var(axis.tag, axis.var.type), Range(axis.low, axis.extent), thread_tag=axis.tag
        )
        return For(
            axis.var,
            axis.low,
            axis.extent,
            ForKind.THREAD_BINDING,
            self(node.body),
            thread,
            {LAUNCH_THREAD: 1},
            span=node.span,
        )


def launches(func: PrimFunc) -> dict[For, Launch]:
    """Map each outermost thread-bound loop to its launch."""
    result: dict[For, Launch] = {}
    kernel_of: dict[For, KernelLaunch] = {}
    memories = Memories(func)
    allocated = {b for n in walk(func.body) if isinstance(n, Block) for b in n.alloc_buffers}
    allocated |= {n.buffer for n in statements(func.body) if isinstance(n, S.Allocate)}
    for kernel in kernels(func):
        extents = _extents(kernel)
        leaves = [b for nest in kernel.nests for b in _leaves(nest)]
        touched = {leaf: memories.touched(leaf) for leaf in leaves}
        written = {b for nest in kernel.nests for b, how in memories.touched(nest).items() if how}
        apart = func.attrs.get(NOALIAS) is not False
        tracked = {
            b
            for nest in kernel.nests
            for b in collect(nest, Buffer)
            if _shared(b) and (not apart or written & memories.of(b))
        }
        rivals = {
            x: frozenset(y for y in leaves if y is not x and _meet(touched[x], touched[y]))
            for x in leaves
        }
        scopes = {
            x: [] if _together(x) else [b.scope for b, how in touched[x].items() if how]
            for x in leaves
        }
        home = _home(func.body, kernel.nests) if len(kernel.nests) > 1 else None
        for nest in kernel.nests:
            assert isinstance(nest, For)
            kernel_of[nest] = kernel
            result[nest] = Launch(
                extents, home, _owned(nest, allocated), set(leaves), scopes, rivals, tracked
            )
    _check_kept(func, result, kernel_of)
    return result


def _check_kept(
    func: PrimFunc, found: dict[For, Launch], kernel_of: dict[For, KernelLaunch]
) -> None:
    """Reject on-chip memory that is used by several kernels, or outside of any kernel."""
    users: dict[Buffer, set[KernelLaunch | None]] = {}
    for nest, launch in found.items():
        for buffers in launch.owned.values():
            for buffer in buffers:
                users.setdefault(buffer, set()).add(kernel_of[nest])
    stack: list[Node] = [func.body]
    while stack:
        node = stack.pop()
        if isinstance(node, For) and node in found:
            continue
        if isinstance(node, (BufferLoad, BufferStore, BufferRegion)) and node.buffer in users:
            users[node.buffer].add(None)
        if isinstance(node, Block):
            stack += [n for n in (*node.match_buffers, node.init, node.body) if n is not None]
        elif not isinstance(node, Buffer):
            stack += node.children()
    kept = next((b for b, kernels_ in users.items() if len(kernels_) > 1), None)
    if kept is not None:
        raise InterpretError(
            f"{kept.name} lies in {kept.scope!r}, which ends with its kernel, and is used outside "
            "of it",
            code="BW757",
            span=kept.span,
            help="keep the values in global memory, or let one kernel contain all uses",
        )


def _home(root: Stmt, nests: Sequence[Stmt]) -> Stmt:
    """The innermost statement that contains several nests."""
    inside = set(nests)
    here = root
    while True:
        holding = [s for s in statements_below(here) if not inside.isdisjoint(statements(s))]
        if len(holding) != 1:
            return here
        (here,) = holding


def axis_key(tag: str, depth: int) -> str:
    """The key of an axis: nested virtual threads are distinguished by their depth."""
    return f"{tag}#{depth}" if tag in VIRTUAL_AXES else tag


def axis_tag(key: str) -> str:
    return key.split("#")[0]


def _extents(kernel: KernelLaunch) -> dict[str, Expr]:
    result: dict[str, Expr] = {}

    def visit(stmt: Stmt, depths: dict[str, int]) -> None:
        axis = axis_of(stmt)
        if axis is not None and axis.tag not in BLOCK_AXES:
            key = axis_key(axis.tag, depths.get(axis.tag, 0))
            depths = {**depths, axis.tag: depths.get(axis.tag, 0) + 1}
            known = result.get(key)
            result[key] = axis.extent if known is None else maximum(known, axis.extent)
        for child in statements_below(stmt):
            visit(child, depths)

    for nest in kernel.nests:
        visit(nest, {})
    order = [*THREAD_AXES, *sorted(k for k in result if k not in THREAD_AXES)]
    return {key: result[key] for key in order if key in result}


def statements_below(stmt: Stmt) -> list[Stmt]:
    """Child statements, including the body and init of a block."""
    if isinstance(stmt, BlockRealize):
        return [s for s in (stmt.block.init, stmt.block.body) if s is not None]
    return [c for c in stmt.children() if isinstance(c, Stmt)]


def leaves_in(stmt: Stmt, launch: Launch) -> list[Block]:
    """Leaf blocks of a launch in a statement."""
    return [n for n in walk(stmt) if isinstance(n, Block) and n in launch.leaves]


def _leaves(root: Stmt) -> list[Block]:
    result = [n for n in walk(root) if isinstance(n, Block)]
    return [b for b in result if not any(isinstance(n, Block) for n in walk(b.body))]


# ------------------------------------------------------------------------------------ memory
def _shared(buffer: Buffer) -> bool:
    """Whether threads of a block may exchange values through a buffer, at barriers."""
    return buffer.scope == "global" or buffer.scope.startswith("shared")


def _together(root: Node) -> bool:
    """Whether threads synchronize or cooperate in a block."""
    calls = [n.op for n in walk(root) if isinstance(n, Call)]
    return any(op in WRITES or op.startswith(("tvm_", "ptx_")) for op in calls)


def _meet(a: dict[Buffer, bool], b: dict[Buffer, bool]) -> bool:
    return any(_shared(buffer) and (a[buffer] or b[buffer]) for buffer in a if buffer in b)


def _owned(nest: For, allocated: set[Buffer]) -> dict[For | None, list[Buffer]]:
    """On-chip buffers allocated outside of a nest, by the loop in whose iterations they are fresh.

    That is the innermost blockIdx loop around all uses. A loop further inside would give each of
    its blocks a copy that outlives the loop.
    """
    inside = {b for n in walk(nest) if isinstance(n, Block) for b in n.alloc_buffers}
    inside |= {n.buffer for n in statements(nest) if isinstance(n, S.Allocate)}
    inside |= {m.buffer for n in walk(nest) if isinstance(n, Block) for m in n.match_buffers}
    uses: dict[Buffer, list[tuple[For, ...]]] = {}

    def visit(node: Node, path: tuple[For, ...]) -> None:
        if isinstance(node, Buffer):
            if node in allocated and node not in inside and node.scope != "global":
                uses.setdefault(node, []).append(path)
            return
        if isinstance(node, For):
            axis = axis_of(node)
            if axis is not None and axis.tag in BLOCK_AXES:
                again = any(_tag(f) == axis.tag for f in path)
                path = path if again else (*path, node)
        for child in node.children():
            visit(child, path)

    visit(nest, ())
    result: dict[For | None, list[Buffer]] = {}
    for buffer, paths in uses.items():
        common = _common(paths)
        split = next((p[len(common)] for p in paths if len(p) > len(common)), None)
        if split is not None:
            raise InterpretError(
                f"each block of loop {split.loop_var.name} has its own copy of {buffer.name}, "
                "which outlives the loop",
                code="BW757",
                span=split.span,
                help="let one loop over the blocks contain all uses of the buffer",
            )
        result.setdefault(common[-1] if common else None, []).append(buffer)
    return result


def _tag(loop: For) -> str:
    return "" if loop.thread is None else loop.thread.thread_tag


def _common(paths: Sequence[tuple[For, ...]]) -> tuple[For, ...]:
    shared: list[For] = []
    for loops in zip(*paths, strict=False):
        if any(loop is not loops[0] for loop in loops):
            break
        shared.append(loops[0])
    return tuple(shared)


def copies_of(buffer: Buffer) -> str:
    """The owner of a copy of a buffer: each "thread", each "warp", the "block", or "visit"."""
    if buffer.scope == "global":
        return "visit"
    if buffer.scope.startswith("shared"):
        return "block"
    return "warp" if shares(buffer.scope, "threadIdx.x") else "thread"
