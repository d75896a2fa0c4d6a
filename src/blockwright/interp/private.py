"""Which buffers belong to the iterations of a parallel loop.

A schedule computes a producer inside a parallel loop without moving its buffer, which stays
allocated in an outer block. Iterations of a parallel loop exchange nothing, so a buffer that is
touched only inside such a loop is memory of its iterations, not memory they share: lowering puts
the allocation there. The interpreter does the same with a simpler rule, the place of the accesses
alone, and lets the check for uninitialised reads find an iteration that relies on another's values.
"""

from __future__ import annotations

from blockwright.ir import Block, Buffer, For, ForKind, Node, Stmt

Path = tuple[For, ...]
Privates = dict[For, list[Buffer]]


def private_buffers(root: Stmt) -> Privates:
    """Parallel loop → the buffers of outer blocks that are fresh at each of its iterations."""
    finder = _Finder()
    finder.visit(root, ())
    found: Privates = {}
    for buffer, outside in finder.allocated.items():
        path = finder.used.get(buffer, ())
        if len(path) > len(outside):
            found.setdefault(path[-1], []).append(buffer)
    return found


class _Finder:
    """Parallel loops around each allocation, and around all uses of a buffer."""

    def __init__(self) -> None:
        self.allocated: dict[Buffer, Path] = {}
        self.used: dict[Buffer, Path] = {}

    def visit(self, node: Node, path: Path) -> None:
        if isinstance(node, Buffer):
            known = self.used.get(node, path)
            shared = [a for a, b in zip(known, path, strict=False) if a is b]
            self.used[node] = tuple(shared)
        elif isinstance(node, For):
            self.visit(node.min, path)
            self.visit(node.extent, path)
            self.visit(node.body, (*path, node) if node.kind is ForKind.PARALLEL else path)
        elif isinstance(node, Block):
            self.allocated.update(dict.fromkeys(node.alloc_buffers, path))
            for match in node.match_buffers:
                self.visit(match.source, path)
            for part in (node.init, node.body):
                if part is not None:
                    self.visit(part, path)
        else:
            for child in node.children():
                self.visit(child, path)
