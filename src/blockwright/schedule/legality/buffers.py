"""Buffers of a block: lookup by index or name, allocating block, region, readers and writers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

from blockwright import ir
from blockwright.analysis.access.regions import clip_region
from blockwright.arith import hull
from blockwright.schedule.engine.state import StepState


def accessed_buffer(state: StepState, block: ir.Block, which: int | str, kind: str) -> ir.Buffer:
    """The buffer at an index (or with a name) of a block's read or write regions; requires that no
    other buffer aliases it."""
    result = _accessed(state, block, which, kind)
    state.require_one_name(result, [block])
    return result


def _accessed(state: StepState, block: ir.Block, which: int | str, kind: str) -> ir.Buffer:
    regions = block.reads if kind == "read" else block.writes
    names = [r.buffer.name for r in regions]
    if isinstance(which, str):
        result = [r.buffer for r in regions if r.buffer.name == which]
        if len(result) == 1:
            return result[0]
        others = [
            b.name
            for b in state.tree.blocks
            if b is not state.func.root
            and any(r.buffer.name == which for r in (b.reads if kind == "read" else b.writes))
        ]
        elsewhere = f", or a block that {kind}s {which}: {', '.join(others)}" if others else ""
        state.fail(
            f"block {block.name} {kind}s no single buffer called {which!r}",
            code="BW320",
            guilty=[block],
            help=f"choose what it {kind}s, {', '.join(names) or 'nothing'}{elsewhere}",
        )
    if not 0 <= which < len(regions):
        state.fail(
            f"block {block.name} has {len(regions)} {kind} regions, there is no number {which}",
            code="BW320",
            guilty=[block],
            help=f"choose what it {kind}s, from 0 or by name: {', '.join(names) or 'nothing'}",
        )
    return regions[which].buffer


def named_buffer(state: StepState, block: ir.Block, which: Any) -> ir.Buffer:
    """The buffer denoted by ("read" | "write", position) or by a name."""
    if isinstance(which, tuple):
        kind, position = (*cast("tuple[Any, ...]", which), None, None)[:2]
        if kind in ("read", "write") and isinstance(position, (int, str)):
            return accessed_buffer(state, block, position, kind)
    if isinstance(which, str):
        kind = "write" if any(r.buffer.name == which for r in block.writes) else "read"
        return accessed_buffer(state, block, which, kind)
    return state.fail(
        f"{which!r} names no buffer",
        code="BW320",
        guilty=[block],
        help='write ("read", 0), ("write", 0) or the name',
    )


def home(state: StepState, buffer: ir.Buffer) -> ir.Block | None:
    """The block that allocates a buffer; None for a parameter of the function."""
    for block in state.tree.blocks:
        if any(b is buffer for b in block.alloc_buffers):
            return block
    return None


def require_home(state: StepState, block: ir.Block, buffer: ir.Buffer) -> ir.Block:
    """The allocating block; fails for parameters, whose layout the caller determines."""
    result = home(state, buffer)
    if result is None:
        state.fail(
            f"{buffer.name} is a parameter of the function",
            code="BW321",
            guilty=[block],
            help=_owned_instead(state, block, buffer),
        )
    return result


def _owned_instead(state: StepState, block: ir.Block, buffer: ir.Buffer) -> str:
    """Help text for a step that needs an intermediate buffer, not a parameter."""
    step, name = state.step_name, buffer.name
    writes = any(r.buffer is buffer for r in block.writes)
    copies: list[str] = []
    for region in block.reads if writes else ():
        makers = [
            b.name
            for b in state.tree.blocks
            if b is not state.func.root and any(w.buffer is region.buffer for w in b.writes)
        ]
        if makers and region.buffer is not buffer and home(state, region.buffer) is not None:
            copies.append(
                f"for {region.buffer.name}, which {block.name} reads, {step} on block "
                f"{makers[0]}, which writes it; "
            )
    if writes:
        return (
            f"{step} expects the block that writes the buffer, and {block.name} writes {name}: "
            f'{"".join(copies)}for {name}, cache_write("{block.name}", "{name}", "global") first, '
            f"then {step} on {block.name} again, which then writes an intermediate buffer"
        )
    return (
        f'copy = cache_read("{block.name}", "{name}", "global") first, then {step} on the block '
        "copy, which writes an intermediate buffer"
    )


def region_of(regions: Sequence[ir.BufferRegion], buffer: ir.Buffer) -> ir.BufferRegion:
    """The region of a buffer among read or write regions."""
    return next(r for r in regions if r.buffer is buffer)


def whole_box(
    state: StepState, scope: ir.Block, buffer: ir.Buffer, kind: str
) -> tuple[ir.Range, ...]:
    """The part of a buffer that may be accessed in a scope: all of it in the root block, else the
    region that the block's signature declares.

    Args:
        state: the program.
        scope: the enclosing block.
        buffer: the accessed buffer.
        kind: "read" or "write", falling back to the other if there is no such region; "touch" for
            both, as blocks inside may also read the initial value that `scope` stores.
    """
    read, written = (
        [r for r in regions if r.buffer is buffer] for regions in (scope.reads, scope.writes)
    )
    choices = {"read": read or written, "write": written or read, "touch": [*read, *written]}
    stated = choices[kind]
    if scope is state.func.root or not stated:
        return ir.full_region(buffer).region
    analyzer = state.analyzer(scope.body)
    boxes = (clip_region(region, analyzer).region for region in stated)
    return reduce(
        lambda a, b: tuple(hull(x, y, analyzer) for x, y in zip(a, b, strict=True)), boxes
    )


def writers(state: StepState, scope: ir.Block, buffer: ir.Buffer) -> list[ir.Block]:
    """Blocks directly in a scope that write a buffer, in program order."""
    below = state.tree.child_blocks(scope)
    return [b for b in below if any(r.buffer is buffer for r in b.writes)]


def readers(state: StepState, scope: ir.Block, buffer: ir.Buffer) -> list[ir.Block]:
    """Blocks directly in a scope that read a buffer, in program order."""
    below = state.tree.child_blocks(scope)
    return [b for b in below if any(r.buffer is buffer for r in b.reads)]


def accesses_to(stmt: ir.Stmt, buffer: ir.Buffer) -> list[ir.BufferLoad | ir.BufferStore]:
    """Loads and stores of one buffer below a statement."""
    return [a for a in ir.accesses(stmt) if a.buffer is buffer]
