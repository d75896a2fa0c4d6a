"""Buffer lookup and checks: named buffers, allocating blocks, accesses, copy nests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, cast

from blockwright import ir
from blockwright.analysis.access.regions import clip_region
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.canonical.control_reads import loads_at, loads_of_layout, made_buffers
from blockwright.analysis.kernels import axis_of, shares
from blockwright.analysis.validate.atomics import has_atomic_update, takes_atomics
from blockwright.arith import Analyzer, IndexMap, covers, eval_set, hull
from blockwright.schedule.engine.forwarding import rewritten_accesses, with_signature
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.try_remedies import first_legal
from blockwright.target.scopes import SCOPES_HELP, is_known_scope


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


def require_reached(state: StepState, block: ir.Block) -> None:
    """Require that the loops run the block at every point of its domain."""
    if not reached(state, block):
        state.fail(
            f"the loops and the predicate of {block.name} do not reach its whole domain",
            code="BW361",
            guilty=[state.realize(block)],
            help=f"declare in T.axis of block {block.name} the domain that the loops run, "
            "or pad the loops to the whole domain",
        )


def reached(state: StepState, block: ir.Block) -> bool:
    """Whether the loops run the block at every point of its domain."""
    iters = block.iter_vars
    shape = tuple(it.dom.min + it.dom.extent for it in iters)
    points = ir.Buffer("points", ir.dtype_of("bool"), shape)
    one = [ir.point(it.var) for it in iters]
    each = ir.BufferRegion(points, tuple(one))
    scope = state.scope(block)
    flow, analyzer = state.flow_at(block), state.analyzer(scope.body)
    if state.tree.child_blocks(block) or not flow.always(block, analyzer):
        return False  # inner blocks are not analyzed
    have = flow.region_under((), block, each, analyzer)
    wanted = tuple(it.dom for it in iters)
    return covers(have.region, wanted, analyzer) and flow.is_exact(
        [], block, each, analyzer, reading=True
    )


def with_index_type(index_map: IndexMap, dtype: ir.DType) -> IndexMap:
    """Convert an index map to another integer type (records use int64).

    Sizes are cast; casts of indices are dropped, as they preserve the value.
    """
    fresh = {v: ir.Var(v.name, dtype) for v in index_map.initial}

    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.Var) and node in fresh:
            return fresh[node]
        if isinstance(node, ir.IntImm) and node.dtype.is_int:
            return ir.const(node.value, dtype)
        if isinstance(node, ir.Var) and node.dtype.is_int:
            return ir.cast_to(node, dtype)
        if isinstance(node, ir.Cast) and node.dtype.is_int and node.value.dtype is dtype:
            return node.value
        if isinstance(node, ir.Call) and node.dtype.is_int and node.args:
            typed = all(a.dtype is dtype or a.dtype.is_bool for a in node.args)
            return node.replace(type=dtype) if typed else None
        return None

    final = tuple(ir.rewrite_bottom_up(e, change) for e in index_map.final)
    return IndexMap(tuple(fresh.values()), final, index_map.separators)


def lowest_indices(
    index_map: IndexMap, shape: Sequence[ir.Expr], analyzer: Analyzer
) -> list[ir.Expr | None]:
    """The smallest value of each final index on a buffer of this shape; None if unknown."""
    domains = index_map.domains(shape)
    return [
        eval_set(index, {v: d for v, d in domains.items() if ir.uses_var(index, v)}, analyzer).min
        for index in index_map.final
    ]


def visible_outside(state: StepState, block: ir.Block) -> set[ir.Var]:
    """Variables in scope both inside and beside a block: sizes, iterators of enclosing blocks."""
    result = {v for b in state.func.buffers for d in b.shape for v in ir.free_vars(d)}
    result |= set(state.func.params)
    for above in state.tree.ancestors(state.realize(block)):
        if isinstance(above, ir.Block):
            result |= {it.var for it in above.iter_vars}
    return result


def fresh_name(state: StepState, base: str) -> str:
    """`base`, with a number appended if a block or buffer of that name exists."""
    taken = {b.name for b in state.tree.blocks} | {b.name for b in state.func.buffers}
    taken |= {b.name for block in state.tree.blocks for b in block.alloc_buffers}
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def copy_nest(
    name: str,
    target: ir.Buffer,
    target_index: Callable[[Sequence[ir.Expr]], Sequence[ir.Expr]],
    value: Callable[[Sequence[ir.Expr]], ir.Expr],
    domain: Sequence[ir.Range],
    analyzer: Analyzer,
) -> tuple[ir.For | ir.BlockRealize, ir.Block]:
    """Build a nest with one spatial block `target[target_index(v)] = value(v)` for v in a box.

    Iterators run over [min, min + extent) of each range; loops start at 0.

    Args:
        analyzer: facts that hold where the nest is placed, excluding facts of loops beside it,
            which may be empty.
    """
    from_zero: list[ir.Var] = []
    iters: list[ir.IterVar] = []
    bindings: list[ir.Expr] = []
    for position, rng in enumerate(domain):
        dtype = rng.extent.dtype
        loop = ir.Var(f"ax{position}", dtype)
        from_zero.append(loop)
        last = analyzer.simplify(rng.min + rng.extent)
        dom = ir.Range(ir.const(0, dtype), last)
        iters.append(ir.IterVar(ir.Var(f"v{position}", dtype), dom))
        bindings.append(analyzer.simplify(rng.min + loop))
    variables = [it.var for it in iters]
    store = ir.BufferStore(target, value(variables), tuple(target_index(variables)))
    block = with_signature(ir.Block(name, tuple(iters), (), (), store), analyzer)
    nest: Any = ir.BlockRealize(tuple(bindings), ir.const(True, "bool"), block)
    for loop, rng in zip(reversed(from_zero), reversed(list(domain)), strict=True):
        zero = ir.const(0, loop.dtype)
        nest = ir.For(loop, zero, rng.extent, ir.ForKind.SERIAL, nest)
    return nest, block


def simplified_indices(stmt: ir.Stmt, analyzer: Analyzer) -> Any:
    """The statement with the indices of all accesses simplified."""

    def change(node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        indices = tuple(analyzer.simplify(i) for i in node.indices)
        if any(new is not old for new, old in zip(indices, node.indices, strict=True)):
            return node.replace(indices=indices)
        return node

    return rewritten_accesses(stmt, change)


def trivial_loops(state: StepState, block: ir.Block, step: str, instead: str = "") -> list[ir.For]:
    """The loops of a trivially bound block: one loop per iterator, in iterator order.

    Fails unless the nest contains only this block and is unsplit, serial, and without predicate or
    annotations: in this form, all iterators can be replaced at once.
    """
    loops, why, hint = own_loops(state, block)
    if why:
        state.fail(
            why,
            code="BW322",
            guilty=[state.realize(block)],
            help=f"{instead}use {step} before loops are {hint}",
        )
    return loops


def own_loops(state: StepState, block: ir.Block) -> tuple[list[ir.For], str, str]:
    """The loops for `trivial_loops`, or the reason why there are none, and a word for the help."""
    realize = state.realize(block)
    own: list[ir.For] = []
    inner: ir.Stmt = realize
    above = state.tree.loops_above(block)
    for loop in reversed(above):
        if loop.body is not inner or loop.kind is not ir.ForKind.SERIAL or loop.annotations:
            break
        own.insert(0, loop)
        inner = loop
    variables = {loop.loop_var: loop for loop in own}
    chosen: list[ir.For] = []
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        loop = variables.get(value) if isinstance(value, ir.Var) else None
        if loop is None or any(c is loop for c in chosen) or not _runs_through(state, loop, it):
            why = f"iterator {it.var.name} of {block.name} is not bound to a plain loop of its own"
            return [], why, "split, fused, shared, marked or annotated"
        chosen.append(loop)
    if not ir.is_const_int(realize.predicate, 1) or len(above) != len(chosen):
        why = f"{block.name} is under loops that bind no iterator, or has a predicate"
        return [], why, "split, fused or shared"
    return chosen, "", ""


def _runs_through(state: StepState, loop: ir.For, it: ir.IterVar) -> bool:
    """Whether a loop and an iterator have the same domain, starting at 0, even if it is empty."""
    from_zero = ir.is_const_int(loop.min, 0) and ir.is_const_int(it.dom.min, 0)
    same = ir.match_types(loop.extent, it.dom.extent)
    return from_zero and state.analyzer(loop).prove_equal(*same)


def nest_of(state: StepState, block: ir.Block, loops: Sequence[ir.For]) -> ir.Stmt:
    """The outermost of a block's own loops, or its `BlockRealize` if it has none."""
    return min(loops, key=lambda n: state.tree.order[n]) if loops else state.realize(block)


def first_of(scope: ir.Block) -> ir.Stmt:
    """The first statement of a block's body."""
    return scope.body.seq[0] if isinstance(scope.body, ir.SeqStmt) else scope.body


def outermost(state: StepState, block: ir.Block, scope: ir.Block | ir.For | ir.AttrStmt) -> ir.Stmt:
    """The direct child statement of a scope or loop that contains the block."""
    stmt: ir.Stmt = state.realize(block)
    for above in state.tree.ancestors(stmt):
        if above is scope or (above is scope.body and isinstance(above, ir.SeqStmt)):
            return stmt
        stmt = above
    return stmt
