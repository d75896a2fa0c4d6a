"""Wrap adjacent blocks in one new block (`blockize` of several blocks)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import Analyzer, detect_iter_map
from blockwright.arith.condition import conjuncts
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.checks import require_known_kind
from blockwright.schedule.legality.try_remedies import called, first_legal, quoted
from blockwright.schedule.rewrite.split_iterators import (
    bounds,
    divide,
    iterators,
    predicate,
    rebuild,
    shortened,
    simplified,
)


class _Inner(msgspec.Struct, frozen=True, eq=False):
    """A block rewritten for the inside of the new one, and the outer iterators that it needs."""

    block: ir.Block
    realize: ir.BlockRealize
    iters: list[ir.IterVar]
    values: list[ir.Expr]


def grouped(
    state: StepState,
    edit: Edit,
    blocks: Sequence[ir.Block],
    parts: Sequence[ir.Stmt],
    preserve_unit_iters: bool,
) -> ir.Block:
    """Replace adjacent statements, which contain the blocks, by a new block around them."""
    inside = [block for part in parts for block in state.tree.child_blocks(part)]
    others = [b for b in inside if b not in set(blocks)]
    if others:
        state.fail(
            f"block {others[0].name} is between the given blocks",
            code="BW310",
            guilty=[state.tree.realize(b) for b in others],
            help=f"include it: blockize([{quoted(inside)}]), "
            f"or move {others[0].name} out first with compute_at or "
            "reverse_compute_at",
        )
    flow = state.flow_at(blocks[0])
    for block in inside:
        require_known_kind(state, flow, block)
    common = _common_conditions(state, inside, parts)
    analyzer = state.analyzer(parts[0])
    outer = _Outer(state, analyzer)
    body = list(parts)
    for block in inside:
        inner = _inner(state, edit, block, parts, common, preserve_unit_iters)
        known = outer.take(inner, block)
        inner = _signed(edit, inner, known)
        edit.forward[block] = inner.realize.block
        old = state.tree.realize(block)
        body = [rebuild(part, old, inner.realize) for part in body]
    outer.require_map(state.tree.loops_above(inside[0]), parts[0])
    require_own_names(state, body, parts)
    own = _own_buffers(state, blocks, inside)
    name = "_".join(block.name for block in inside) + "_o"
    result = ir.Block(name, tuple(outer.iters), (), (), ir.seq(body), alloc_buffers=tuple(own))
    result = with_signature(result, analyzer)
    realize = ir.BlockRealize(tuple(outer.values), ir.all_of(common), result)
    edit.free(state.scope(blocks[0]), *own)
    edit.replace(parts[0], realize)
    for part in parts[1:]:
        edit.replace(part, None)
    edit.refresh_signatures()
    return result


def require_own_names(state: StepState, body: Sequence[ir.Stmt], parts: Sequence[ir.Stmt]) -> None:
    """Require that statements that move into a new block use no loop variable around it."""
    loops = {f.loop_var: f for f in state.tree.loops_above(parts[0])}
    for result, part in zip(body, parts, strict=True):
        used = next((v for v in ir.collect(result, ir.Var) if v in loops), None)
        if used is not None:
            state.fail(
                f"a statement that moves into the new block uses loop {used.name}, which is "
                "outside it",
                code="BW313",
                guilty=[part, loops[used]],
                help="wrap the statement in a block and include that block, or choose blocks "
                "without such a statement between them",
            )


def parts_around(state: StepState, blocks: Sequence[ir.Block]) -> list[ir.Stmt]:
    """The adjacent statements that contain the blocks."""
    if not blocks or len(set(blocks)) < len(blocks):
        state.fail(
            "no blocks are given, or one is given twice",
            code="BW304",
            help="pass the blocks of one scope, each once",
        )
    realizes = [state.realize(block) for block in blocks]
    paths = [[r, *state.tree.ancestors(r)] for r in realizes]
    common = next((a for a in paths[0] if all(a in path for path in paths[1:])), None)
    assert common is not None
    stops = [n for n in paths[0][: paths[0].index(common) + 1] if isinstance(n, ir.Block)]
    scopes = {state.scope(block) for block in blocks}
    if stops or len(scopes) > 1:
        state.fail(
            "the blocks are not in one scope",
            code="BW310",
            guilty=realizes,
            help="pass blocks of one scope: get_child_blocks of the block around them lists them",
        )
    if not isinstance(common, ir.SeqStmt):
        return [common]
    tops = [path[path.index(common) - 1] for path in paths]
    places = [common.seq.index(top) for top in tops]
    return list(common.seq[min(places) : max(places) + 1])


def _loops_inside(state: StepState, block: ir.Block, parts: Sequence[ir.Stmt]) -> list[ir.For]:
    """The loops above a block that move into the new block."""
    return [
        f
        for f in state.tree.loops_above(block)
        if f in parts or any(state.tree.is_below(f, p) for p in parts)
    ]


def _common_conditions(
    state: StepState, blocks: Sequence[ir.Block], parts: Sequence[ir.Stmt]
) -> list[ir.Expr]:
    """Predicate conditions on outer loops that all blocks share."""
    predicates = [list(conjuncts(state.tree.realize(b).predicate)) for b in blocks]
    inner = {f.loop_var for b in blocks for f in _loops_inside(state, b, parts)}
    return [
        c
        for c in predicates[0]
        if not ir.is_const_int(c, 1)
        and not ir.uses_var(c, inner)
        and all(any(ir.structural_equal(c, d) for d in other) for other in predicates[1:])
    ]


def _inner(
    state: StepState,
    edit: Edit,
    block: ir.Block,
    parts: Sequence[ir.Stmt],
    common: Sequence[ir.Expr],
    preserve_unit_iters: bool,
) -> _Inner:
    """The block with iterators only for the inner loops."""
    inside = _loops_inside(state, block, parts)
    analyzer = state.analyzer(parts[0])
    division = divide(state, block, inside, ir.all_of(common))
    running = {f.loop_var for f in state.tree.loops_above(block)}
    iters, values, inner_iters, inner_values, mapping = iterators(
        block, division, preserve_unit_iters, analyzer, running
    )
    started = [
        it
        for it in iters
        if it.iter_type is ir.IterType.REDUCE and not ir.is_const_int(it.dom.extent, 1)
    ]
    if block.init is not None and started:
        state.fail(
            f"the reduction {block.name} is not complete inside the new block",
            code="BW365",
            guilty=[state.tree.realize(block)],
            help=_taken_apart(state, block),
        )
    bound = dict(zip((it.var for it in inner_iters), inner_values, strict=True))
    open_ones = [
        c
        for c in conjuncts(state.tree.realize(block).predicate)
        if not any(ir.structural_equal(c, d) for d in common)
    ]
    limits = bounds(state, block, open_ones)
    condition = predicate(limits, {v: ir.substitute(e, bound) for v, e in mapping.items()})
    within = analyzer.copy()
    for it in iters:
        within.bind(it.var, it.dom)
    inner_iters = shortened(inner_iters, limits, mapping, within)
    inner = edit.inside(block, mapping).replace(iter_vars=tuple(inner_iters))
    return _Inner(inner, ir.BlockRealize(tuple(inner_values), condition, inner), iters, values)


def _signed(edit: Edit, inner: _Inner, known: tuple[Analyzer, dict[ir.Var, ir.Expr]]) -> _Inner:
    """The inner block, rewritten to the new block's iterators, with its signature."""
    analyzer, renamed = known
    analyzer = analyzer.copy()
    for it in inner.block.iter_vars:
        analyzer.bind(it.var, it.dom)
    realize: ir.BlockRealize = edit.substitute(inner.realize, renamed)
    block = with_signature(simplified(realize.block, analyzer, edit.forward), analyzer)
    return _Inner(block, realize.replace(block=block), inner.iters, inner.values)


class _Outer:
    """Iterators of the new block, shared by inner blocks with equal bindings of outer loops."""

    def __init__(self, state: StepState, analyzer: Analyzer) -> None:
        self.state = state
        self.analyzer = analyzer
        self.iters: list[ir.IterVar] = []
        self.values: list[ir.Expr] = []

    def take(self, inner: _Inner, block: ir.Block) -> tuple[Analyzer, dict[ir.Var, ir.Expr]]:
        """Find or add the iterators that a block needs; return the inner facts and a renaming."""
        renamed: dict[ir.Var, ir.Expr] = {}
        for it, value in zip(inner.iters, inner.values, strict=True):
            own = self._find(it, value, block)
            renamed[it.var] = ir.cast_to(own, it.var.type)
        known = self.analyzer.copy()
        for it in self.iters:
            known.bind(it.var, it.dom)
        return known, renamed

    def _find(self, it: ir.IterVar, value: ir.Expr, block: ir.Block) -> ir.Expr:
        prove = self.analyzer.prove_equal
        for own, mine in zip(self.iters, self.values, strict=True):
            if prove(mine, value) and prove(own.dom.extent, it.dom.extent):
                if own.iter_type is it.iter_type or ir.is_const_int(it.dom.extent, 1):
                    return own.var
                self.state.fail(
                    f"an outer loop drives iterators of different kinds, one of them of block "
                    f"{block.name}",
                    code="BW364",
                    guilty=[self.state.tree.realize(block)],
                    help="group the blocks further inside",
                )
        self.iters.append(it)
        self.values.append(value)
        return it.var

    def require_map(self, loops: Sequence[ir.For], at: ir.Stmt) -> None:
        """Require that the iterators form an iterator map of the outer loops."""
        domains = {f.loop_var: f.dom for f in loops}
        analyzer = self.state.analyzer(loops[0] if loops else at)
        result = detect_iter_map(self.values, domains, None, analyzer)
        if not result.ok:
            self.state.fail(
                "the blocks bind outer loops in different ways: " + "; ".join(result.errors),
                code="BW315",
                guilty=[at],
                help="group the blocks further inside",
            )


def _own_buffers(
    state: StepState, blocks: Sequence[ir.Block], inside: Sequence[ir.Block]
) -> list[ir.Buffer]:
    """Buffers of the scope that can be allocated in the new block.

    Only the new block uses them, and each instance writes them before it reads them.
    """
    scope = state.scope(blocks[0])
    flow = state.data_flow(scope)
    group = set(inside)
    result: list[ir.Buffer] = []
    for buffer in scope.alloc_buffers:
        writers, readers = flow.writers.get(buffer, []), flow.readers.get(buffer, [])
        if not writers or not readers or not {*writers, *readers} <= group:
            continue
        reads = [(b, r) for b in readers for r in b.reads if r.buffer is buffer]
        if all(flow.covers(flow.writers_before(b, r), b, r) for b, r in reads):
            result.append(buffer)
    return result


def _taken_apart(state: StepState, block: ir.Block) -> str:
    """Help text: how to move the start of a reduction out of the new block."""
    ways = (
        f'decompose_reduction("{block.name}", {called(state, f)})'
        for f in state.tree.loops_above(block)
    )
    way = first_legal(state, ways)
    return (
        f"call {way} first, so that the new block contains no initialization"
        if way
        else "choose a loop around all reduction loops"
    )
