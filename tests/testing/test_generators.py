"""Random programs are reproducible, varied, runnable; the comparison finds what is wrong."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.compute import Program
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing import assert_same_meaning, difference, make_arrays, random_program
from blockwright.testing.arrays import copied
from blockwright.testing.check import Reference
from blockwright.testing.generators.forms import with_short_indices


@cache
def unusual_programs() -> list[ir.PrimFunc]:
    return [random_program(seed, unusual=True) for seed in range(200)]


def test_a_seed_gives_the_same_program_and_arrays() -> None:
    for seed in range(10):
        one, two = random_program(seed), random_program(seed)
        assert ir.structural_equal(one, two)
        for a, b in zip(make_arrays(one, seed), make_arrays(two, seed), strict=True):
            np.testing.assert_array_equal(a, b)


def test_programs_cover_the_ground() -> None:
    programs = unusual_programs()[:80]
    assert any("tir_var_upper_bound" in p.attrs for p in programs)
    assert any("tir_var_upper_bound" not in p.attrs for p in programs)
    assert any(p.attrs["num_outputs"] > 1 for p in programs)
    assert any(b.init is not None for p in programs for b in ir.blocks(p.body))
    assert any(_writers(p) > 1 for p in programs)
    assert any(_read_backwards(p) for p in programs)
    assert any(
        out in reads
        for p in programs
        for out in p.buffers
        for reads in [_read(p)]
        if out in _written(p)
    )
    assert any(
        isinstance(i, ir.BufferLoad)
        for p in programs
        for a in ir.accesses(p.body)
        for i in a.indices
    )


def test_stores_may_not_happen_where_that_is_asked_for() -> None:
    def partial(func: ir.PrimFunc) -> bool:
        return any(
            isinstance(n, (ir.IfThenElse, ir.For))
            for b in ir.blocks(func.body)
            if b is not func.root
            for n in ir.walk(b.body)
        )

    assert not any(partial(random_program(seed)) for seed in range(40))
    assert sum(map(partial, unusual_programs()[:40])) > 5


def test_loops_end_early_and_instances_run_in_order_where_that_is_asked_for() -> None:
    programs = unusual_programs()
    inside = [n for p in programs for b in ir.blocks(p.body) for n in ir.walk(b.body)]
    assert any(isinstance(n, ir.While) for n in inside)
    assert {"break", "continue"} <= {n.op for n in inside if isinstance(n, ir.Call)}
    kinds = {it.iter_type for p in programs for b in ir.blocks(p.body) for it in b.iter_vars}
    assert ir.IterType.OPAQUE in kinds
    assert any(_blocks_side_by_side(p) for p in programs)


def test_programs_have_parts_views_allocations_and_atomic_updates() -> None:
    programs = unusual_programs()
    inside = [n for p in programs for n in ir.walk(p.body)]
    extents = [
        n
        for p in programs
        for b in ir.blocks(p.body)
        for it in b.iter_vars
        for n in ir.walk(it.dom.extent)
    ]
    empty = [n for n in extents if isinstance(n, (ir.FloorDiv, ir.Max))]
    views = [n.buffer for n in inside if isinstance(n, ir.DeclBuffer)]
    begins = {type(v.offset) for v in views if v.offset is not None and ir.free_vars(v.offset)}
    assert len(empty) > 3
    assert sum(isinstance(n, ir.Allocate) for n in inside) > 10
    assert sum(v.offset is not None for v in views) > 10
    assert begins
    assert any(v.strides for v in views)
    assert sum(ir.is_atomic(n) for n in inside) > 10
    assert sum(p.attrs["tir.noalias"] is False for p in programs) > 3


def test_arguments_of_one_memory_are_one_array() -> None:
    programs = unusual_programs()
    joined = [
        p
        for k, p in enumerate(programs)
        if p.attrs["tir.noalias"] is False
        and len({id(a) for a in make_arrays(p, k)}) < len(p.buffers)
    ]
    assert joined
    arrays = make_arrays(joined[0], programs.index(joined[0]))
    again = copied(arrays)
    assert [[a is b for a in again] for b in again] == [[a is b for a in arrays] for b in arrays]


def _blocks_side_by_side(func: ir.PrimFunc) -> bool:
    """Whether blocks take turns in a loop."""
    loops = ir.collect(func.body, ir.For)
    return any(
        isinstance(f.body, ir.SeqStmt) and all(isinstance(s, ir.BlockRealize) for s in f.body.seq)
        for f in loops
    )


def _written(func: ir.PrimFunc) -> list[ir.Buffer]:
    return [w.buffer for b in ir.blocks(func.body) for w in b.writes]


def _read(func: ir.PrimFunc) -> set[ir.Buffer]:
    return {r.buffer for b in ir.blocks(func.body) for r in b.reads}


def _writers(func: ir.PrimFunc) -> int:
    """The largest number of blocks that write one buffer."""
    return max(map(_written(func).count, _written(func)))


def _read_backwards(func: ir.PrimFunc) -> bool:
    return any(
        isinstance(i, ir.Sub) and isinstance(i.b, ir.Var)
        for a in ir.accesses(func.body)
        for i in a.indices
    )


@pytest.mark.parametrize("seed", range(40))
def test_lanes_agree_with_one_instance_at_a_time(seed: int) -> None:
    func = random_program(seed, unusual=True)
    first = make_arrays(func, seed)
    second = copied(first)
    interpret(func, *first)
    interpret(func, *second, vectorize=False)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_long_shifts_stay_long_with_short_indices() -> None:
    """A choice of literals is data, but is written like an index, which becomes shorter."""
    text = """
@T.prim_func(index_dtype="int64")
def main(A: T.Buffer((4,), "int64"), B: T.Buffer((4,), "int64")):
    for i in range(4):
        B[i] = T.shift_left(T.if_then_else(A[i] > T.int64(0), 3, -3), AMOUNT)
"""
    for amount, bits in ((31, 32), (32, 64), (62, 64)):
        func = from_source(text.replace("AMOUNT", str(amount)))
        assert isinstance(func, ir.PrimFunc)
        (loop,) = ir.collect(with_short_indices(func, random.Random()), ir.For)
        assert loop.loop_var.dtype.bits == bits


def test_other_element_types() -> None:
    for dtype in ("float64", "float16", "bfloat16"):
        for seed in range(6):
            func = random_program(seed, dtype=dtype)
            assert_same_meaning(func, func, seed=seed, exact=True)


def test_reassociation_is_within_tolerance_but_not_exact() -> None:
    def total(name: str, over: tuple[int, ...]) -> ir.PrimFunc:
        p = Program(name)
        x = p.param("X", (16, 64), "float32")
        step = 64 // over[0]

        def term(i: ir.Expr, *k: ir.Expr) -> ir.Expr:
            return x[i, k[0] if len(k) == 1 else k[1] * (64 // step) + k[0]]

        return p.finish([p.reduce("Y", (16,), over, term)], {"num_outputs": 1})

    in_order, strided = total("a", (64,)), total("b", (8, 8))
    assert_same_meaning(in_order, strided)
    with pytest.raises(AssertionError, match="Y differs"):
        assert_same_meaning(in_order, strided, exact=True)


def test_differences_are_found() -> None:
    func = random_program(3, stages=2, symbolic=False)

    def spoil(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.BufferStore) and node.buffer is func.buffers[-1]:
            return node.replace(value=node.value + ir.const(0.01, node.value.dtype))
        return None

    with pytest.raises(AssertionError, match="differs"):
        assert_same_meaning(func, ir.rewrite_bottom_up(func, spoil))


def test_races_are_found() -> None:
    func = next(p for p in map(random_program, range(50)) if _reduces(p))

    def spread(node: ir.Node) -> ir.Node | None:
        return node.replace(kind=ir.ForKind.PARALLEL) if isinstance(node, ir.For) else None

    with pytest.raises(InterpretError) as caught:
        assert_same_meaning(func, ir.rewrite_bottom_up(func, spread), sizes={"n": 5, "m": 5})
    assert caught.value.code == "BW756"


def _reduces(func: ir.PrimFunc) -> bool:
    return any(
        it.iter_type is ir.IterType.REDUCE and (ir.const_int(it.dom.extent) or 5) > 1
        for b in ir.blocks(func.body)
        for it in b.iter_vars
    )


def test_difference_of_arrays() -> None:
    x = np.array([1.0, np.nan, np.inf, 100.0], np.float32)
    assert difference(x, x.copy(), 0) is None
    assert difference(x, x + np.float32(1e-5), 4) is None
    near = x + np.array([0, 0, 0, 1e-3], np.float32)
    assert difference(x, near, 4) is not None
    assert "first at [0]" in str(difference(np.array([1]), np.array([2]), 100))
    assert difference(x, np.array([1, 0, np.inf, 100], np.float32), 1e9) is not None


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "int32"])
def test_programs_with_scalar_parameters_are_compared(dtype: str) -> None:
    def scaled(factor: str) -> ir.PrimFunc:
        func = from_source(f"""
@T.prim_func
def scaled(A: T.Buffer((8,), "float32"), s: T.{dtype}, B: T.Buffer((8,), "float32")):
    for i in range(8):
        B[i] = A[i] * {factor}
""")
        assert isinstance(func, ir.PrimFunc)
        return func

    reference = Reference(scaled('T.Cast("float32", s)'), seed=3)
    reference.assert_met(scaled('(T.Cast("float32", s) + T.float32(0))'))
    with pytest.raises(AssertionError, match="B differs"):
        reference.assert_met(scaled("T.float32(0.125)"))
