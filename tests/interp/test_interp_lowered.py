"""Programs mean the same on the interpreter at every stage of lowering."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.lower import lower
from blockwright.testing import assert_same_meaning, random_program


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_after_every_pass(seed: int) -> None:
    func = random_program(seed)

    def check(name: str, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
        assert_same_meaning(func, after, seed=seed, exact=True)

    lower(func, "x86-64-v3", on_pass=check)


@pytest.mark.parametrize("seed", range(30, 50))
def test_parallel_and_vectorized_loops_after_lowering(seed: int) -> None:
    """Spatial loops of every block: the outermost parallel, the innermost vectorized."""
    func = random_program(seed)
    free = ir.rewrite_bottom_up(func, _free_loops)
    assert_same_meaning(func, free, seed=seed, exact=True)
    assert_same_meaning(func, lower(free, "x86-64-v3"), seed=seed, exact=True)


def _free_loops(node: ir.Node) -> ir.Node | None:
    if not isinstance(node, ir.SeqStmt):
        return None
    return ir.SeqStmt(tuple(_free_nest(part) for part in node.seq))


def _free_nest(stmt: ir.Stmt) -> ir.Stmt:
    realize = next(iter(ir.collect(stmt, ir.BlockRealize)), None)
    if not isinstance(stmt, ir.For) or realize is None:
        return stmt
    spatial = {
        v
        for it, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if it.iter_type is ir.IterType.SPATIAL
    }
    nest = [loop for loop in ir.loops(stmt) if loop.loop_var in spatial]

    def mark(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.For) or not nest:
            return None
        if node.loop_var is nest[0].loop_var:
            return node.replace(kind=ir.ForKind.PARALLEL)
        fixed = ir.const_int(node.extent) is not None
        if node.loop_var is nest[-1].loop_var and fixed and len(spatial) == len(ir.loops(stmt)):
            return node.replace(kind=ir.ForKind.VECTORIZED)
        return None

    return ir.rewrite_bottom_up(stmt, mark)
