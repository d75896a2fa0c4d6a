"""Alias analysis: the buffers whose memory each statement accesses.

A buffer of `match_buffer` or `decl_buffer` aliases other buffers, and so does a pointer returned by
`T.address_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blockwright.analysis.canonical.pointers import memories, named_pointers
from blockwright.interp.gpu.asynchronous import WRITES
from blockwright.ir import (
    Block,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    DeclBuffer,
    Node,
    PrimFunc,
    Var,
    atomic_place,
    collect,
    is_atomic,
    walk,
)

_CALLS = frozenset({"call_packed", "call_extern", "call_global", "load_object"})

# These calls receive copies of tensors.
_COPIES = frozenset({"call_object", "make_closure"})


class Memories:
    """The views and named pointers of a program, with the buffers that each may alias."""

    def __init__(self, func: PrimFunc) -> None:
        self._named = named_pointers(func)
        self._parameters = dict(func.buffer_map)
        self._behind: dict[Buffer, tuple[Buffer, ...]] = {}
        for node in walk(func.body):
            if isinstance(node, Block):
                self._behind |= {m.buffer: (m.source.buffer,) for m in node.match_buffers}
            elif isinstance(node, DeclBuffer):
                self._behind[node.buffer] = self._memories(memories(node.source, self._named))

    def of(self, buffer: Buffer) -> set[Buffer]:
        """The underlying buffers of a view, through nested views; any other buffer itself.

        A view of a pointer without a known buffer is treated as separate memory.
        """
        behind = self._behind.get(buffer)
        if not behind:
            return {buffer}
        return {root for each in behind for root in self.of(each)}

    def touched(
        self, root: Node, called: Callable[[Call], Iterable[Buffer]] | None = None
    ) -> dict[Buffer, bool]:
        """Buffers that a statement accesses, and whether it writes them.

        Args:
            called: returns the buffers written by a call of another function of the module; without
                it, every buffer passed to the call counts as written.
        """
        result: dict[Buffer, bool] = {}
        for node in walk(root):
            for buffer, writes in self._accesses(node, called):
                for memory in self.of(buffer):
                    result[memory] = result.get(memory, False) or writes
        return result

    def passed(self, node: Node) -> list[Buffer]:
        """Buffers that a call, or one of its arguments, mentions or points to."""
        pointers = [v for v in collect(node, Var) if v.type.is_handle]
        behind = self._memories(m for v in pointers for m in memories(v, self._named))
        return [*collect(node, Buffer), *behind]

    def _accesses(
        self, node: Node, called: Callable[[Call], Iterable[Buffer]] | None
    ) -> list[tuple[Buffer, bool]]:
        if isinstance(node, (BufferLoad, BufferStore)):
            return [(node.buffer, isinstance(node, BufferStore))]
        if not isinstance(node, Call):
            return []
        if is_atomic(node):
            place = atomic_place(node)
            return [] if place is None else [(place.buffer, True)]
        if node.op in WRITES:
            return [(b, True) for b in self.passed(node.args[WRITES[node.op]])]
        if node.op == "call_global" and called is not None:
            return [(b, True) for b in called(node)]
        if node.op in _CALLS:
            return [(b, True) for b in self.passed(node)]
        if node.op in _COPIES:
            return [(b, False) for b in self.passed(node)]
        return []

    def _memories(self, found: Iterable[Buffer | Var]) -> tuple[Buffer, ...]:
        known = (m if isinstance(m, Buffer) else self._parameters.get(m) for m in found)
        return tuple(dict.fromkeys(b for b in known if b is not None))
