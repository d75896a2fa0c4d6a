"""No loop or buffer of lowered code has a negative extent."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.lower import LowerContext, lower
from blockwright.lower.sizes import clamp_sizes
from blockwright.schedule import Schedule
from blockwright.script.ir import from_source
from blockwright.support import BlockwrightError, InterpretError
from blockwright.target import Target
from fuzzing.schedules.lowering import check_lowering

CHAIN = """
@T.prim_func
def main(a: T.handle, e: T.handle):
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    E = T.match_buffer(e, (n, m), "float32")
    C = T.alloc_buffer((n, m), "float32")
    D = T.alloc_buffer((n, m), "float32")
    for i, j in T.grid(n, m):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(n, m):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + T.float32(1)
    for i, j in T.grid(n, m):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = D[vi, vj] * D[vi, vj]
"""
SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (1, 33), (2, 2), (31, 3), (32, 1), (33, 2), (5, 70)]
Step = Callable[[Schedule], object]


def consumer_under_producer(s: Schedule) -> None:
    outer, _ = s.split(s.get_loops("D")[0], factors=[32, None])
    s.reverse_compute_at("E", outer)


def consumer_under_both_axes(s: Schedule) -> None:
    i, j = s.get_loops("D")
    io, ii = s.split(i, factors=[32, None])
    jo, ji = s.split(j, factors=[4, None])
    s.reorder(io, jo, ii, ji)
    s.reverse_compute_at("E", jo)


def producer_under_consumer(s: Schedule) -> None:
    outer, _ = s.split(s.get_loops("E")[0], factors=[32, None])
    s.compute_at("D", outer)
    s.compute_at("C", outer)


def producer_in_parallel(s: Schedule) -> None:
    producer_under_consumer(s)
    s.parallel(s.get_loops("E")[0])


def stored_at(s: Schedule) -> None:
    producer_under_consumer(s)
    s.store_at("D", s.get_loops("E")[0])


def copied_at(s: Schedule) -> None:
    outer, _ = s.split(s.get_loops("D")[0], factors=[32, None])
    s.read_at(outer, "D", 0, "local")
    s.write_at(outer, "D", 0, "local")


def cached(s: Schedule) -> None:
    outer, _ = s.split(s.get_loops("D")[0], factors=[32, None])
    s.cache_read("D", 0, "local")
    s.compute_at("C_local", outer)


def vectorized(s: Schedule) -> None:
    producer_under_consumer(s)
    _, inner = s.split(s.get_loops("E")[-1], factors=[None, 8])
    s.vectorize(inner)


def unrolled(s: Schedule) -> None:
    """Copies of a body that use a buffer allocated outside, of a size that needs a cast."""
    outer, _, inner = s.split(s.get_loops("D")[0], factors=[4, None, 2])
    s.reverse_compute_at("E", outer)
    s.unroll(inner)


def partitioned(s: Schedule) -> None:
    consumer_under_both_axes(s)
    for loop in s.get_loops("D"):
        s.annotate(loop, "loop_partition", True)


STEPS = [
    consumer_under_producer,
    consumer_under_both_axes,
    producer_under_consumer,
    producer_in_parallel,
    stored_at,
    copied_at,
    cached,
    vectorized,
    unrolled,
    partitioned,
]


def sized(func: ir.PrimFunc) -> ir.PrimFunc:
    """The program with an assertion on every extent that is not a constant."""

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, (ir.For, ir.Allocate)):
            return None
        extents = [node.extent] if isinstance(node, ir.For) else node.buffer.shape
        return ir.seq(
            [
                *(
                    ir.AssertStmt(ir.GE(n, ir.const(0, n.dtype)), "negative extent")
                    for n in extents
                ),
                node,
            ]
        )

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
def test_fixed_number_of_tiles(step: Step) -> None:
    func = bw.from_source(CHAIN)
    s = Schedule(func, verify="full")
    step(s)
    flat = sized(lower(s.func))
    module = bw.build(s.func)
    for n, m in SIZES:
        x = np.random.default_rng(n + m).random((n, m), dtype="float32")
        for interpreted in (None, s.func, flat):
            out = np.full_like(x, -1)
            if interpreted is None:
                module["main"](x, out)
            else:
                bw.interpret(interpreted, x, out)
            np.testing.assert_allclose(out, (2 * x + 1) ** 2, rtol=1e-6)


DECLARED = """
@T.prim_func
def main(a: T.handle, e: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    E = T.match_buffer(e, (n,), "float32")
    W = T.alloc_buffer((n - 3, n - 5), "float32")
    for i in range(n - 5):
        with T.block("W"):
            vi = T.axis.spatial(n - 5, i)
            W[0, vi] = A[vi]
    for i in range(n):
        with T.block("E"):
            vi = T.axis.spatial(n, i)
            E[vi] = T.if_then_else(vi < n - 5, W[0, T.max(T.min(vi, n - 6), 0)], T.float32(7))
"""


def test_declared_extents() -> None:
    """What a program declares is reported by the interpreter and sanitizers, and harms nobody."""
    func = bw.from_source(DECLARED)
    plain, checked = bw.build(func), bw.build(func, sanitize=("bounds",))
    for n in (0, 1, 2, 4, 5, 9):
        x, out = np.arange(n, dtype="float32"), np.zeros(n, "float32")
        plain["main"](x, out)
        right = np.where(np.arange(n) < n - 5, x, np.float32(7))
        np.testing.assert_array_equal(out, right)
        if n >= 5:
            checked["main"](x, out)
            bw.interpret(func, x, out)
            continue
        with pytest.raises(BlockwrightError, match="negative extent") as found:
            checked["main"](x, out)
        assert found.value.code == "BW717"
        with pytest.raises(InterpretError, match="negative extent") as told:
            bw.interpret(func, x, out)
        assert told.value.code == "BW766"


def test_proved_extents_stay() -> None:
    n = ir.Var("n", ir.dtype_of("int32"))
    func: Any = bw.from_source(CHAIN)
    for extent in (func.buffers[0].shape[0], ir.const(8, "int32")):
        loop = ir.For(
            n, ir.const(0, "int32"), extent, ir.ForKind.SERIAL, ir.Evaluate(ir.const(1, "int32"))
        )
        kept = clamp_sizes(func.replace(body=loop), LowerContext(Target("x86-64")))
        assert kept.body is loop
    left = ir.sub(func.buffers[0].shape[0], 4)
    loop = ir.For(n, ir.const(0, "int32"), left, ir.ForKind.SERIAL, ir.Evaluate(n))
    clamped: Any = clamp_sizes(func.replace(body=loop), LowerContext(Target("x86-64"))).body
    assert isinstance(clamped.extent, ir.Max)


DIVIDED = {
    "a bound of a part of a loop": """
for i in T.serial(n, annotations={"loop_partition": True}):
    if i < 100 // n:
        B[i] = A[i]
    else:
        B[i] = T.float32(0)
""",
    "a condition that all iterations share": """
for i in range(n):
    if 100 // n < 30:
        B[i] = A[i]
    else:
        B[i] = T.float32(0)
""",
    "a guard of all iterations": """
for i in range(n):
    B[i] = T.float32(0)
for i in range(n):
    if 100 // n < 30:
        B[i] = A[i]
""",
    "the size of a buffer": """
for i in range(n):
    with T.block("B"):
        vi = T.axis.spatial(n, i)
        S = T.alloc_buffer((100 // n + 1,), "float32")
        for j in range(100 // n + 1):
            S[j] = A[vi]
        B[vi] = S[100 // n]
""",
}


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_divided_by_a_size_of_0(name: str, seed: int) -> None:
    """What divides by `n` in a loop over `n` is evaluated there, or by another divisor."""
    body = textwrap.indent(DIVIDED[name], "    ")
    func = from_source(f"""
@T.prim_func
def main(a: T.handle, b: T.handle):
    T.func_attr({{"tir_var_lower_bound": {{"n": 0}}, "tir_var_upper_bound": {{"n": 9}}}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
{body}
""")
    assert isinstance(func, ir.PrimFunc)
    assert check_lowering(func, func, seed) is None


VERSIONS = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), n: T.int64):
    for i in range(8):
        if n < 100:
            with T.block("few"):
                v = T.axis.spatial(8, i)
                t = T.alloc_buffer((n * n * n,), "int32")
                for j in range(n):
                    t[j * n] = A[v]
                B[v] = t[0] + 1
        else:
            with T.block("many"):
                v = T.axis.spatial(8, i)
                B[v] = A[v]
"""


def test_a_version_that_is_not_taken_takes_no_memory() -> None:
    """With 10⁶, the first one would take 4 EB."""
    run, a, b = (
        build(from_source(VERSIONS))["main"],
        np.arange(8, dtype="int32"),
        np.zeros(8, "int32"),
    )
    run(a, b, 10**6)
    np.testing.assert_array_equal(b, a)
    run(a, b, 5)
    np.testing.assert_array_equal(b, a + 1)


def test_a_buffer_of_one_version_is_allocated_once() -> None:
    """Outside of the loop, whose iterations share it."""
    body = lower(from_source(VERSIONS)).body
    (loop,) = [node for node in ir.loops(body) if node.loop_var.name == "i"]
    assert ir.collect(body, ir.Allocate)
    assert not ir.collect(loop, ir.Allocate)
