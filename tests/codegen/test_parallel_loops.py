"""Parallel loops: what their bodies see, errors, memory per task, fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.support import ArgumentError

INT64, F32 = ir.dtype_of("int64"), ir.dtype_of("float32")
PARALLEL, SERIAL = ir.ForKind.PARALLEL, ir.ForKind.SERIAL


def zero() -> ir.Expr:
    return ir.const(0, INT64)


def loop(
    extent: Any, kind: ir.ForKind, body: Callable[[ir.Var], ir.Stmt], start: int = 0
) -> ir.Stmt:
    i = ir.var("i", INT64)
    bound = extent if isinstance(extent, ir.Expr) else ir.const(extent, INT64)
    return ir.For(i, ir.const(start, INT64), bound, kind, body(i))


def function(
    buffers: list[ir.Buffer], body: ir.Stmt, scalars: tuple[ir.Var, ...] = (), **attrs: Any
) -> ir.PrimFunc:
    handles = [ir.var(f"{b.name}_handle", "handle") for b in buffers]
    pairs = tuple(zip(handles, buffers, strict=True))
    return ir.PrimFunc((*handles, *scalars), pairs, body, {"global_symbol": "f", **attrs})


def test_captured_values_and_symbolic_extent(build_flat: Any) -> None:
    """Buffers, scalars of every width, let-bound vectors and loop variables reach the body."""
    n = ir.var("n", INT64)
    x, y = ir.Buffer("x", F32, (n,)), ir.Buffer("y", F32, (n, ir.const(8, INT64)))
    flag, small, real = ir.var("flag", "bool"), ir.var("small", "int8"), ir.var("real", "float32")
    lanes = ir.var("lanes", F32.with_lanes(8))

    def task(i: ir.Var) -> ir.Stmt:
        wide = ir.Broadcast(ir.add(ir.BufferLoad(x, (i,)), ir.Cast(F32, small)), 8)
        chosen = ir.Select(flag, ir.add(wide, lanes), wide)
        return ir.BufferStore(
            y, ir.add(chosen, ir.Broadcast(real, 8)), (i, ir.Ramp(zero(), ir.const(1, INT64), 8))
        )

    steps = ir.Cast(F32.with_lanes(8), ir.Ramp(ir.const(0, "int32"), ir.const(1, "int32"), 8))
    body = ir.LetStmt(lanes, steps, loop(n, PARALLEL, task))
    f = build_flat(function([x, y], body, (flag, small, real)))["f"]
    for size in (0, 1, 5, 1000):
        data = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        out = np.zeros((size, 8), np.float32)
        f(data, out, True, -3, 0.5)
        expected = (data[:, None] + np.float32(-3)) + np.arange(8, dtype=np.float32)
        assert np.array_equal(out, expected + np.float32(0.5))


def test_start_other_than_zero_and_32_bit_variables(build_flat: Any) -> None:
    y = ir.Buffer("y", ir.dtype_of("int32"), (ir.const(100, INT64),))
    i = ir.var("i", "int32")
    body = ir.For(
        i, ir.const(20, "int32"), ir.const(60, "int32"), PARALLEL, ir.BufferStore(y, i, (i,))
    )
    out = np.zeros(100, np.int32)
    build_flat(function([y], body))["f"](out)
    assert out[20:80].tolist() == list(range(20, 80))
    assert not out[:20].any()
    assert not out[80:].any()


def test_scratch_memory_of_each_task(build_flat: Any) -> None:
    """Every thread has its own temporary, taken once for its share of the tasks."""
    n, size = 200, 5000
    y = ir.Buffer("y", INT64, (ir.const(n, INT64),))
    temp = ir.Buffer("temp", INT64, (ir.const(size, INT64),))

    def task(i: ir.Var) -> ir.Stmt:
        fill = loop(size, SERIAL, lambda j: ir.BufferStore(temp, ir.add(i, j), (j,)))
        read = loop(
            size,
            SERIAL,
            lambda j: ir.BufferStore(
                y, ir.add(ir.BufferLoad(y, (i,)), ir.BufferLoad(temp, (j,))), (i,)
            ),
        )
        return ir.Allocate(temp, ir.seq([fill, read]))

    module = build_flat(function([y], loop(n, PARALLEL, task)))
    body = module.source("llvm").split('@"bw.f.0.body"')[1]
    assert body.index("bw_scratch_acquire") < body.index("loop")
    for _ in range(3):
        out = np.zeros(n, np.int64)
        module["f"](out)
        assert np.array_equal(out, np.arange(n) * size + size * (size - 1) // 2)


def test_inner_parallel_loops_are_serial(build_flat: Any) -> None:
    y = ir.Buffer("y", INT64, (ir.const(10, INT64), ir.const(10, INT64)))
    body = loop(
        10,
        PARALLEL,
        lambda i: loop(10, PARALLEL, lambda j: ir.BufferStore(y, ir.add(ir.mul(i, 10), j), (i, j))),
    )
    out = np.zeros((10, 10), np.int64)
    build_flat(function([y], body))["f"](out)
    assert np.array_equal(out.ravel(), np.arange(100))


def test_errors_inside_tasks_reach_the_caller(build_flat: Any) -> None:
    x = ir.Buffer("x", INT64, (ir.const(1000, INT64),))
    temp = ir.Buffer("temp", INT64, (ir.const(9000, INT64),))

    def task(i: ir.Var) -> ir.Stmt:
        use = ir.BufferStore(temp, i, (zero(),))
        good = ir.AssertStmt(ir.GE(ir.BufferLoad(x, (i,)), zero()), "negative element")
        return ir.Allocate(temp, ir.seq([use, good]))

    f = build_flat(function([x], loop(1000, PARALLEL, task)))["f"]
    data = np.zeros(1000, np.int64)
    f(data)
    data[777] = -1
    for _ in range(50):
        with pytest.raises(ArgumentError, match="negative element"):
            f(data)
    data[777] = 0
    f(data)


def test_several_loops_and_shared_memory(build_flat: Any) -> None:
    """A buffer allocated outside is one for all tasks; the loops run one after the other."""
    n = 10_000
    y = ir.Buffer("y", INT64, (ir.const(n, INT64),))
    temp = ir.Buffer("temp", INT64, (ir.const(n, INT64),))
    first = loop(n, PARALLEL, lambda i: ir.BufferStore(temp, ir.mul(i, i), (i,)))
    last = loop(
        n,
        PARALLEL,
        lambda i: ir.BufferStore(
            y, ir.BufferLoad(temp, (ir.sub(ir.const(n - 1, INT64), i),)), (i,)
        ),
    )
    out = np.zeros(n, np.int64)
    build_flat(function([y], ir.Allocate(temp, ir.seq([first, last]))))["f"](out)
    assert np.array_equal(out, (np.arange(n) ** 2)[::-1])


def test_a_forked_child_can_call(build_flat: Any) -> None:
    y = ir.Buffer("y", INT64, (ir.const(64, INT64),))
    temp = ir.Buffer("temp", INT64, (ir.const(4096, INT64),))

    def task(i: ir.Var) -> ir.Stmt:
        back = ir.BufferStore(y, ir.BufferLoad(temp, (i,)), (i,))
        return ir.Allocate(temp, ir.seq([ir.BufferStore(temp, i, (i,)), back]))

    f = build_flat(function([y], loop(64, PARALLEL, task)))["f"]
    out = np.zeros(64, np.int64)
    f(out)
    child = os.fork()
    if child == 0:
        out[:] = 0
        f(out)
        os._exit(0 if np.array_equal(out, np.arange(64)) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
