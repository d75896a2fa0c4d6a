"""Shrink programs: fewer stages, smaller sizes, no symbols, simpler values, fewer parameters.

The meaning is not preserved; candidates may even be invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from fuzzing.mutants import replaced

_OUTPUTS = "num_outputs"


def smaller(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """Programs with one simplification each, the largest first."""
    yield from _fewer_statements(func)
    yield from _fewer_parameters(func)
    yield from _no_symbols(func)
    yield from _smaller_sizes(func)
    yield from _simpler_values(func)


# ------------------------------------------------------------------------------------ statements
def _fewer_statements(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """Remove one statement of a sequence; buffers no longer written become inputs."""
    for whole in ir.collect(func.body, ir.SeqStmt):
        for k in reversed(range(len(whole.seq))):
            rest = [*whole.seq[:k], *whole.seq[k + 1 :]]
            yield _repaired(replaced(func, whole, ir.seq(rest)))


def _repaired(func: ir.PrimFunc) -> ir.PrimFunc:
    """Adapt allocations and parameters to the remaining uses of the buffers."""
    root = func.root
    written = _touched(func, ir.BufferStore)
    read = _touched(func, ir.BufferLoad)
    used = written | read
    homeless = [b for b in root.alloc_buffers if b in read - written]
    stays = tuple(b for b in root.alloc_buffers if b in used and b not in homeless)
    body = ir.BlockRealize((), ir.const(True, "bool"), root.replace(alloc_buffers=stays))
    handles = {buffer: handle for handle, buffer in func.buffer_map}
    kept = [b for b in func.buffers if b in used]
    inputs = [b for b in kept if b not in written] + homeless
    results = [b for b in kept if b in written]
    handles |= {b: ir.var(f"{b.name}_handle", "handle") for b in homeless}
    pairs = [(handles[b], b) for b in [*inputs, *results]]
    scalars = [p for p in func.params if p not in dict(func.buffer_map)]
    attrs = {**func.attrs, _OUTPUTS: len(results)} if _OUTPUTS in func.attrs else func.attrs
    params = (*(handle for handle, _ in pairs), *scalars)
    return func.replace(params=params, buffer_map=tuple(pairs), body=body, attrs=attrs)


def _touched(func: ir.PrimFunc, kind: type[ir.BufferStore | ir.BufferLoad]) -> set[ir.Buffer]:
    return {node.buffer for node in ir.collect(func.body, kind)}


# ------------------------------------------------------------------------------------ parameters
def _fewer_parameters(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """Turn outputs that are read into internal buffers, to compare one less."""
    count = int(func.attrs.get(_OUTPUTS, 0))
    results = func.buffers[len(func.buffers) - count :] if count > 1 else ()
    for buffer in results:
        if buffer not in _touched(func, ir.BufferLoad):
            continue
        pairs = tuple(pair for pair in func.buffer_map if pair[1] is not buffer)
        handle = next(h for h, b in func.buffer_map if b is buffer)
        root = func.root.replace(alloc_buffers=(*func.root.alloc_buffers, buffer))
        yield func.replace(
            params=tuple(p for p in func.params if p is not handle),
            buffer_map=pairs,
            body=ir.BlockRealize((), ir.const(True, "bool"), root),
            attrs={**func.attrs, _OUTPUTS: count - 1},
        )


# ----------------------------------------------------------------------------------------- sizes
def _no_symbols(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    names = {v.name for b in func.buffers for n in b.shape for v in ir.free_vars(n)}
    for name in sorted(names):
        low = int(func.attrs.get("tir_var_lower_bound", {}).get(name, 1))
        for value in (low, low + 1, low + 2):
            yield func.specialize({name: value})


def _smaller_sizes(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """Reduce one of the numbers in shapes, extents and domains at all its occurrences."""
    shapes = [n for b in _buffers(func) for n in b.shape]
    extents = [loop.extent for loop in ir.loops(func.body)]
    domains = [it.dom.extent for block in ir.blocks(func.body) for it in block.iter_vars]
    sizes = {n.value for e in (*shapes, *extents, *domains) for n in ir.collect(e, ir.IntImm)}
    for size in sorted(sizes, reverse=True):
        for value in sorted({1, 2, 3, 4, size // 2, size - 1}):
            if 0 < value < size:
                yield _renumbered(func, size, value)


def _renumbered(func: ir.PrimFunc, size: int, value: int) -> ir.PrimFunc:
    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.IntImm) and node.value == size and node.dtype.is_int:
            return node.replace(value=value)
        return None

    return ir.rewrite_bottom_up(func, change)


def _buffers(func: ir.PrimFunc) -> list[ir.Buffer]:
    inside = [b for block in ir.blocks(func.body) for b in block.alloc_buffers]
    return [*func.buffers, *inside]


# ---------------------------------------------------------------------------------------- values
def _simpler_values(func: ir.PrimFunc) -> Iterator[ir.PrimFunc]:
    """Replace one float operation by one of its operands."""
    for node in ir.walk(func.body):
        if not isinstance(node, (ir.BinaryOp, ir.Call, ir.Select)) or not node.dtype.is_float:
            continue
        for operand in _operands(node):
            yield _repaired(_resigned(replaced(func, node, operand)))


def _operands(node: Any) -> list[ir.Expr]:
    return [c for c in node.children() if isinstance(c, ir.Expr) and c.dtype is node.dtype]


def _resigned(func: ir.PrimFunc) -> ir.PrimFunc:
    """Recompute the access regions of leaf blocks."""

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.Block) or ir.collect(node.body, ir.Block) or not node.iter_vars:
            return None
        reads, writes = block_access_regions(node)
        return node.replace(reads=reads, writes=writes)

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))
