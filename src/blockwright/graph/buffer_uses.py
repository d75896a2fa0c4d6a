"""Which of its parameter buffers a tensor program writes, and whose address it hands on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.analysis.canonical.memory import memories, named_pointers

_READERS = ("assume", "prefetch", "print")  # calls with an effect that write no memory


class BufferUses(msgspec.Struct):
    """What a program does with its parameter buffers.

    Attributes:
        written: by stores, by atomic updates, or as the signature of a block says.
        handed_on: their address is given to a call such as `call_extern`.
        unstated: so, and no block around states what the call reads and writes.
    """

    written: set[ir.Buffer]
    handed_on: set[ir.Buffer]
    unstated: set[ir.Buffer]


def uses_of_buffers(func: ir.PrimFunc) -> BufferUses:
    """How a program uses its parameter buffers, by whatever name."""
    root = {b: b for b in func.buffers}
    named = named_pointers(func)
    uses = BufferUses(set(), set(), set())
    inside = _calls_with_signature(func)
    for node in ir.walk(func.body):
        if isinstance(node, ir.DeclBuffer):
            for owner in _owners(node.source, root, named)[:1]:  # a valid program has no second
                root[node.buffer] = owner
        elif isinstance(node, ir.Block):
            for view in node.match_buffers:
                if view.source.buffer in root:
                    root[view.buffer] = root[view.source.buffer]
            uses.written.update(root[r.buffer] for r in node.writes if r.buffer in root)
        elif isinstance(node, ir.BufferStore) and node.buffer in root:
            uses.written.add(root[node.buffer])
        elif ir.is_atomic(node):
            uses.written.update(_owners(node.args[0], root, named))
        elif isinstance(node, ir.Call):
            owners = [
                o for arg in node.args if arg.dtype.is_handle for o in _owners(arg, root, named)
            ]
            uses.handed_on.update(owners)
            writes = ir.op_has_effect(node.op) and node.op not in _READERS
            if writes and node not in inside:
                uses.unstated.update(owners)
    return uses


def _owners(
    place: ir.Expr, root: Mapping[ir.Buffer, ir.Buffer], named: Mapping[ir.Var, ir.Expr]
) -> list[ir.Buffer]:
    """The parameter buffers that an element or a pointer may lie in."""
    if isinstance(place, ir.BufferLoad):
        return [root[place.buffer]] if place.buffer in root else []
    return [root[m] for m in memories(place, named) if isinstance(m, ir.Buffer) and m in root]


def _calls_with_signature(func: ir.PrimFunc) -> set[ir.Node]:
    """Calls inside of blocks that state what they access; the root block states nothing."""
    return {
        call
        for block in ir.blocks(func.body)
        if block.reads or block.writes
        for call in ir.collect(block, ir.Call)
    }
