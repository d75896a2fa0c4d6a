"""Independence of block instances: whether two of them may write the same element.

A data-parallel iterator promises that its instances are independent. This holds if the spatial
iterators and the written elements determine each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.analysis.access.tree import Tree, child_stmts
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.arith import Analyzer, detect_iter_map, eval_set


def shared_writes(block: ir.Block, analyzer: Analyzer) -> str:
    """Why two instances that differ in a spatial iterator may write one element; "" if they cannot.

    Args:
        analyzer: facts about sizes.
    """
    spatial = {
        it.var: it.dom
        for it in block.iter_vars
        if it.iter_type is ir.IterType.SPATIAL and not ir.is_const_int(it.dom.extent, 1)
    }
    for region in block.writes if spatial else ():
        problem = _shared(region, spatial, analyzer)
        if problem:
            return f"its instances may write the same element of {region.buffer.name}: {problem}"
    return ""


def _shared(region: ir.BufferRegion, spatial: dict[ir.Var, ir.Range], analyzer: Analyzer) -> str:
    plain = {
        r.min for r in region.region if isinstance(r.min, ir.Var) and ir.is_const_int(r.extent, 1)
    }
    left = {v: d for v, d in spatial.items() if v not in plain}
    if not left:
        return ""
    known = analyzer.copy()
    for var, domain in spatial.items():
        known.bind(var, domain)
    corners: list[ir.Expr] = []
    for rng in region.region:
        if not ir.uses_var(rng.min, set(left)):
            continue
        low = corner(rng, spatial, known)
        if low is not None:
            corners.append(low)
    unused = [v.name for v in left if not any(ir.uses_var(c, v) for c in corners)]
    if unused:
        return f"no index depends on {', '.join(unused)}"
    result = detect_iter_map(corners, left, None, known, "injective", pad=True)
    return "; ".join(result.errors)


def corner(rng: ir.Range, domains: Mapping[ir.Var, ir.Range], analyzer: Analyzer) -> ir.Expr | None:
    """Number of a box within a row of adjacent boxes along a dimension; None if the boxes overlap.

    The last box may be shorter: `[v * 7, v * 7 + min(7, 64 - v * 7))` is box number `v`.
    """
    step: ir.Expr | None = rng.extent
    if ir.is_const_int(step, 1):
        return rng.min
    if ir.uses_var(step, set(domains)):
        step = eval_set(step, domains, analyzer).max
    if step is None:
        return None
    whole = ir.floormod(rng.min, step)
    if not analyzer.prove_equal(whole, ir.const(0, whole.dtype)):
        return None
    return analyzer.simplify(ir.floordiv(rng.min, step))


def fills(
    rng: ir.Range, size: ir.Expr, domains: Mapping[ir.Var, ir.Range], analyzer: Analyzer
) -> bool:
    """Whether adjacent boxes leave no gap: only the end of the buffer may shorten a box."""
    if not ir.uses_var(rng.extent, set(domains)):
        return True
    step = eval_set(rng.extent, domains, analyzer).max
    if step is None:
        return False
    end = ir.minimum(rng.min + step, ir.cast_to(size, rng.min.dtype))
    return analyzer.prove_equal(rng.min + rng.extent, end)


def drives_sums(stmt: ir.Stmt, outer: set[ir.Var]) -> bool:
    """Whether `stmt` contains a reduction with an init statement driven by one of the variables."""
    driven = set(outer)
    stack: list[ir.Stmt] = [stmt]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.For) and ir.uses_var(node.min, driven):
            driven.add(node.loop_var)
        if isinstance(node, ir.BlockRealize):
            for it, value in node.bindings:
                if ir.uses_var(value, driven):
                    if it.iter_type is ir.IterType.REDUCE and node.block.init is not None:
                        return True
                    driven.add(it.var)
        stack.extend(child_stmts(node)[::-1])
    return False


def write_apart(
    tree: Tree, memo: FlowMemo, loop: ir.For, block: ir.Block, region: ir.BufferRegion
) -> bool:
    """Whether different iterations of the loop provably write different elements of a region.

    The corners that depend on the loop are checked as a map of this loop and the loops below it,
    then also of one enclosing loop after another: if it is injective, no two iterations have a
    common corner. Boxes of several elements must be adjacent and disjoint.
    """
    realize = tree.realize(block)
    values = realize.values
    above = tree.loops_above(block)
    analyzer = memo.facts(tree, loop)
    corners: list[ir.Expr] = []
    for rng in region.region:
        low = ir.substitute(rng.min, values)
        if not ir.uses_var(low, loop.loop_var):
            continue
        if not ir.is_const_int(rng.extent, 1):
            if not analyzer.prove_equal(ir.floormod(low, rng.extent), ir.const(0, low.dtype)):
                continue
            low = analyzer.simplify(ir.floordiv(low, rng.extent))
        corners.append(low)
    if not corners:
        return False
    predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
    for start in range(above.index(loop), -1, -1):
        if not any(ir.uses_var(c, above[start].loop_var) for c in corners):
            continue
        known = memo.facts(tree, above[start])
        moving = {
            f.loop_var: f.dom
            for f in above[start:]
            if any(ir.uses_var(c, f.loop_var) for c in corners)
        }
        for condition in dict.fromkeys((None, predicate)):
            if detect_iter_map(corners, moving, condition, known, "injective").ok:
                return True
    return False
