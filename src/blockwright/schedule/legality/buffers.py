"""Which buffer an argument names, where it lives, which blocks touch it."""

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
    """The buffer at an index (or with a name) of a block's read or write regions, which no other
    buffer shares its memory with."""
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
    """The buffer that ("read" | "write", position) or a name means."""
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
    """The allocating block; fails for parameters, whose form is the caller's affair."""
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
    """What to take a step on whose buffer must not be the caller's."""
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
            f"{step} takes the block that writes the buffer, and {block.name} writes {name}: "
            f'{"".join(copies)}for {name}, cache_write("{block.name}", "{name}", "global") first, '
            f"and {step} on {block.name} again, which then writes a buffer of the function's own"
        )
    return (
        f'copy = cache_read("{block.name}", "{name}", "global") first, and {step} on the block '
        "copy, which writes a buffer of the function's own"
    )


def region_of(regions: Sequence[ir.BufferRegion], buffer: ir.Buffer) -> ir.BufferRegion:
    """The region of a buffer in one half of a signature."""
    return next(r for r in regions if r.buffer is buffer)


def whole_box(
    state: StepState, scope: ir.Block, buffer: ir.Buffer, kind: str
) -> tuple[ir.Range, ...]:
    """What can be touched of a buffer in a scope: everything in the root; inside another block the
    part that its signature states.

    Args:
        state: the schedule's.
        scope: the block around.
        buffer: what is touched.
        kind: "read" or "write", of which a missing one stands for the other; "touch" for both, as
            blocks inside may also read what the initial value of `scope` has begun.
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
    """Whether a statement is a concurrent loop, each iteration of which has for itself a buffer
    that `owner` allocates: nobody outside of the loop may touch it."""
    axis = axis_of(stmt)
    parallel = isinstance(stmt, ir.For) and stmt.kind is ir.ForKind.PARALLEL
    apart = parallel if axis is None else not shares(buffer.scope, axis.tag)
    return apart and _uses(stmt, buffer) == _uses(owner, buffer)


def require_shared(state: StepState, loops: Iterable[ir.For], buffer: ir.Buffer, what: str) -> None:
    """None of these loops has, in each iteration, the buffer for itself: what is outside of such a
    loop makes it one buffer, in which iterations meet."""
    owner = home(state, buffer)
    for loop in loops:
        if owner is not None and own_copies(owner, loop, buffer):
            var = loop.loop_var.name
            state.fail(
                f"each iteration of loop {var} has {buffer.name} for itself; {what} would "
                "make it one for all of them",
                code="BW317",
                guilty=[loop],
                help=f"choose a loop inside of {var}, or take the step before {var} is made "
                "parallel or bound",
            )


def _uses(stmt: ir.Stmt, buffer: ir.Buffer) -> int:
    views = (v for v in ir.walk(stmt) if isinstance(v, ir.MatchBufferRegion))
    return len(accesses_to(stmt, buffer)) + sum(v.source.buffer is buffer for v in views)


def require_elements(state: StepState, stmt: ir.Stmt, buffer: ir.Buffer) -> None:
    """A buffer is used only through scalar loads and stores below a statement."""
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
                help="declare that buffer with a size that is known before the program runs",
            )
        if view or wide or address:
            what = "a view" if view else "vectors" if wide else "its address"
            state.fail(
                f"{buffer.name} is used through {what}, not element by element",
                code="BW359",
                guilty=[node],
                help=f"take {state.step_name} before the step that made {what} of it "
                "(blockize, tensorize, vectorize), or on another buffer",
            )


def require_layout_free(state: StepState, stmt: ir.Stmt, buffer: ir.Buffer) -> None:
    """Nobody but the program's own accesses knows where the elements of a buffer are stored."""
    if buffer.strides:
        state.fail(
            f"{buffer.name} states its strides",
            code="BW328",
            guilty=[buffer],
            help=f"leave strides= out of the declaration of {buffer.name}, so that they can "
            "be chosen",
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
                f"{buffer.name} is used through {what}, which rests on where its elements are",
                code="BW328",
                guilty=[node],
                help="give the view strides that are variables",
            )


def require_in_blocks(
    state: StepState,
    top: ir.Block | ir.For,
    *buffers: ir.Buffer,
    unchanged: Collection[ir.Buffer] = (),
) -> None:
    """Statements of a scope, or in a loop, that stand in no block leave buffers alone, and do not
    change those that are to stay `unchanged`."""
    for node, used in _outside_blocks(top):
        # Whoever gets an address may write there.
        changes = isinstance(used, ir.BufferStore) or isinstance(node, ir.Evaluate)
        if used.buffer in buffers and isinstance(node, ir.BlockRealize):
            block = node.block.name
            state.fail(
                f"{used.buffer.name} is read to decide whether or where block {block} runs: "
                f"by its predicate, by the value of an iterator or by the size of its "
                "buffers",
                code="BW313",
                guilty=[node],
                help=f"read it inside of the block, for example with an `if` in the body of "
                f"{block} in place of T.where",
            )
        if used.buffer in buffers or (changes and used.buffer in unchanged):
            verb = "used" if used.buffer in buffers else "changed"
            state.fail(
                f"{used.buffer.name} is {verb} outside blocks, where no signature says how",
                code="BW313",
                guilty=[node],
                help="wrap the statement in a block: with T.block(…)",
            )


def _outside_blocks(
    top: ir.Block | ir.For,
) -> Iterator[tuple[ir.Stmt, ir.BufferLoad | ir.BufferStore]]:
    """The statements below that stand in no block, with each load and store that they hold, and
    the loads that decide which points blocks run for."""
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
    """There is a storage scope of that name."""
    if not is_known_scope(name):
        state.fail(f"{name!r} is no storage scope", code="BW304", help=f"there are {SCOPES_HELP}")


def require_seen(
    state: StepState, users: Iterable[ir.Block], buffer: ir.Buffer, scope: str
) -> None:
    """What the blocks update atomically may lie in a scope: its elements are no thread's own."""
    for block in () if takes_atomics(scope) else users:
        if has_atomic_update(block, buffer):
            state.fail(
                f"block {block.name} updates {buffer.name} atomically; in {scope!r} no "
                "other thread sees it",
                code="BW338",
                guilty=[state.tree.realize(block)],
                help=f'choose "shared" or "global", or take {state.step_name} before '
                f"atomic_update({block.name})",
            )


def require_no_readback(state: StepState, block: ir.Block, buffer: ir.Buffer) -> None:
    """The block sets every element that it writes, and needs no earlier value of it."""
    if any(r.buffer is buffer for r in block.reads):
        state.fail(
            f"block {block.name} reads {buffer.name}, which it writes: a copy would not "
            "hold the earlier values",
            code="BW323",
            guilty=[state.realize(block)],
            help=f"take {state.step_name} before decompose_reduction, which makes the block "
            "an update" + or_inplace(state, block, buffer),
        )


def or_inplace(state: StepState, block: ir.Block, buffer: ir.Buffer) -> str:
    """The step that copies in and out what a block changes, where it is legal."""
    way = first_legal(state, [f'cache_inplace("{block.name}", "{buffer.name}", "local")'])
    return f"; or {way}, which copies in and out" if way else ""


def require_reached(state: StepState, block: ir.Block) -> None:
    """The loops run the block at every point of its domain."""
    if not reached(state, block):
        state.fail(
            f"the loops and the predicate of {block.name} do not reach its whole domain",
            code="BW361",
            guilty=[state.realize(block)],
            help=f"write in T.axis of block {block.name} the domain that the loops do run, "
            "or pad it to the whole one",
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
        return False  # what inner blocks do is not followed
    have = flow.region_under((), block, each, analyzer)
    wanted = tuple(it.dom for it in iters)
    return covers(have.region, wanted, analyzer) and flow.is_exact(
        [], block, each, analyzer, reading=True
    )


def with_index_type(index_map: IndexMap, dtype: ir.DType) -> IndexMap:
    """The map over indices of another integer type (records are made over int64); sizes in it are
    converted, and conversions of indices, which keep their value, are left out."""
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
    """The least value of each final index on a buffer of this shape; None when unknown."""
    domains = index_map.domains(shape)
    return [
        eval_set(index, {v: d for v, d in domains.items() if ir.uses_var(index, v)}, analyzer).min
        for index in index_map.final
    ]


def visible_outside(state: StepState, block: ir.Block) -> set[ir.Var]:
    """Variables that hold beside a block as in it: sizes and iterators of enclosing blocks."""
    result = {v for b in state.func.buffers for d in b.shape for v in ir.free_vars(d)}
    result |= set(state.func.params)
    for above in state.tree.ancestors(state.realize(block)):
        if isinstance(above, ir.Block):
            result |= {it.var for it in above.iter_vars}
    return result


def fresh_name(state: StepState, base: str) -> str:
    """`base`, with a number when a block or buffer of that name exists."""
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
    """A loop nest with one spatial block `target[target_index(v)] = value(v)` for v in a box.

    Iterators run over [min, min + extent) of each range; loops start at 0.

    Args:
        analyzer: facts that hold where the nest is placed; not those of loops beside it, which
            may run zero times.
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
    """Loops of a block that each run through exactly one iterator, in the block's own order.

    Fails unless the nest is the block's alone, unsplit, without a predicate, serial and without
    annotations: the form in which iterators can be exchanged wholesale.
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
    """What `trivial_loops` gives, or why there is no such nest and what loops must not be yet."""
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
        why = f"{block.name} stands under loops or a predicate that bind no iterator"
        return [], why, "split, fused or shared"
    return chosen, "", ""


def _runs_through(state: StepState, loop: ir.For, it: ir.IterVar) -> bool:
    """Whether a loop and an iterator have the same domain, starting at 0, also where the loop runs
    no iteration."""
    from_zero = ir.is_const_int(loop.min, 0) and ir.is_const_int(it.dom.min, 0)
    same = ir.match_types(loop.extent, it.dom.extent)
    return from_zero and state.analyzer(loop).prove_equal(*same)


def nest_of(state: StepState, block: ir.Block, loops: Sequence[ir.For]) -> ir.Stmt:
    """The outermost of a block's own loops, or its realize when it has none."""
    return min(loops, key=lambda n: state.tree.order[n]) if loops else state.realize(block)


def first_of(scope: ir.Block) -> ir.Stmt:
    """The first statement of a block's body."""
    return scope.body.seq[0] if isinstance(scope.body, ir.SeqStmt) else scope.body


def outermost(state: StepState, block: ir.Block, scope: ir.Block | ir.For | ir.AttrStmt) -> ir.Stmt:
    """The statement of the scope, or the loop, in which the block stands alone or with others."""
    stmt: ir.Stmt = state.realize(block)
    for above in state.tree.ancestors(stmt):
        if above is scope or (above is scope.body and isinstance(above, ir.SeqStmt)):
            return stmt
        stmt = above
    return stmt
