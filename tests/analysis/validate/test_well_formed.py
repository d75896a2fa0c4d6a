"""Well-formedness: each rule has a program that breaks it, and only it."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import check_well_formed, find_problems
from blockwright.script.ir import from_source
from blockwright.support import ValidationError

GOOD = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj])
            T.writes(B[vi, vj])
            B[vi, vj] = A[vi, vj] * 2.0
"""


def good() -> ir.PrimFunc:
    return from_source(GOOD)


def with_block(change) -> ir.PrimFunc:
    """The good program with its block changed."""
    func = good()
    block = ir.blocks(func)[1]
    loops = ir.loops(func)
    new = change(block, *(loop.loop_var for loop in loops))
    return func.replace(body=ir.rewrite_bottom_up(func.body, lambda n: new if n is block else None))


def twice(func: ir.PrimFunc) -> ir.PrimFunc:
    root = func.root
    nest = root.replace(body=ir.seq([root.body, root.body]))
    return func.replace(body=ir.BlockRealize((), ir.const(True, "bool"), nest))


BROKEN = {
    "BW211 defined twice": lambda: twice(good()),
    "BW212 uses the loop variable i from outside": lambda: with_block(
        lambda b, i, j: b.replace(body=b.body.replace(indices=(i, b.iter_vars[1].var)))
    ),
    "BW212 variable x is used where it is not defined": lambda: with_block(
        lambda b, i, j: b.replace(body=b.body.replace(indices=(ir.var("x"), b.iter_vars[1].var)))
    ),
    "BW212 buffer C is used where it is not defined": lambda: with_block(
        lambda b, i, j: b.replace(
            body=b.body.replace(buffer=b.body.buffer.replace(name="C")), writes=()
        )
    ),
    "BW212 the domain of iterator vj depends on iterator vi": lambda: with_block(
        lambda b, i, j: b.replace(iter_vars=(b.iter_vars[0], b.iter_vars[1].replace(
            dom=ir.Range(ir.const(0, "int32"), b.iter_vars[0].var))))
    ),
    "BW209 has 2 dimensions, an access has 1 indices": lambda: with_block(
        lambda b, i, j: b.replace(
            body=b.body.replace(value=ir.BufferLoad(b.reads[0].buffer, (ir.const(0, "int32"),))),
        )
    ),
    "BW216 reads A, which its signature does not state": lambda: with_block(
        lambda b, i, j: b.replace(reads=())
    ),
    "BW216 writes more of B": lambda: with_block(
        lambda b, i, j: b.replace(writes=(ir.point_region(b.body.buffer, [
            b.iter_vars[0].var, ir.const(0, "int32")]),))
    ),
}  # fmt: skip


def test_a_good_program_passes() -> None:
    check_well_formed(good())
    check_well_formed(ir.IRModule({"main": good()}))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_programs_are_reported(name: str) -> None:
    code, words = name.split(" ", 1)
    problems = find_problems(BROKEN[name]())
    assert any(p.code == code and words in p.message for p in problems), problems


def test_all_problems_are_listed_at_once() -> None:
    func = with_block(lambda b, i, j: b.replace(reads=(), writes=()))
    with pytest.raises(ValidationError) as caught:
        check_well_formed(func)
    assert len(caught.value.diagnostics) == 2


def test_two_symbols_of_one_name() -> None:
    n, m = ir.var("n", "int64"), ir.var("n", "int64")
    dtype = ir.dtype_of("float32")
    buffers = [ir.Buffer("A", dtype, (n,)), ir.Buffer("B", dtype, (m,))]
    handles = [ir.var(f"{b.name}_handle", "handle") for b in buffers]
    root = ir.Block("root", (), (), (), ir.Evaluate(ir.const(0, "int32")))
    func = ir.PrimFunc(
        tuple(handles),
        tuple(zip(handles, buffers, strict=True)),
        ir.BlockRealize((), ir.const(True, "bool"), root),
    )
    assert [p.code for p in find_problems(func)] == ["BW214"]


def test_a_deduced_signature_is_accepted_under_bounds_of_sizes() -> None:
    """The bounds fold the index further than where the signature was deduced."""
    func = from_source("""
@T.prim_func
def main(s: T.handle, o: T.handle):
    T.func_attr({"tir_var_lower_bound": {"m": 1}, "tir_var_upper_bound": {"m": 70000}})
    m = T.int64()
    S = T.match_buffer(s, (m,))
    O = T.match_buffer(o, (m,))
    for i in range(m):
        with T.block("pick"):
            vi = T.axis.spatial(m, i)
            place = T.max(T.max(T.Cast("int32", vi) // 70001, 3) * 7 // 1048576, 70001)
            O[vi] = S[vi] + S[T.Cast("int64", place % T.Cast("int32", m))]
""")
    check_well_formed(func)


TRIANGLE = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("row"):
            vi = T.axis.spatial(8, i)
            for k in range(vi + 1):
                with T.block("B"):
                    vk = T.axis.reduce(vi + 1, k)
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]
"""


def test_domains_depend_on_iterators_of_blocks_around() -> None:
    func = from_source(TRIANGLE)
    bw.validate(func)
    a = np.random.default_rng(1).standard_normal((8, 8)).astype("float32")
    results = [np.zeros(8, np.float32) for _ in range(2)]
    bw.interpret(func, a, results[0])
    bw.build(func)["main"](a, results[1])
    for result in results:
        np.testing.assert_allclose(result, np.tril(a).sum(1), rtol=1e-5)
