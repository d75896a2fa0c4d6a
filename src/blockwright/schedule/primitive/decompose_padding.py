"""decompose_padding: split a padding block into a constant fill and an unconditional copy."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockKind
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_shared
from blockwright.schedule.legality.guards import narrowed
from blockwright.schedule.legality.initial_order import require_constant_first
from blockwright.schedule.legality.try_remedies import called, legal
from blockwright.schedule.rewrite.copy_nest import fresh_name
from blockwright.schedule.rewrite.loops import resized

Bounds = dict[ir.Var, tuple[ir.Expr, ir.Expr]]
"""Iterator → first value and end (exclusive)."""


class DecomposePadding(Primitive, frozen=True, eq=False):
    """Split a block that writes `if_then_else(inside, value, constant)` in two.

    A new block before the loop writes the constant everywhere. The original block runs only at the
    inside points and writes the value. If a loop drives one bounded iterator, its range shrinks;
    other conditions become the predicate of the block.

    Args:
        block: a padding block.
        loop: a loop above it, before which the constant is written.

    Requires:
    - the loop is above the block, with only loops and statement lists in between (BW310, BW351);
    - the block is one store that selects between a value and an expression that reads no memory,
      by a condition over its iterators and sizes (BW333);
    - the block is complete (BW314), and no block in the loop reads elements of its result before
      the iteration that writes them (BW323);
    - the written buffer is not private to the iterations of a parallel or thread-bound loop, from
      `loop` inwards (BW317).

    Returns: the block that writes the constant.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((140,), "float32")):
            for i in range(140):
                with T.block("B"):
                    vi = T.axis.spatial(140, i)
                    B[vi] = T.if_then_else(vi >= 6 and vi < 134, A[vi - 6], T.float32(0))

    Steps::

        block = sch.get_block("B")
        sch.decompose_padding(block, sch.get_loops(block)[0])

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((140,), "float32")):
            for i_pad in range(140):
                with T.block("B_pad_const"):
                    vi = T.axis.spatial(140, i_pad)
                    B[vi] = T.float32(0)
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(140, i + 6)
                    B[vi] = A[vi - 6]
    """

    method: ClassVar[str] = "decompose_padding"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        block, loop = state.block(self.block), state.loop(self.loop)
        realize = state.realize(block)
        above = state.tree.loops_above(block)
        if loop not in set(above):
            state.fail(
                f"loop {loop.loop_var.name} is not above {block.name}",
                code="BW310",
                guilty=[loop, block],
                help=_border_at(state, block),
            )
        store, condition, value, constant = _choice(state, block)
        flow = state.flow_at(block)
        if flow.kind(block) is not BlockKind.COMPLETE:
            why = flow.why_other(block) or "it is a reduction"
            state.fail(
                f"block {block.name} is not complete: {why}",
                code="BW314",
                guilty=[realize],
                help="apply the step to the block that only copies and pads",
            )
        inside = above[above.index(loop) :]
        straight = _require_straight(state, block, loop, inside)
        fill, result = _filled(state, block, store.replace(value=constant), inside)
        edit = Edit(state)
        known = state.signature_facts(block)
        new = with_signature(block.replace(body=store.replace(value=value)), known)
        edit.forward[block] = new
        bounds, rest = _bounds(state, block, condition)
        if straight:
            moved = _shrunk(state, block, new, inside, bounds, rest)
            edit.replace(loop, moved)
        else:
            values = {it.var: v for it, v in zip(block.iter_vars, realize.iter_values, strict=True)}
            where = ir.substitute(condition, values)
            known = state.facts(realize)
            edit.replace(realize, narrowed(realize.replace(block=new), [where], known))
        edit.insert_before(loop, fill)
        edit.refresh_signatures()
        return edit.finish(result)


def _choice(state: StepState, block: ir.Block) -> tuple[ir.BufferStore, ir.Expr, ir.Expr, ir.Expr]:
    """Return the store of a padding block, its condition, the inside value and the constant."""
    store = block.body
    value = store.value if isinstance(store, ir.BufferStore) else None
    parts: tuple[ir.Expr, ...] = ()
    if isinstance(value, ir.Call) and value.op == "if_then_else":
        parts = value.args
    elif isinstance(value, ir.Select):
        parts = (value.condition, value.true_value, value.false_value)
    plain = isinstance(store, ir.BufferStore) and store.predicate is None
    if not parts or not plain or block.init is not None or block.match_buffers:
        state.fail(
            f"block {block.name} is not a single store of if_then_else(inside, value, constant)",
            code="BW333",
            guilty=[block],
            help="write the padding as one block: P[...] = "
            "T.if_then_else(inside, X[...], constant)",
        )
    assert isinstance(store, ir.BufferStore)
    condition, yes, no = parts
    if _reads(no) and not _reads(yes):
        condition, yes, no = _negated(condition), no, yes
    if _reads(no) or _reads(condition):
        state.fail(
            f"the padding value of block {block.name}, or the condition, depends on memory",
            code="BW333",
            guilty=[block],
            help="one of the two values must not read memory, and the condition must be over "
            "iterators",
        )
    return store, condition, yes, no


def _reads(expr: ir.Expr) -> bool:
    return any(isinstance(n, ir.BufferLoad) for n in ir.walk(expr))


_OPPOSITE: dict[type[ir.Expr], type[ir.CompareOp]] = {
    ir.LT: ir.GE, ir.LE: ir.GT, ir.GT: ir.LE, ir.GE: ir.LT, ir.EQ: ir.NE, ir.NE: ir.EQ,
}  # fmt: skip


def _negated(condition: ir.Expr) -> ir.Expr:
    """Negate a condition and push the negation into integer comparisons.

    Floating-point comparisons keep an explicit negation, because NaN makes both a comparison and
    its opposite false.
    """
    if isinstance(condition, ir.Or):
        return ir.logical_and(_negated(condition.a), _negated(condition.b))
    if isinstance(condition, ir.Not):
        return condition.a
    if isinstance(condition, ir.CompareOp) and condition.a.dtype.is_int:
        return _OPPOSITE[type(condition)](condition.a, condition.b)
    return ir.logical_not(condition)


def _require_straight(
    state: StepState, block: ir.Block, loop: ir.For, inside: list[ir.For]
) -> bool:
    """Whether the loop contains only the block, in perfectly nested loops.

    Fails if a statement other than a loop controls the block, or if a block in the loop would
    read the constant instead of the value.
    """
    for node in state.tree.deciding(state.realize(block), loop):
        state.fail(
            f"a statement between loop {loop.loop_var.name} and block {block.name} "
            "decides what runs",
            code="BW351",
            guilty=[node],
            help="choose a loop inside that statement",
        )
    variables = {f.loop_var for f in state.tree.loops_above(block)}
    for inner in inside:
        if any(ir.uses_var(e, variables) for e in (inner.min, inner.extent)):
            state.fail(
                f"the extent of loop {inner.loop_var.name} depends on another loop",
                code="BW350",
                guilty=[inner],
                help="choose a loop further out, around the one that the extent depends on",
            )
    require_shared(state, inside, block.writes[0].buffer, "a constant that is written before")
    require_constant_first(state, block, loop)
    below = state.tree.child_blocks(loop)
    return len(below) == 1 and all(
        f.body is (inside[k + 1] if k + 1 < len(inside) else state.realize(block))
        for k, f in enumerate(inside)
    )


def _filled(
    state: StepState, block: ir.Block, store: ir.BufferStore, inside: list[ir.For]
) -> tuple[ir.Stmt, ir.Block]:
    """Build the block that writes the constant, in copies of the loops."""
    realize = state.realize(block)
    loops = {f.loop_var: ir.Var(f"{f.loop_var.name}_pad", f.loop_var.type) for f in inside}
    fresh = {it.var: ir.Var(it.var.name, it.var.type) for it in block.iter_vars}
    iters = tuple(it.replace(var=fresh[it.var]) for it in block.iter_vars)
    name = fresh_name(state, f"{block.name}_pad_const")
    result = ir.Block(name, iters, (), (), ir.substitute(store, fresh))
    result = with_signature(result, state.signature_facts(block))
    values = tuple(ir.substitute(v, loops) for v in realize.iter_values)
    nest: ir.Stmt = ir.BlockRealize(values, ir.substitute(realize.predicate, loops), result)
    for loop in reversed(inside):
        nest = ir.For(loops[loop.loop_var], loop.min, loop.extent, ir.ForKind.SERIAL, nest)
    return nest, result


def _bounds(state: StepState, block: ir.Block, condition: ir.Expr) -> tuple[Bounds, list[ir.Expr]]:
    """Split a condition into bounds of single iterators and the remaining conjuncts."""
    analyzer = state.analyzer(block)
    iters = {it.var: it.dom for it in block.iter_vars}
    for it in block.iter_vars:
        analyzer.bind(it.var, it.dom)
    bounds: Bounds = {}
    rest: list[ir.Expr] = []
    for part in conjuncts(condition):
        result = _bound(part, set(iters), analyzer)
        if result is None:
            rest.append(part)
            continue
        var, first, end = result
        low, high = bounds.get(var, (iters[var].min, ir.add(iters[var].min, iters[var].extent)))
        low = low if first is None else ir.maximum(low, first)
        high = high if end is None else ir.minimum(high, end)
        bounds[var] = (analyzer.simplify(low), analyzer.simplify(high))
    return bounds, rest


def _bound(
    part: ir.Expr, iters: set[ir.Var], analyzer: Analyzer
) -> tuple[ir.Var, ir.Expr | None, ir.Expr | None] | None:
    """Convert a comparison into a bound of one iterator: (iterator, first value, end)."""
    used = [v for v in dict.fromkeys(ir.free_vars(part)) if v in iters]
    if len(used) != 1 or type(part) not in (ir.LT, ir.LE, ir.GT, ir.GE):
        return None
    assert isinstance(part, ir.CompareOp)
    var, (small, large) = used[0], (part.a, part.b)
    if isinstance(part, (ir.GT, ir.GE)):
        small, large = large, small
    strict = isinstance(part, (ir.LT, ir.GT))
    gap = ir.sub(*ir.match_types(large, small))  # at least 0, or 1 when strict
    step = 1 if strict else 0
    up = analyzer.simplify(ir.sub(*ir.match_types(gap, var)))
    if not ir.uses_var(up, var):  # var + up >= step
        return var, ir.cast_to(analyzer.simplify(step - up), var.type), None
    down = analyzer.simplify(ir.add(*ir.match_types(gap, var)))
    if not ir.uses_var(down, var):  # down - var >= step
        return var, None, ir.cast_to(analyzer.simplify(down - step + 1), var.type)
    return None


def _shrunk(
    state: StepState,
    block: ir.Block,
    new: ir.Block,
    inside: list[ir.For],
    bounds: Bounds,
    rest: list[ir.Expr],
) -> ir.Stmt:
    """Build the nest over the inside points: shrink loops that drive one bounded iterator."""
    realize = state.realize(block)
    analyzer = state.analyzer(inside[0])
    values = list(realize.iter_values)
    sizes: dict[ir.Var, ir.Expr] = {}
    for k, (it, value) in enumerate(zip(block.iter_vars, realize.iter_values, strict=True)):
        if it.var not in bounds:
            continue
        loop = next((f for f in inside if f.loop_var is value), None)
        low, high = bounds[it.var]
        others = (*(v for n, v in enumerate(values) if n != k), realize.predicate)
        alone = loop is not None and not any(ir.uses_var(e, loop.loop_var) for e in others)
        if loop is None or not alone or not ir.is_const_int(loop.min, 0):
            ends = ir.GE(*ir.match_types(it.var, low)), ir.LT(*ir.match_types(it.var, high))
            rest = [*rest, *ends]
            continue
        first = analyzer.simplify(ir.maximum(low, ir.cast_to(loop.min, low.dtype)))
        end = ir.minimum(high, ir.cast_to(loop.extent, high.dtype))
        size = analyzer.simplify(ir.maximum(ir.sub(end, first), ir.const(0, end.dtype)))
        sizes[loop.loop_var] = ir.cast_to(size, loop.loop_var.type)
        value = analyzer.simplify(ir.add(*ir.match_types(loop.loop_var, first)))
        values[k] = ir.cast_to(value, it.var.type)
    bound = {it.var: v for it, v in zip(block.iter_vars, values, strict=True)}
    nest: ir.Stmt = narrowed(
        ir.BlockRealize(tuple(values), realize.predicate, new),
        [ir.substitute(c, bound) for c in rest],
        state.facts(realize),
    )
    for loop in reversed(inside):
        nest = resized(loop, loop.min, sizes.get(loop.loop_var, loop.extent), nest)
    return nest


def _border_at(state: StepState, block: ir.Block) -> str:
    """Suggest loops for `decompose_padding`, with the part of the border each one fills."""
    above = state.tree.loops_above(block)
    text = f'choose one of get_loops("{block.name}"): {state.loops_of(block)}'
    ways = {f'decompose_padding("{block.name}", {called(state, f)})': f for f in above}
    result = legal(state, ways)
    if not result:
        return text
    out, *rest = [ways[way].loop_var.name for way in result]
    whole = f"{result[0]} fills all of {block.name} with the constant in a nest before loop {out}"
    inner = (
        f"; at {', '.join(rest)} it fills a part before that loop, in each iteration of the loops "
        "around it"
        if rest
        else ""
    )
    return f"{text}: {whole}{inner}"
