"""Checks of how buffers are used: private copies, views, addresses, uses outside blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.canonical.control_reads import loads_at, loads_of_layout, made_buffers
from blockwright.analysis.kernels import axis_of, shares
from blockwright.analysis.validate.atomics import has_atomic_update, takes_atomics
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.buffers import accesses_to, home
from blockwright.schedule.legality.try_remedies import first_legal
from blockwright.target.scopes import SCOPES_HELP, is_known_scope


def own_copies(owner: ir.Block, stmt: ir.Stmt, buffer: ir.Buffer) -> bool:
    """Whether a statement is a concurrent loop with a private copy of the buffer per iteration:
    `owner` allocates the buffer, and it is used only inside the loop."""
    axis = axis_of(stmt)
    parallel = isinstance(stmt, ir.For) and stmt.kind is ir.ForKind.PARALLEL
    apart = parallel if axis is None else not shares(buffer.scope, axis.tag)
    return apart and _uses(stmt, buffer) == _uses(owner, buffer)


def require_shared(state: StepState, loops: Iterable[ir.For], buffer: ir.Buffer, what: str) -> None:
    """Require that the buffer is not private to the iterations of any of these loops.

    A use outside such a loop would turn it into one shared buffer, with races between iterations.
    """
    owner = home(state, buffer)
    for loop in loops:
        if owner is not None and own_copies(owner, loop, buffer):
            var = loop.loop_var.name
            state.fail(
                f"{buffer.name} is private to each iteration of loop {var}; {what} would "
                "make it shared",
                code="BW317",
                guilty=[loop],
                help=f"choose a loop inside {var}, or apply the step before {var} is made "
                "parallel or bound",
            )


def _uses(stmt: ir.Stmt, buffer: ir.Buffer) -> int:
    views = (v for v in ir.walk(stmt) if isinstance(v, ir.MatchBufferRegion))
    return len(accesses_to(stmt, buffer)) + sum(v.source.buffer is buffer for v in views)


def require_elements(state: StepState, stmt: ir.Stmt, buffer: ir.Buffer) -> None:
    """Require that a buffer is used only by scalar loads and stores below a statement."""
    for node in ir.walk(stmt):
        view = isinstance(node, ir.MatchBufferRegion) and node.source.buffer is buffer
        wide = (
            isinstance(node, (ir.BufferLoad, ir.BufferStore))
            and node.buffer is buffer
            and any(not i.dtype.is_scalar for i in node.indices)
        )
        address = (
            isinstance(node, ir.Call)
            and node.op in ("address_of", "tensor")
            and any(isinstance(a, ir.BufferLoad) and a.buffer is buffer for a in node.args)
        )
        sized = any(
            load.buffer is buffer for b in made_buffers(node) for load in loads_of_layout(b)
        )
        if sized:
            state.fail(
                f"an element of {buffer.name} is the size or offset of another buffer",
                code="BW359",
                guilty=[node],
                help="declare that buffer with a size that does not depend on buffer contents",
            )
        if view or wide or address:
            what = "a view" if view else "vectors" if wide else "its address"
            state.fail(
                f"{buffer.name} is used through {what}, not element by element",
                code="BW359",
                guilty=[node],
                help=f"apply {state.step_name} before the step that introduced {what} "
                "(blockize, tensorize, vectorize), or to another buffer",
            )


def require_layout_free(state: StepState, stmt: ir.Stmt, buffer: ir.Buffer) -> None:
    """Require that the layout of a buffer is not observable other than by indexed accesses."""
    if buffer.strides:
        state.fail(
            f"{buffer.name} declares explicit strides",
            code="BW328",
            guilty=[buffer],
            help=f"omit strides= in the declaration of {buffer.name}, so that the layout can "
            "change",
        )
    views = [m for m in ir.collect(stmt, ir.MatchBufferRegion) if m.source.buffer is buffer]
    fixed = {m for m in views if any(not isinstance(s, ir.Var) for s in m.buffer.strides)}
    loose = {buffer, *(m.buffer for m in views if not m.buffer.strides)}
    for node in ir.walk(stmt):
        by_address = (
            isinstance(node, ir.Call)
            and node.op in ("address_of", "tensor")
            and any(isinstance(a, ir.BufferLoad) and a.buffer in loose for a in node.args)
        )
        if by_address or node in fixed:
            what = "its address" if by_address else "a view with fixed strides"
            state.fail(
                f"{buffer.name} is used through {what}, which depends on its layout",
                code="BW328",
                guilty=[node],
                help="declare the view with symbolic strides (variables)",
            )


def require_in_blocks(
    state: StepState,
    top: ir.Block | ir.For,
    *buffers: ir.Buffer,
    unchanged: Collection[ir.Buffer] = (),
) -> None:
    """Require that statements outside blocks do not access `buffers` or write `unchanged`."""
    for node, used in _outside_blocks(top):
        # An address passed to a call may be written through.
        changes = isinstance(used, ir.BufferStore) or isinstance(node, ir.Evaluate)
        if used.buffer in buffers and isinstance(node, ir.BlockRealize):
            block = node.block.name
            state.fail(
                f"{used.buffer.name} is read to decide whether or where block {block} runs: "
                f"by its predicate, by the value of an iterator or by the size of its "
                "buffers",
                code="BW313",
                guilty=[node],
                help=f"read it inside the block, for example with an `if` in the body of "
                f"{block} instead of T.where",
            )
        if used.buffer in buffers or (changes and used.buffer in unchanged):
            verb = "used" if used.buffer in buffers else "changed"
            state.fail(
                f"{used.buffer.name} is {verb} outside blocks, where no signature declares it",
                code="BW313",
                guilty=[node],
                help="wrap the statement in a block: with T.block(…)",
            )


def _outside_blocks(
    top: ir.Block | ir.For,
) -> Iterator[tuple[ir.Stmt, ir.BufferLoad | ir.BufferStore]]:
    """Yield (statement, access) for accesses outside blocks, including loads in block predicates,
    bindings and buffer shapes."""
    stack: list[ir.Stmt] = [top.body]
    while stack:
        node = stack.pop()
        if isinstance(node, (ir.BlockRealize, ir.Block)):
            yield from ((node, load) for load in loads_at(node))
            continue
        below = list(child_stmts(node))
        stack += below
        inner = (
            ir.walk(node)
            if not below
            else (x for c in node.children() if not isinstance(c, ir.Stmt) for x in ir.walk(c))
        )
        yield from ((node, n) for n in inner if isinstance(n, (ir.BufferLoad, ir.BufferStore)))


def require_scope_name(state: StepState, name: str) -> None:
    """Require that a storage scope with this name exists."""
    if not is_known_scope(name):
        state.fail(f"{name!r} is not a storage scope", code="BW304", help=f"scopes: {SCOPES_HELP}")


def require_seen(
    state: StepState, users: Iterable[ir.Block], buffer: ir.Buffer, scope: str
) -> None:
    """Require that atomically updated buffers are in a scope that other threads can access."""
    for block in () if takes_atomics(scope) else users:
        if has_atomic_update(block, buffer):
            state.fail(
                f"block {block.name} updates {buffer.name} atomically; in {scope!r} no "
                "other thread sees it",
                code="BW338",
                guilty=[state.tree.realize(block)],
                help=f'choose "shared" or "global", or apply {state.step_name} before '
                f"atomic_update({block.name})",
            )


def require_no_readback(state: StepState, block: ir.Block, buffer: ir.Buffer) -> None:
    """Require that the block does not read the buffer that it writes."""
    if any(r.buffer is buffer for r in block.reads):
        state.fail(
            f"block {block.name} reads {buffer.name}, which it writes: a copy would not "
            "hold the earlier values",
            code="BW323",
            guilty=[state.realize(block)],
            help=f"apply {state.step_name} before decompose_reduction, which turns the block "
            "into an update" + or_inplace(state, block, buffer),
        )


def or_inplace(state: StepState, block: ir.Block, buffer: ir.Buffer) -> str:
    """Help text: `cache_inplace`, which copies in and out, if it is legal."""
    way = first_legal(state, [f'cache_inplace("{block.name}", "{buffer.name}", "local")'])
    return f"; or {way}, which copies in and out" if way else ""
