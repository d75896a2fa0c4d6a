"""Plan the temporary buffers of a function: in its stack frame, or in one block of scratch memory.

Scratch memory is a cache of blocks per library (`blockwright.codegen.rt.scratch_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockwright.codegen.llvm.context import MAX_STACK_BYTES
from blockwright.ir import (
    Allocate,
    Buffer,
    Expr,
    For,
    ForKind,
    IntImm,
    LetStmt,
    Node,
    PrimFunc,
    Var,
    build,
    cast_to,
    collect,
    const,
    substitute,
)
from blockwright.target.scopes import TILE_SCOPE

ALIGNMENT = 64
_SMALL_GLOBAL = 4096
"""Size in bytes up to which a buffer of global scope is placed on the stack."""


class Slot(msgspec.Struct):
    """A planned allocation; it starts at the end of `after`, or at the start of the block."""

    buffer: Buffer
    after: Buffer | None


def constant_bytes(buffer: Buffer) -> int | None:
    """Size of a buffer in bytes if its shape is constant."""
    size = buffer.dtype.nbytes * buffer.dtype.lanes
    for extent in buffer.shape:
        if not isinstance(extent, IntImm):
            return None
        size *= extent.value
    return size


def on_stack(buffer: Buffer, used: int) -> bool:
    """Whether a buffer fits the stack frame, of which `used` bytes are taken."""
    size = constant_bytes(buffer)
    if size is None or used + size > MAX_STACK_BYTES:
        return False
    return buffer.scope == "local" or size <= _SMALL_GLOBAL


def byte_count(buffer: Buffer) -> Expr:
    """Size of a buffer in bytes, rounded up to the alignment."""
    total: Expr = const(buffer.dtype.nbytes * buffer.dtype.lanes, "int64")
    for extent in buffer.shape:
        total = build.mul(total, cast_to(extent, "int64"))
    unit = const(ALIGNMENT, "int64")
    return build.mul(build.floordiv(build.add(total, ALIGNMENT - 1), unit), unit)


class Scratch(msgspec.Struct, frozen=True, eq=False):
    """Bytes of scratch memory that a call of a function takes.

    Attributes:
        shared: one block for the whole call.
        task: for each thread that runs one of its parallel loops.
    """

    shared: Expr
    task: Expr


def scratch_of(func: PrimFunc, known: set[Var]) -> Scratch:
    """Scratch memory of a lowered function, whose parameters and symbols are `known`.

    Buffers whose sizes are computed inside of loops are not counted.
    """
    shared = _total(block_plan(func.body, stack_plan(func.body), known))
    task: Expr = const(0, "int64")
    for loop, lets in _tasks(func.body, {}):
        slots = block_plan(loop.body, stack_plan(loop.body), known | lets.keys())
        size = _total(slots)
        for var in reversed(lets):  # a later value may use an earlier variable
            size = substitute(size, {var: lets[var]})
        task = build.maximum(task, size)
    return Scratch(shared, task)


def _total(slots: list[Slot]) -> Expr:
    """Bytes of a block that holds planned allocations."""
    ends: dict[Buffer, Expr] = {}
    total: Expr = const(0, "int64")
    for slot in slots:
        start = const(0, "int64") if slot.after is None else ends[slot.after]
        ends[slot.buffer] = build.add(start, byte_count(slot.buffer))
        total = build.maximum(total, ends[slot.buffer])
    return total


def _tasks(node: Node, lets: dict[Var, Expr]) -> Iterator[tuple[For, dict[Var, Expr]]]:
    """Parallel loops, each with the variables defined around it."""
    if isinstance(node, For) and node.kind is ForKind.PARALLEL:
        yield node, lets
    elif not isinstance(node, Expr):
        inner = {**lets, node.var: node.value} if isinstance(node, LetStmt) else lets
        for child in node.children():
            yield from _tasks(child, inner)


def stack_plan(body: Node) -> set[Buffer]:
    """Buffers placed in the function's stack frame: in program order, while there is room."""
    used, chosen = 0, set[Buffer]()
    for allocate in allocations(body):
        if allocate.buffer.scope != TILE_SCOPE and on_stack(allocate.buffer, used):
            chosen.add(allocate.buffer)
            used += constant_bytes(allocate.buffer) or 0
    return chosen


def block_plan(body: Node, on_stack: set[Buffer], known: set[Var]) -> list[Slot]:
    """Plan the allocations whose sizes are known at entry; they share one block.

    Nested allocations follow each other; allocations with disjoint lifetimes share memory.
    """
    slots: list[Slot] = []
    planned: set[Buffer] = set()

    def visit(node: Node, after: Buffer | None) -> None:
        if isinstance(node, For) and node.kind is ForKind.PARALLEL:
            return
        if isinstance(node, Expr):
            return
        if isinstance(node, Allocate):
            buffer = node.buffer
            used = {v for extent in buffer.shape for v in collect(extent, Var)}
            own = buffer in on_stack or buffer.scope == TILE_SCOPE
            if not own and used <= known and buffer not in planned:
                slots.append(Slot(buffer, after))
                planned.add(buffer)
                after = buffer
        for child in node.children():
            visit(child, after)

    visit(body, None)
    return slots


def allocations(body: Node) -> Iterator[Allocate]:
    """Allocations of this function, excluding those in its parallel loops."""
    stack = [body]
    while stack:
        node = stack.pop()
        if isinstance(node, Expr) or (isinstance(node, For) and node.kind is ForKind.PARALLEL):
            continue
        if isinstance(node, Allocate):
            yield node
        stack += node.children()[::-1]
