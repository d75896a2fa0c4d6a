"""Thread axes and kernels: bound loops, grouping of nests into launches, and memory sharing.

A kernel is launched by the outermost thread-bound loop. Nests without a `blockIdx` axis that access
the same on-chip buffer belong to one single-block kernel, which starts at the statement that
contains all of them; lowering inserts barriers between them. All loops of a kernel bound to the
same axis denote the same thread, even if nested: the inner loop does not iterate again, its
variable equals that of the outer loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.tree import Tree, child_stmts

BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
VIRTUAL_AXES = ("vthread", "vthread.x", "vthread.y", "vthread.z")
AXES = (*BLOCK_AXES, *THREAD_AXES, *VIRTUAL_AXES)


class ThreadAxis(NamedTuple):
    """A statement that binds a variable to a thread axis."""

    tag: str
    var: ir.Var
    low: ir.Expr
    extent: ir.Expr
    stmt: ir.Stmt


@dataclasses.dataclass(eq=False)
class KernelLaunch:
    """A kernel launch: its nests, and its axes by tag, both in program order."""

    nests: list[ir.Stmt]
    axes: dict[str, list[ThreadAxis]]

    def canonical(self, axis: ThreadAxis) -> ir.Var:
        """The variable that represents an axis throughout the kernel."""
        return self.axes[axis.tag][0].var

    def extent(self, tag: str) -> ir.Expr | None:
        """Extent of an axis; None if the kernel does not use it."""
        result = self.axes.get(tag)
        return result[0].extent if result else None


def axis_of(stmt: ir.Stmt) -> ThreadAxis | None:
    """The axis bound by a thread-bound loop or `T.launch_thread`; None for other statements."""
    if isinstance(stmt, ir.For) and stmt.kind is ir.ForKind.THREAD_BINDING:
        tag = "" if stmt.thread is None else stmt.thread.thread_tag
        return ThreadAxis(tag, stmt.loop_var, stmt.min, stmt.extent, stmt)
    if isinstance(stmt, ir.AttrStmt) and stmt.key in ("thread_extent", "virtual_thread"):
        axis = stmt.node
        if isinstance(axis, ir.IterVar):
            low = ir.const(0, axis.var.dtype)
            return ThreadAxis(axis.thread_tag, axis.var, low, stmt.value, stmt)
    return None


def shares(scope: str, tag: str) -> bool:
    """Whether the threads along an axis share one copy of a buffer in a storage scope.

    Registers are private to a thread; fragments and "warp" belong to the 32 threads along
    `threadIdx.x`; shared memory belongs to a thread block. A virtual thread counts as a thread.
    """
    if scope == "global":
        return True
    if scope.startswith("shared"):
        return tag not in BLOCK_AXES
    return scope != "local" and tag == "threadIdx.x"


def fills_together(loop: ir.For, buffer: ir.Buffer) -> bool:
    """Whether the iterations of a loop are threads that share one on-chip copy of a buffer."""
    tag = "" if loop.thread is None else loop.thread.thread_tag
    return bool(tag) and buffer.scope != "global" and shares(buffer.scope, tag)


def kernels(func: ir.PrimFunc) -> list[KernelLaunch]:
    """The kernels of a function in program order; empty for a program without thread axes."""
    result: list[KernelLaunch] = []
    _outermost(func.body, result)
    return _joined(result)


def _outermost(stmt: ir.Stmt, found: list[KernelLaunch]) -> None:
    stack = [stmt]
    while stack:
        here = stack.pop()
        if axis_of(here) is None:
            stack += child_stmts(here)[::-1]
            continue
        axes: dict[str, list[ThreadAxis]] = {}
        for inner in statements(here):
            axis = axis_of(inner)
            if axis is not None:
                axes.setdefault(axis.tag, []).append(axis)
        found.append(KernelLaunch([here], axes))


def statements(root: ir.Stmt) -> list[ir.Stmt]:
    """A statement and all statements below it, in program order."""
    out: list[ir.Stmt] = []
    stack = [root]
    while stack:
        here = stack.pop()
        out.append(here)
        stack += child_stmts(here)[::-1]
    return out


def _joined(found: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """Merge single-block nests that share an on-chip buffer into one kernel each."""
    result: list[KernelLaunch] = []
    owners: dict[ir.Buffer, KernelLaunch] = {}
    for kernel in found:
        target = kernel
        if not any(tag in kernel.axes for tag in BLOCK_AXES):
            chip = _on_chip(kernel.nests[0])
            target = next((owners[b] for b in chip if b in owners), kernel)
            if target is not kernel:
                target.nests += kernel.nests
                for tag, axes in kernel.axes.items():
                    target.axes.setdefault(tag, []).extend(axes)
            owners.update(dict.fromkeys(chip, target))
        if target is kernel:
            result.append(kernel)
    return result


def _on_chip(stmt: ir.Stmt) -> list[ir.Buffer]:
    """Non-global buffers that a nest uses but does not allocate."""
    own: set[ir.Buffer] = set()
    used: dict[ir.Buffer, None] = {}
    for node in ir.walk(stmt):
        if isinstance(node, ir.Block):
            own.update(node.alloc_buffers)
            own.update(m.buffer for m in node.match_buffers)
        elif isinstance(node, ir.Buffer) and node.scope != "global":
            used[node] = None
    return [b for b in used if b not in own]


def kernel_at(found: Sequence[KernelLaunch], tree: Tree, stmt: ir.Stmt) -> KernelLaunch | None:
    """The kernel that contains a statement, or None."""
    for kernel in found:
        if any(stmt is nest or tree.is_below(stmt, nest) for nest in kernel.nests):
            return kernel
    return None
