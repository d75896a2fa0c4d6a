"""Move a block to a loop: required iterator domains, and the loop nest that covers them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis.access.regions import domains_of
from blockwright.arith import (
    Analyzer,
    IterMapError,
    bound_region,
    covers,
    defined,
    detect_iter_map,
    hull,
    inverse_map,
)
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.state import StepResult, StepState

Domains = dict[ir.Var, ir.Range]


def merge(found: Domains, var: ir.Var, rng: ir.Range, analyzer: Analyzer) -> None:
    """Widen a variable's domain to the hull with `rng`."""
    old = found.get(var)
    found[var] = rng if old is None else hull(old, rng, analyzer)


def narrow(found: Domains, var: ir.Var, rng: ir.Range, analyzer: Analyzer) -> None:
    """Keep the smaller of two domains if one provably contains the other, else their hull."""
    old = found.get(var)
    if old is None or covers([old], [rng], analyzer):
        found[var] = rng
    elif not covers([rng], [old], analyzer):
        merge(found, var, rng, analyzer)


def solve(
    access: Sequence[ir.Range],
    needed: Sequence[ir.Range],
    iterators: Domains,
    analyzer: Analyzer,
) -> tuple[Domains, set[ir.Var]]:
    """The iterator values for which `access` intersects the box `needed`.

    Dimensions indexed by a single iterator are solved one by one; the others together, by the
    inverse of the map from iterators to elements, if it exists.

    Returns:
        Domains, and the iterators that `needed` does not constrain.
    """
    result: Domains = {}
    rest: list[tuple[ir.Expr, ir.Range]] = []
    for mine, rng in zip(access, needed, strict=True):
        solved = _solve_dimension(mine, rng, set(iterators), analyzer)
        if solved is not None:
            narrow(result, *solved, analyzer)
        elif ir.uses_var(mine.min, set(iterators)):
            rest.append((mine.min, rng))
    asked = {v for index, _ in rest for v in ir.free_vars(index) if v in iterators}
    if rest:  # together with all other dimensions that use the same iterators
        near = [
            (mine.min, rng)
            for mine, rng in zip(access, needed, strict=True)
            if ir.uses_var(mine.min, asked) and ir.is_const_int(mine.extent, 1)
        ]
        for var, rng in _solve_together(near, iterators, analyzer).items():
            narrow(result, var, rng, analyzer)
    return result, asked - result.keys()


def _solve_together(
    rest: Sequence[tuple[ir.Expr, ir.Range]], iterators: Domains, analyzer: Analyzer
) -> Domains:
    """Domains of the iterators in several indices, from the inverse of the index map.

    Empty if the map is not invertible.
    """
    own = {v: iterators[v] for index, _ in rest for v in ir.free_vars(index) if v in iterators}
    outputs = [ir.Var(f"at{k}", index.dtype) for k, (index, _) in enumerate(rest)]
    try:
        inverse = inverse_map([index for index, _ in rest], own, outputs, analyzer)
    except IterMapError:
        return {}
    boxes = {out: rng for out, (_, rng) in zip(outputs, rest, strict=True)}
    points = [ir.point(inverse[v]) for v in own]
    shape = [dom.min + dom.extent for dom in own.values()]
    ranges = bound_region(points, boxes, analyzer, None, shape)
    return dict(zip(own, ranges, strict=True))


def _solve_dimension(
    access: ir.Range, needed: ir.Range, iters: set[ir.Var], analyzer: Analyzer
) -> tuple[ir.Var, ir.Range] | None:
    """The iterator values for which `access` intersects `needed`, if it uses a single iterator.

    `access` is `v + c` or `v // c` (one element), or `v * c` with `c` elements.
    """
    used = [v for v in ir.free_vars(access.min) if v in iters]
    if len(set(used)) != 1:
        return None
    var = used[0]
    if ir.is_const_int(access.extent, 1):
        if isinstance(access.min, ir.FloorDiv) and access.min.a is var:
            each = access.min.b
            if (ir.const_int(each) or 0) < 1:
                return None
            low = analyzer.simplify(ir.mul(ir.cast_to(needed.min, var.type), each))
            return var, ir.Range(
                low, analyzer.simplify(ir.mul(ir.cast_to(needed.extent, var.type), each))
            )
        rest = analyzer.simplify(access.min - var)
        if ir.uses_var(rest, var):
            return None
        low = analyzer.simplify(ir.cast_to(needed.min, var.type) - ir.cast_to(rest, var.type))
        return var, ir.Range(low, ir.cast_to(needed.extent, var.type))
    step = access.extent
    if not analyzer.prove_equal(access.min, ir.mul(var, step)):
        return None
    first = analyzer.simplify(ir.floordiv(needed.min, step))
    last = analyzer.simplify(ir.floordiv(needed.min + needed.extent - 1, step))
    return var, ir.Range(first, analyzer.simplify(last - first + 1))


def nest_for(
    state: StepState,
    block: ir.Block,
    loop: ir.For,
    domains: Domains,
    preserve_unit_loops: bool,
    at: ir.Stmt | None = None,
    reached: Domains | None = None,
    when: ir.Expr | None = None,
) -> ir.Stmt:
    """Build a nest over `domains` that runs the block in the body of `loop`.

    Args:
        domains: required range per iterator; others run over their whole domain.
        at: a statement in the loop's body beside which the nest is placed.
        reached: replaces the iterators' declared domains if only a part of them is run.
        when: a condition on enclosing loops. It replaces the condition that an iterator is inside
            its domain if the two are equivalent: the predicate is then uniform per tile.
    """
    analyzer = state.analyzer(loop.body if at is None else at)
    around = [*state.tree.loops_above(loop), loop]
    running = {f.loop_var: f.dom for f in around}
    base = state.facts(around[0])
    values: list[ir.Expr] = []
    loops: list[tuple[ir.Var, ir.Expr]] = []
    predicate: ir.Expr = ir.const(True, "bool")
    spared = False
    stepping = analyzer.copy()
    reduced: set[ir.Var] = set()  # new reduction loops of a block with an initial value
    for k, it in enumerate(block.iter_vars):
        steps = block.init is not None and it.iter_type is ir.IterType.REDUCE
        dom = it.dom if reached is None else reached[it.var]
        rng = _defined_range(state, block, it, within(domains.get(it.var), dom, analyzer), analyzer)
        value, var = rng.min, None
        if preserve_unit_loops or not analyzer.prove_equal(rng.extent, _one(rng.extent)):
            var = ir.Var(f"ax{k}", it.var.type)
            loops.append((var, ir.cast_to(rng.extent, var.type)))
            running[var] = ir.Range(ir.const(0, var.type), loops[-1][1])
            stepping.bind(var, running[var])
            reduced |= {var} if steps else set()
            value = ir.add(rng.min, var)
        inner = stepping if steps or not reduced else stepping.without_empty(reduced)
        if var is not None:
            value = inner.simplify(value)
        values.append(ir.cast_to(value, it.var.type))
        for limits in (dom,) if dom is it.dom else (dom, it.dom):
            low = ir.GE(*ir.match_types(value, limits.min))
            high = ir.LT(*ir.match_types(value, limits.min + limits.extent))
            open_ends = [c for c in (low, high) if not inner.prove(c)]
            if not open_ends or _maps_into(value, limits, running, base):
                continue
            if when is not None and _same_condition(when, open_ends, inner):
                spared, open_ends = True, []
            predicate = ir.logical_and(predicate, ir.all_of(open_ends))
    if when is not None and spared:
        predicate = ir.logical_and(when, predicate)
    return wrap_loops(ir.BlockRealize(tuple(values), predicate, block), loops)


def _defined_range(
    state: StepState, block: ir.Block, it: ir.IterVar, rng: ir.Range, analyzer: Analyzer
) -> ir.Range:
    """The range with divisors that may be 0 replaced by `max(d, 1)`, so that it can be evaluated
    in every iteration of the enclosing loops.

    Where such a divisor is 0, no block needs the range: its consumers divide by the same value.
    """
    low, extent = defined(rng.min, analyzer), defined(rng.extent, analyzer)
    if low is None or extent is None:
        state.fail(
            f"the required range of {it.var.name} of {block.name} has a divisor that may be "
            "negative or 0",
            code="BW357",
            guilty=[state.tree.realize(block)],
            help="choose a loop further out",
        )
    return rng if low is rng.min and extent is rng.extent else ir.Range(low, extent)


def _same_condition(when: ir.Expr, ends: Sequence[ir.Expr], analyzer: Analyzer) -> bool:
    """Whether `when` is equivalent to the conjunction of `ends` in every iteration of the tile."""
    with analyzer.assume(when):
        spares = all(analyzer.prove(c) for c in ends)
    with analyzer.assume(ir.all_of(ends)):
        return spares and analyzer.prove(when)


def _maps_into(value: ir.Expr, dom: ir.Range, running: Domains, analyzer: Analyzer) -> bool:
    """Whether a value is an iterator sum of the loops whose range lies inside the domain."""
    result = detect_iter_map([value], domains_of(value, running), None, analyzer, "surjective")
    if not result.ok:
        return False
    item = result.indices[0]
    extent = item.args[0].extent if item.args else ir.const(1, value.dtype)
    end = ir.add(item.base, extent)
    return analyzer.prove(ir.GE(*ir.match_types(item.base, dom.min))) and analyzer.prove(
        ir.LE(*ir.match_types(end, dom.min + dom.extent))
    )


def _one(like: ir.Expr) -> ir.Expr:
    return ir.const(1, like.dtype)


def within(rng: ir.Range | None, dom: ir.Range, analyzer: Analyzer) -> ir.Range:
    """The requested range; the whole domain if the range provably covers it."""
    if rng is None:
        return dom
    starts = analyzer.prove(ir.LE(*ir.match_types(rng.min, dom.min)))
    longer = analyzer.prove(ir.GE(*ir.match_types(rng.min + rng.extent, dom.min + dom.extent)))
    return dom if starts and longer else rng


def body_parts(loop: ir.For) -> list[ir.Stmt]:
    return list(loop.body.seq) if isinstance(loop.body, ir.SeqStmt) else [loop.body]


def part_positions(state: StepState, parts: list[ir.Stmt], blocks: Iterable[ir.Block]) -> list[int]:
    """The positions of the statements of a body that contain the blocks."""
    result: list[int] = []
    for block in blocks:
        chain = {state.tree.realize(block), *state.tree.ancestors(state.tree.realize(block))}
        result += [k for k, part in enumerate(parts) if part in chain]
    return result


def place(
    state: StepState,
    block: ir.Block,
    loop: ir.For,
    first: int,
    last: int,
    index: int,
    nest: ir.Stmt,
) -> StepResult:
    """Move the block into the loop's body at position `index`, between `first` and `last`."""
    at = last if index == -1 else first if index == -2 else index
    if not first <= at <= last:
        state.fail(
            f"index {index} is outside the legal positions {first} to {last}",
            code="BW357",
            guilty=[loop],
            help="-1 is the last legal position, -2 the first",
        )
    parts = body_parts(loop)
    edit = Edit(state)
    edit.replace(state.tree.realize(block), None)
    edit.replace(loop.body, ir.seq([*parts[:at], nest, *parts[at:]]))
    edit.refresh_signatures()
    return edit.finish()
