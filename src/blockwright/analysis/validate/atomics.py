"""Validity of atomic updates, and blocks that consist of them."""

from __future__ import annotations

from blockwright import ir

PRIVATE_SCOPES = ("local", "warp")
"""Scopes that are private to one thread, or to the lanes of one warp."""


def atomic_problem(call: ir.Call) -> str | None:
    """Why an atomic update is invalid; None if it is valid."""
    if len(call.args) != 2:
        return f"{call.op} takes an element and a value, got {len(call.args)} arguments"
    place, value = ir.atomic_place(call), call.args[1]
    if place is None:
        pointer = call.args[0].dtype.is_handle
        return None if pointer else f"{call.op} takes an element such as B[i], or its address"
    held = place.buffer.dtype
    if place.predicate is not None or place.dtype.lanes > 1:
        return f"{call.op} takes one element of {place.buffer.name}, not a vector"
    if value.dtype is not held:
        return f"{call.op} combines a {value.dtype} with an element of {held}"
    return atomic_mismatch(call.op, held) or _unshared(call, place.buffer)


def atomic_mismatch(name: str, dtype: ir.DType) -> str | None:
    """Why elements of a type do not support an atomic operation; None if they do."""
    logical = name in ("atomic_and", "atomic_or")
    if dtype.is_handle or dtype.lanes > 1 or (dtype.is_int and dtype.bits < 8):
        return f"{name} of {dtype}: only single elements of whole bytes can be updated"
    if logical and dtype.is_float:
        return f"{name} of {dtype}: only integers and booleans support it"
    if dtype.is_bool and not logical:
        return f"{name} of {dtype}: booleans support only atomic_and and atomic_or"
    return None


def takes_atomics(scope: str) -> bool:
    """Whether elements of a scope can be updated by several threads concurrently."""
    return scope not in PRIVATE_SCOPES and "." not in scope.removesuffix(".dyn")


def _unshared(call: ir.Call, buffer: ir.Buffer) -> str | None:
    if not takes_atomics(buffer.scope):
        return f"{call.op} updates {buffer.name} in {buffer.scope!r}, which no other thread sees"
    return None


def is_atomic_update(block: ir.Block) -> bool:
    """Whether a block consists of a single atomic update."""
    body = block.body
    return block.init is None and isinstance(body, ir.Evaluate) and ir.is_atomic(body.value)


def has_atomic_update(block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether a block, including inner blocks, atomically updates a buffer or a view of it."""
    names = {buffer}
    for view in ir.collect(block, ir.MatchBufferRegion)[::-1]:  # a block's views follow its body
        if view.source.buffer in names:
            names.add(view.buffer)
    places = (ir.atomic_place(node) for node in ir.walk(block) if ir.is_atomic(node))
    return any(place is not None and place.buffer in names for place in places)


def updated_atomically(block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether a block changes a buffer only through atomic updates and does not otherwise read it.

    Inner blocks are included. A buffer that has a view or whose address is taken does not qualify.
    """
    inside: set[ir.Node] = set()
    result = False
    for node in ir.walk(block):
        if isinstance(node, ir.BufferStore) and node.buffer is buffer:
            return False
        if isinstance(node, ir.MatchBufferRegion) and node.source.buffer is buffer:
            return False
        if ir.is_atomic(node):
            place = ir.atomic_place(node)
            if place is not None and place.buffer is buffer:
                inside.update((place, node.args[0]))
                result = True
        elif isinstance(node, ir.BufferLoad) and node.buffer is buffer and node not in inside:
            return False
    return result


def free_updates(block: ir.Block) -> dict[ir.Buffer, str] | None:
    """Map each buffer that a block updates atomically to the operation of the updates.

    Applies to blocks whose only effects are atomic updates with unused results; the instances of
    such a block may run in any order.

    None for any other block, and if a buffer is updated by two different operations.
    """
    if block.init is not None:
        return None
    result: dict[ir.Buffer, str] = {}
    unused = {node.value for node in ir.collect(block.body, ir.Evaluate)}
    for call in ir.collect(block, ir.Call):
        if not ir.is_atomic(call):
            if ir.op_has_effect(call.op):
                return None
            continue
        place = ir.atomic_place(call)
        if place is None or call not in unused:
            return None
        if result.setdefault(place.buffer, call.op) != call.op:
            return None
    written = [r.buffer for r in block.writes]
    if not result or any(b not in result or not updated_atomically(block, b) for b in written):
        return None
    return result
