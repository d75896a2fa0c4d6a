"""Recognize pure data movement: every output element is one input element, unchanged."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import joined_buffers, sole_blocks


def _single_block(func: ir.PrimFunc) -> ir.Block | None:
    inside, result = ir.blocks(func.body), sole_blocks(func)
    return result[0] if len(result) == 1 and len(inside) == 2 else None  # the root, and this one


def _copied_load(func: ir.PrimFunc) -> tuple[ir.BufferStore, ir.BufferLoad] | None:
    block = _single_block(func)
    if block is None or block.init is not None or not isinstance(block.body, ir.BufferStore):
        return None
    store = block.body
    if not isinstance(store.value, ir.BufferLoad):
        return None
    return store, store.value


def is_movement(func: ir.PrimFunc) -> bool:
    """Whether the program only copies elements of one input through an index map.

    Indices may depend on the output position only, not on data (a gather computes an address).
    """
    result = _copied_load(func)
    if result is None:
        return False
    _, load = result
    return not any(isinstance(n, ir.BufferLoad) for i in load.indices for n in ir.walk(i))


def is_joined(func: ir.PrimFunc) -> bool:
    """Whether several blocks each write a part of a result, as in a concatenation."""
    results = set(func.buffers)
    joined = joined_buffers([b for b in ir.blocks(func.root.body) if not ir.blocks(b.body)])
    return any(buffer in results for buffer in joined)


def keeps_last_axis(func: ir.PrimFunc) -> bool:
    """Whether runs along the input's last axis stay contiguous runs of the output.

    True for the head merge `out[b, s, h * 32 + d] = in[b, h, s, d]`, false for a transpose that
    moves the last axis and for a reshape that splits it.
    """
    result = _copied_load(func)
    if result is None:
        return False
    store, load = result
    if not store.indices or not load.indices:
        return False
    last_out, last_in = store.indices[-1], load.indices[-1]
    if last_in is last_out:
        extent_in, extent_out = load.buffer.shape[-1], store.buffer.shape[-1]
        return ir.structural_equal(extent_in, extent_out)
    if isinstance(last_in, ir.FloorMod) and last_in.a is last_out:
        return ir.structural_equal(last_in.b, load.buffer.shape[-1])
    return False


def keeps_runs(func: ir.PrimFunc) -> bool:
    """Whether contiguous runs of the output are contiguous in the input, at any offset.

    True for slices with step 1, repeated rows and reshapes; false for transposes that move the last
    axis.
    """
    result = _copied_load(func)
    if result is None:
        return False
    store, load = result
    if keeps_last_axis(func):
        return True
    if not store.indices or not load.indices:
        return False
    last = store.indices[-1]
    if not isinstance(last, ir.Var) or any(ir.uses_var(i, {last}) for i in load.indices[:-1]):
        return False
    index = load.indices[-1]
    if isinstance(index, ir.Add):
        begins = [b for a, b in ((index.a, index.b), (index.b, index.a)) if a is last]
        return any(not ir.uses_var(b, {last}) for b in begins)
    return index is last or not ir.uses_var(index, {last})
