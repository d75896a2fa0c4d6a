"""Split the iterators of a block into an outer block and an inner block (`blockize`)."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.analysis.access.regions import domains_of
from blockwright.arith import Analyzer, SubspaceDivision, SubspacePair, subspace_divide
from blockwright.arith.condition import conjuncts
from blockwright.schedule.engine.forwarding import Forwarding
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.try_remedies import THEN, called, calls, first_legal

Bound = tuple[ir.IterVar, type[ir.CompareOp], ir.Expr]
"""A comparison of an iterator with a loop-invariant value."""


def divide(
    state: StepState, block: ir.Block, inside: Sequence[ir.For], predicate: ir.Expr
) -> SubspaceDivision:
    """Divide the bindings of a block into an outer part and a part that the inner loops drive.

    Args:
        predicate: the iterations that run; where it holds, the outer parts are in range.
    """
    realize = state.tree.realize(block)
    loops = state.tree.loops_above(block)
    _require_own_extents(state, block, inside)
    domains = {f.loop_var: f.dom for f in loops}
    base = state.analyzer(loops[0] if loops else realize)
    given = None if ir.is_const_int(predicate) else predicate
    own = {f.loop_var for f in inside}
    values = realize.iter_values
    result = subspace_divide(values, domains, own, given, base)
    if result is not None and given is not None:
        analyzer = base.without(domains)
        for var, domain in domains.items():
            analyzer.bind(var, domain)
        if not all(_makes(p, v, analyzer) for p, v in zip(result.pairs, values, strict=True)):
            # The predicate restricts an iterator to one value, so its loop occurs in neither part.
            # Divide without the predicate, so that the parts can be compared with its limit.
            given = None
            whole = subspace_divide(values, domains, own, None, base)
            result = whole and msgspec.structs.replace(
                whole,
                outer_predicate=result.outer_predicate,
                inner_predicate=result.inner_predicate,
            )
    if result is not None and not all(_runs(dom, base) for dom in domains.values()):
        alone = [_alone(v, domains, own, given, base) for v in values]
        kept = [p for p in alone if p is not None]
        result = (
            None if len(kept) < len(alone) else msgspec.structs.replace(result, pairs=tuple(kept))
        )
    if result is not None:
        pairs = tuple(
            _with_empty_loops(pair, it, value, own, base)
            for pair, it, value in zip(result.pairs, block.iter_vars, values, strict=True)
        )
        result = msgspec.structs.replace(result, pairs=pairs)
    unfit = result is not None and any(_unfit(pair, set(domains)) for pair in result.pairs)
    if result is None or unfit:
        state.fail(
            f"the iterators of block {block.name} do not divide into a part outside and a "
            "part inside the new block",
            code="BW315",
            guilty=[*inside[:1], realize],
            help=_inner_parts(state, block, list(inside)),
        )
    return result


def _runs(dom: ir.Range, base: Analyzer) -> bool:
    return base.prove(ir.GE(dom.extent, ir.const(1, dom.extent.dtype)))


def _alone(
    value: ir.Expr,
    domains: Mapping[ir.Var, ir.Range],
    inside: Collection[ir.Var],
    predicate: ir.Expr | None,
    base: Analyzer,
) -> SubspacePair | None:
    """Divide one binding by the loops that it uses, without facts from other loops.

    Another loop, such as one inside the new block, may be empty where the new block and its initial
    value use this binding.
    """
    mine = domains_of(value, domains)
    mine |= {v: dom for v, dom in domains.items() if v not in mine and _runs(dom, base)}
    others = domains.keys() - mine.keys()
    kept = [
        c for c in (() if predicate is None else conjuncts(predicate)) if not ir.uses_var(c, others)
    ]
    result = subspace_divide([value], mine, inside, ir.all_of(kept) if kept else None, base)
    return None if result is None else result.pairs[0]


def _with_empty_loops(
    pair: SubspacePair, it: ir.IterVar, value: ir.Expr, inside: Container[ir.Var], base: Analyzer
) -> SubspacePair:
    """Restore the whole domain as inner part if it may be empty but was simplified to extent 1.

    Parts are simplified with the facts inside all loops, where no domain is empty: an extent of at
    most 1 becomes 1. The new block would then run, and store initial values, for an empty domain.
    """
    extents = (pair.inner_extent, pair.outer_extent, it.dom.extent)
    if [ir.const_int(e) for e in extents] != [1, 1, None]:
        return pair
    if base.prove(ir.GE(it.dom.extent, ir.const(1, it.var.type))):
        return pair
    loops = ir.free_vars(value)
    if loops and all(v in inside for v in loops):
        return msgspec.structs.replace(
            pair, inner=value, inner_start=it.dom.min, inner_extent=it.dom.extent
        )
    return pair


def _unfit(pair: SubspacePair, loops: set[ir.Var]) -> bool:
    """Whether the inner part is empty, or its start or extent varies although there are several
    outer parts."""
    ends = (pair.inner_start, pair.inner_extent)
    moves = any(ir.uses_var(e, loops) for e in ends) and not ir.is_const_int(pair.outer_extent, 1)
    return moves or ir.is_const_int(pair.inner_extent, 0)


def _moves(expr: ir.Expr, loops: set[ir.Var]) -> bool:
    """Whether a bound of a part depends on loops or on loaded data."""
    return ir.uses_var(expr, loops) or bool(ir.collect(expr, ir.BufferLoad))


def _require_own_extents(state: StepState, block: ir.Block, inside: Sequence[ir.For]) -> None:
    """Require that extents of inner loops depend only on each other, not on loops outside."""
    outside = {f.loop_var for f in state.tree.loops_above(block) if f not in inside}
    for loop in inside:
        if any(ir.uses_var(e, outside) for e in (loop.min, loop.extent)):
            state.fail(
                f"the extent of loop {loop.loop_var.name} depends on a loop outside the new block",
                code="BW350",
                guilty=[loop, state.tree.realize(block)],
                help="choose the loop that the extent depends on, or one further outside",
            )


def _makes(pair: SubspacePair, value: ir.Expr, analyzer: Analyzer) -> bool:
    """Whether the parts recompose to the value in every iteration, even if the predicate fails."""
    return analyzer.prove_equal(pair.outer * pair.inner_extent + pair.inner, value)


def iterators(
    block: ir.Block,
    division: SubspaceDivision,
    preserve_unit: bool,
    analyzer: Analyzer,
    running: set[ir.Var],
) -> tuple[list[ir.IterVar], list[ir.Expr], list[ir.IterVar], list[ir.Expr], dict[ir.Var, ir.Expr]]:
    """Outer iterators and values, inner iterators and values, and old variable → new value."""
    outer: list[ir.IterVar] = []
    outer_values: list[ir.Expr] = []
    inner: list[ir.IterVar] = []
    inner_values: list[ir.Expr] = []
    mapping: dict[ir.Var, ir.Expr] = {}
    for it, pair in zip(block.iter_vars, division.pairs, strict=True):
        dtype = it.var.type
        zero = ir.const(0, dtype)
        ends = (pair.inner_start, pair.inner_extent)
        if ir.is_const_int(pair.outer_extent, 1) and any(_moves(e, running) for e in ends):
            # the inner part is the whole iterator: use its declared domain
            whole = {"inner_start": it.dom.min, "inner_extent": it.dom.extent}
            pair = msgspec.structs.replace(pair, **whole)
        value: ir.Expr = zero
        single = analyzer.prove_equal(pair.outer_extent, ir.const(1, dtype))
        constant = single and not ir.uses_var(pair.outer, running)
        if preserve_unit or not constant:
            var = ir.Var(f"{it.var.name}_o", dtype)
            domain = _outer_domain(it, pair, analyzer, running)
            outer.append(ir.IterVar(var, domain, it.iter_type))
            outer_values.append(pair.outer)
            value = ir.mul(var, pair.inner_extent)
        else:
            value = ir.mul(pair.outer, pair.inner_extent)
        if not analyzer.prove_equal(pair.inner_extent, ir.const(1, dtype)):
            var = ir.Var(f"{it.var.name}_i", dtype)
            domain = ir.Range(pair.inner_start, pair.inner_extent)
            inner.append(ir.IterVar(var, domain, it.iter_type))
            inner_values.append(pair.inner)
            value = value + var
        else:
            value = value + pair.inner_start
        mapping[it.var] = value
    return outer, outer_values, inner, inner_values, mapping


def _outer_domain(
    it: ir.IterVar, pair: SubspacePair, analyzer: Analyzer, running: set[ir.Var]
) -> ir.Range:
    """The domain of an outer iterator.

    A domain must not depend on loops around the block. If its start would, the domain covers the
    outer parts of all values of the old iterator.
    """
    if not _moves(pair.outer_start, running):
        extent = _extent(pair.outer_extent, it, pair, analyzer, running)
        return ir.Range(pair.outer_start, extent)
    first = it.dom.min - pair.inner_start
    last = first + it.dom.extent - 1
    low, high = (ir.floordiv(e, pair.inner_extent) for e in (first, last))
    return ir.Range(analyzer.simplify(low), analyzer.simplify(high - low + 1))


def _extent(
    extent: ir.Expr, it: ir.IterVar, pair: SubspacePair, analyzer: Analyzer, running: set[ir.Var]
) -> ir.Expr:
    """The extent of an outer iterator, computed from the old iterator's domain if it would
    otherwise depend on a loop."""
    if _moves(extent, running):
        return analyzer.simplify(ir.ceildiv(*ir.match_types(it.dom.extent, pair.inner_extent)))
    whole = ir.is_const_int(pair.inner_extent, 1) and analyzer.prove_equal(extent, it.dom.extent)
    return it.dom.extent if whole else extent


def bounds(state: StepState, block: ir.Block, conditions: Iterable[ir.Expr]) -> list[Bound]:
    """Convert conditions on loops to comparisons of an iterator with a loop-invariant value."""
    realize = state.tree.realize(block)
    analyzer = state.analyzer(realize)
    loops = {f.loop_var for f in state.tree.loops_above(block)}
    kept: list[Bound] = []
    for condition in conditions:
        if ir.is_const_int(condition, 1):
            continue
        result = False
        if isinstance(condition, ir.CompareOp) and not ir.uses_var(condition.b, loops):
            for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
                if not result and analyzer.prove_equal(condition.a, value):
                    kept.append((it, type(condition), condition.b))
                    result = True
        if not result:
            state.fail(
                "a condition of the predicate is not a bound of a single iterator",
                code="BW356",
                guilty=[realize],
                help="choose factors that divide the loops, pad_einsum the "
                "block, or peel the boundary with loop_partition",
            )
    return kept


def predicate(limits: Iterable[Bound], values: dict[ir.Var, ir.Expr]) -> ir.Expr:
    """The conjunction of the comparisons, with iterators replaced by `values`."""
    return ir.all_of(
        compare(*ir.match_types(values[it.var], limit)) for it, compare, limit in limits
    )


def shortened(
    iters: list[ir.IterVar],
    limits: Iterable[Bound],
    mapping: dict[ir.Var, ir.Expr],
    analyzer: Analyzer,
) -> list[ir.IterVar]:
    """Clip the domains of inner iterators to the limits, as in a partial tile.

    The limits are then implied by the domains, so that blocks inside a tile can be moved freely.
    """
    result = {it.var: it for it in iters}
    for it, compare, limit in limits:
        value = mapping[it.var]
        own = [v for v in ir.free_vars(value) if v in result]
        if len(own) != 1 or compare not in (ir.LT, ir.LE):
            continue
        inner = result[own[0]]
        rest = ir.substitute(value, {inner.var: ir.const(0, inner.var.type)})
        end = ir.cast_to(limit, inner.var.type) + (1 if compare is ir.LE else 0)
        extent = analyzer.simplify(ir.minimum(inner.dom.extent, end - rest - inner.dom.min))
        result[inner.var] = inner.replace(dom=ir.Range(inner.dom.min, extent))
    return list(result.values())


class _Simplify(Forwarding):
    """Simplifies indices and regions; blocks inside that change are forwarded."""

    def __init__(self, analyzer: Analyzer, forward: dict[ir.Block, ir.Block]) -> None:
        super().__init__(forward)
        self.analyzer = analyzer

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_BufferRegion(self, node: ir.BufferRegion) -> ir.BufferRegion:
        simplify = self.analyzer.simplify
        ranges = tuple(ir.Range(simplify(r.min), simplify(r.extent)) for r in node.region)
        same = all(
            a.min is b.min and a.extent is b.extent
            for a, b in zip(ranges, node.region, strict=True)
        )
        return node if same else node.replace(region=ranges)

    def _access(self, node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        new = self.descend(node)
        return new.replace(indices=tuple(self.analyzer.simplify(i) for i in new.indices))

    rewrite_BufferLoad = rewrite_BufferStore = _access


def simplified(block: ir.Block, analyzer: Analyzer, forward: dict[ir.Block, ir.Block]) -> ir.Block:
    """Simplify the indices in a block, in the blocks inside and in their signatures.

    Args:
        analyzer: facts in the block's body, where reduction domains are not empty.
    """
    body = _Simplify(analyzer, forward)(block.body)
    if block.init is None:
        return block.replace(body=body)
    reduced = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    init = _Simplify(analyzer.without_empty(reduced), forward)(block.init)
    return block.replace(body=body, init=init)


def rebuild(node: ir.Stmt, old: ir.Stmt, new: ir.Stmt) -> ir.Stmt:
    """`node` with the statement `old`, somewhere below it, replaced by `new`."""
    if node is old:
        return new
    if isinstance(node, ir.Block):
        return node
    return node.map_children(lambda c: rebuild(c, old, new) if isinstance(c, ir.Stmt) else c)


def _inner_parts(state: StepState, block: ir.Block, inside: list[ir.For]) -> str:
    """Help text: how to make the loops inside a new block the inner parts of splits."""
    above = state.tree.loops_above(block)
    outside = [f for f in above if f not in inside]
    ways: list[str] = []
    for count in range(len(outside)):
        inner = outside[count:]
        order = calls(state, [*outside[:count], *inside, *inner])
        ways.append(f"reorder({order}){THEN}blockize({called(state, inner[0])})")
    way = first_legal(state, ways) if state.step_name == "blockize" else ""
    rule = "the loops inside the new block must be the inner parts of splits"
    return (
        f"{rule}: {way}"
        if way
        else f"{rule}: split the loops of {block.name}, and reorder the outer parts outwards"
    )
