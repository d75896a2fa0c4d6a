"""Build the loop nest of a copy, and adapt index maps and indices to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import Analyzer, IndexMap, eval_set
from blockwright.schedule.engine.forwarding import rewritten_accesses, with_signature
from blockwright.schedule.engine.state import StepState


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
