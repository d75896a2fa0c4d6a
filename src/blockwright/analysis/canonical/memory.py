"""Normalization after which each buffer is a distinct memory and loop variables are indices.

`plain_memory` merges the regions of one buffer in a signature, inlines named pointers and indices,
makes allocations the buffers declared on them, and folds the views whose elements are known. For
all other views, the signatures of the blocks that use them state the whole underlying buffer, so
that they depend on all other users of that memory. Reads around blocks are stated too
(`control_reads`). A program already in this form is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.analysis.access.regions import with_one_box_per_buffer
from blockwright.analysis.canonical.control_reads import (
    Loaded,
    is_full,
    loaded_around,
    stating_inside,
    stating_loads,
)
from blockwright.analysis.canonical.declared_allocations import declared_allocations
from blockwright.analysis.canonical.fold_names import fold_names
from blockwright.analysis.canonical.fold_views import fold_views
from blockwright.analysis.canonical.pointers import fold_pointers, memories, named_pointers
from blockwright.ir.attributes import NOALIAS

_views: ir.Rare[ir.DeclBuffer] = ir.Rare(ir.DeclBuffer)


def memory_roots(func: ir.PrimFunc) -> dict[ir.Buffer, ir.Buffer]:
    """Map each declared view to the buffer whose memory it aliases, through views of views.

    If several views share a pointer without a buffer, the outermost is the root. Parameters of a
    function with `"tir.noalias": False` may overlap, so the first one is the root of all.
    """
    direct = _overlapping(func)
    pointers: dict[ir.Var, ir.Buffer] = {}
    views = _views.of(func.body)
    named = named_pointers(func) if views else {}
    for node in views:
        for memory in memories(node.source, named)[:1]:  # a valid program has only one
            if isinstance(memory, ir.Buffer):
                direct[node.buffer] = memory
            elif pointers.setdefault(memory, node.buffer) is not node.buffer:
                direct[node.buffer] = pointers[memory]
    for view in direct:
        while direct[view] in direct:
            direct[view] = direct[direct[view]]
    return direct


def may_overlap(func: ir.PrimFunc) -> bool:
    """Whether arguments of a call may overlap in memory that is written."""
    return func.attrs.get(NOALIAS, True) is False


def _overlapping(func: ir.PrimFunc) -> dict[ir.Buffer, ir.Buffer]:
    if not may_overlap(func):
        return {}
    first, *others = func.buffers or (None,)
    return dict.fromkeys(others, first) if first is not None else {}


def named_twice(
    stmt: ir.Stmt, roots: Mapping[ir.Buffer, ir.Buffer]
) -> tuple[ir.Buffer, ir.Buffer] | None:
    """Two names under which a statement accesses the same memory, if it also writes it."""
    names: dict[ir.Buffer, dict[ir.Buffer, None]] = {}
    written: dict[ir.Buffer, None] = {}
    for access in (*ir.collect(stmt, ir.BufferStore), *ir.collect(stmt, ir.BufferLoad)):
        root = roots.get(access.buffer, access.buffer)
        names.setdefault(root, {})[access.buffer] = None
        if isinstance(access, ir.BufferStore):
            written[root] = None
    for root in written:
        if len(names[root]) > 1:
            first, second, *_ = names[root]
            return first, second
    return None


def state_memory(func: ir.PrimFunc) -> ir.PrimFunc:
    """State the memory behind views, and the reads around blocks, in signatures."""
    roots, loaded = memory_roots(func), loaded_around(func)
    return _State(roots, loaded).of(func) if roots or loaded else func


class _State(ir.Mutator):
    def __init__(self, roots: Mapping[ir.Buffer, ir.Buffer], loaded: Loaded) -> None:
        super().__init__()
        self.roots, self.loaded = roots, loaded

    def of(self, func: ir.PrimFunc) -> ir.PrimFunc:
        body = self(func.body)
        return func if body is func.body else func.replace(body=body)

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_Block(self, node: ir.Block) -> Any:
        new = stating_loads(self.descend(node), self.loaded.get(node, ()))
        if self.loaded:
            new = stating_inside(new)
        return stating(new, self.roots)


def stating(block: ir.Block, roots: Mapping[ir.Buffer, ir.Buffer]) -> ir.Block:
    """A block whose signature states the memory behind its views."""
    reads, writes = _whole(block.reads, roots), _whole(block.writes, roots)
    if reads is block.reads and writes is block.writes:
        return block
    return block.replace(reads=reads, writes=writes)


def _whole(
    regions: tuple[ir.BufferRegion, ...], roots: Mapping[ir.Buffer, ir.Buffer]
) -> tuple[ir.BufferRegion, ...]:
    wide = dict.fromkeys(roots[r.buffer] for r in regions if r.buffer in roots)
    stated = {r.buffer: r for r in regions}
    missing = [b for b in wide if b not in stated or not is_full(stated[b])]
    if not missing:
        return regions
    kept = tuple(r for r in regions if r.buffer not in missing)
    return (*kept, *map(ir.full_region, missing))


def plain_memory(func: ir.PrimFunc) -> ir.PrimFunc:
    """Make each buffer a distinct memory where possible; see the module docstring."""
    named = fold_names(fold_pointers(_with_joined_regions(func)))
    return state_memory(fold_views(declared_allocations(named)))


def _with_joined_regions(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function with one region per buffer in the reads and in the writes of each signature."""
    if all(with_one_box_per_buffer(block) is block for block in ir.blocks(func.body)):
        return func

    def joined(node: ir.Node) -> ir.Node | None:
        block = with_one_box_per_buffer(node) if isinstance(node, ir.Block) else node
        return None if block is node else block

    return func.replace(body=ir.rewrite_bottom_up(func.body, joined))
