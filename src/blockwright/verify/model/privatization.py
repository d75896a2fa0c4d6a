"""Privatization: which loops and threads have a private copy of a buffer.

A buffer allocated by a block is fresh at each execution of the block, except across threads that
share its memory. A buffer used only inside a parallel loop is fresh in each iteration of the loop.
On-chip memory is private to the threads that do not share its scope and is fresh at each launch of
the kernel that uses it. Such a buffer is modeled with one additional axis for each of these loops,
so that a value passed from one copy to another counts as unwritten.
"""

from __future__ import annotations

from collections.abc import Iterable

from blockwright import ir
from blockwright.verify.model.instance_sets import EnclosingLoop, Step
from blockwright.verify.verdict import Unknown

Path = tuple[ir.For, ...]
MOVED = "moved"
"""Annotation of parallel loops, in a transformed program, whose iterations the original program
runs in several interleaved parts: all iterations share one copy."""
_BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


class Owners:
    """Where the buffers of a program are allocated and used."""

    def __init__(self, body: ir.Stmt) -> None:
        self.allocated: dict[ir.Buffer, Path] = {}
        self.used: dict[ir.Buffer, Path] = {}
        self.tags: dict[ir.Buffer, tuple[str, ...]] = {}
        self.nests: dict[ir.Buffer, list[Path]] = {}
        """On-chip buffer → path to each thread nest that uses it: the loops around the nest and the
        outermost loop of the nest."""
        self._visit(body, ())
        self.loops = {b: self._owning(b) for b in self.allocated}

    def copies(self, buffer: ir.Buffer, loops: tuple[EnclosingLoop, ...]) -> tuple[Step, ...]:
        """The loops whose values distinguish the copies of a buffer, at an access under `loops`."""
        if buffer not in self.allocated:
            return ()
        owning = self.loops[buffer]
        result = [loop.name for loop in loops if loop.node is not None and loop.node in owning]
        if buffer.scope == "global":
            return tuple(result)
        by_tag = sorted(
            (loop.tag, loop.name)
            for loop in loops
            if loop.tag
            and not shares(buffer.scope, loop.tag)
            and loop.name not in result
            and not _is_single(loop)
        )
        tags = tuple(tag for tag, _ in by_tag)
        if self.tags.setdefault(buffer, tags) != tags:
            raise Unknown(
                f"{buffer.name} in scope {buffer.scope!r} is used under different thread axes"
            )
        return (*result, *(name for _, name in by_tag))

    def _owning(self, buffer: ir.Buffer) -> set[ir.For]:
        """Loops around the allocation, and those down to the innermost parallel loop around all
        uses, without loops over threads that share the memory."""
        outside, around = self.allocated[buffer], self.used.get(buffer, ())
        depth = len(outside)
        for k in range(len(outside), len(around)):
            if around[k].kind is ir.ForKind.PARALLEL and MOVED not in around[k].annotations:
                depth = k + 1
        inside = around[len(outside) : depth]
        own = [
            *outside,
            *(loop for loop in inside if MOVED not in loop.annotations),
            *self._launching(buffer),
        ]
        return {
            f
            for f in own
            if f.thread is None
            or buffer.scope == "global"
            or not shares(buffer.scope, f.thread.thread_tag)
        }

    def _launching(self, buffer: ir.Buffer) -> Path:
        """Loops that launch a kernel repeatedly: those around all nests that use its memory.

        These nests form one kernel, which begins at the statement around them.
        """
        nests = dict.fromkeys(self.nests.get(buffer, ()))
        around = _common(nest[:-1] for nest in nests)
        if self.used.get(buffer, ())[: len(around)] != around:
            raise Unknown(f"{buffer.name} in scope {buffer.scope!r} is used outside of its kernel")
        return around

    def _visit(self, node: ir.Node, path: Path) -> None:
        if isinstance(node, ir.Buffer):
            self.used[node] = _common([self.used.get(node, path), path])
            nest = next((k for k, loop in enumerate(path, 1) if loop.thread is not None), 0)
            if nest and node.scope != "global":
                self.nests.setdefault(node, []).append(path[:nest])
        elif isinstance(node, ir.For):
            self._visit(node.min, path)
            self._visit(node.extent, path)
            self._visit(node.body, (*path, node))
        elif isinstance(node, ir.Block):
            for buffer in node.alloc_buffers:
                if buffer in self.allocated:
                    raise Unknown(f"{buffer.name} is allocated in several places")
                self.allocated[buffer] = path
            for view in node.match_buffers:
                self._visit(view.source, path)
            for part in (node.init, node.body):
                if part is not None:
                    self._visit(part, path)
        else:
            for child in node.children():
                self._visit(child, path)


def _common(paths: Iterable[Path]) -> Path:
    """The longest common prefix of several paths."""
    result = [loops[0] for loops in zip(*paths, strict=False) if len(set(loops)) == 1]
    return tuple(result)


def _is_single(loop: EnclosingLoop) -> bool:
    """Whether a thread axis has a single thread, which distinguishes no copies."""
    return loop.node is not None and ir.is_const_int(loop.node.extent, 1)


def shares(scope: str, tag: str) -> bool:
    """Whether the threads along a thread axis share one copy of a buffer in a storage scope.

    The lower digit of a split axis is named after the axis, followed by `/` and its extent.
    """
    tag = tag.partition("/")[0]
    if scope == "global":
        return True
    if scope.startswith("shared"):
        return tag not in _BLOCK_AXES
    return scope != "local" and tag == "threadIdx.x"
