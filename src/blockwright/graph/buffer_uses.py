"""Find the parameter buffers that a tensor program writes, or whose address it passes to calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.analysis.canonical.memory import memories, named_pointers

_READERS = ("assume", "prefetch", "print")  # calls with effects that write no memory


class BufferUses(msgspec.Struct):
    """How a program uses its parameter buffers.

    Attributes:
        written: written by stores, by atomic updates, or according to the signature of a block.
        handed_on: whose address is passed to a call such as `call_extern`.
        unstated: likewise, without an enclosing block that declares the reads and writes.
    """

    written: set[ir.Buffer]
    handed_on: set[ir.Buffer]
    unstated: set[ir.Buffer]


def uses_of_buffers(func: ir.PrimFunc) -> BufferUses:
    """Find the uses of a program's parameter buffers, including uses through views and pointers."""
    root = {b: b for b in func.buffers}
    named = named_pointers(func)
    uses = BufferUses(set(), set(), set())
    inside = _calls_with_signature(func)
    for node in ir.walk(func.body):
        if isinstance(node, ir.DeclBuffer):
            for owner in _owners(node.source, root, named)[:1]:  # at most one in a valid program
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
    """The parameter buffers that an element or pointer may refer to."""
    if isinstance(place, ir.BufferLoad):
        return [root[place.buffer]] if place.buffer in root else []
    return [root[m] for m in memories(place, named) if isinstance(m, ir.Buffer) and m in root]


def _calls_with_signature(func: ir.PrimFunc) -> set[ir.Node]:
    """Calls inside of blocks that declare their accesses; the root block declares none."""
    return {
        call
        for block in ir.blocks(func.body)
        if block.reads or block.writes
        for call in ir.collect(block, ir.Call)
    }
