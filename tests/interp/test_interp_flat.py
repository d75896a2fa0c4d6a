"""Lowered programs: vectors, masks, addresses, declared buffers, host programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret, register_packed
from blockwright.script.compute import Program
from blockwright.script.ir import from_source
from blockwright.support import InterpretError

I64, F32, HANDLE = (ir.dtype_of(t) for t in ("int64", "float32", "handle"))
I32 = ir.dtype_of("int32")


def c(value: int) -> ir.Expr:
    return ir.const(value, I64)


def buf(name: str, *shape: Any, dtype: str = "float32", **facts: Any) -> ir.Buffer:
    return ir.Buffer(name, ir.dtype_of(dtype), tuple(ir.as_expr(n, I64) for n in shape), **facts)


def address(buffer: ir.Buffer, *index: int) -> ir.Expr:
    indices = tuple(c(i) for i in (index or (0,) * buffer.ndim))
    return ir.Call("address_of", (ir.BufferLoad(buffer, indices),), HANDLE)


def loop(var: ir.Var, extent: Any, body: ir.Stmt, kind: ir.ForKind = ir.ForKind.SERIAL) -> ir.For:
    return ir.For(var, c(0), ir.as_expr(extent, I64), kind, body)


def flat(buffers: list[ir.Buffer], body: ir.Stmt, **attrs: Any) -> ir.PrimFunc:
    handles = tuple(ir.Var(f"{b.name}_handle", HANDLE) for b in buffers)
    return ir.PrimFunc(handles, tuple(zip(handles, buffers, strict=True)), body, attrs)


def ramp(base: Any, lanes: int, stride: int = 1) -> ir.Expr:
    return ir.Ramp(ir.as_expr(base, I64), c(stride), lanes)


@pytest.fixture(params=[True, False], ids=["lanes", "scalar"])
def vectorize(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_flat_vector_kernel_with_registers(vectorize: bool) -> None:
    """out[i, 0:8] = sum over k of a[i, k] * b[k, 0:8], as lowering writes it."""
    a, b, out = buf("A", 4, 3), buf("B", 3, 8), buf("C", 4, 8)
    fa, fb, fo, acc = buf("fa", 12), buf("fb", 24), buf("fo", 32), buf("acc", 8, scope="local")
    i, k = ir.Var("i", I64), ir.Var("k", I64)
    product = ir.Broadcast(ir.load(fa, i * 3 + k), 8) * ir.load(fb, ramp(k * 8, 8))
    inner = ir.Allocate(
        acc,
        ir.seq(
            [
                ir.BufferStore(acc, ir.Broadcast(ir.const(0.0, F32), 8), (ramp(0, 8),)),
                loop(k, 3, ir.BufferStore(acc, ir.load(acc, ramp(0, 8)) + product, (ramp(0, 8),))),
                ir.BufferStore(fo, ir.load(acc, ramp(0, 8)), (ramp(i * 8, 8),)),
            ]
        ),
    )
    body: ir.Stmt = loop(i, 4, inner, ir.ForKind.PARALLEL)
    for view, real in ((fo, out), (fb, b), (fa, a)):
        body = ir.DeclBuffer(view, address(real), body)
    rng = np.random.default_rng(0)
    x, y = (
        rng.standard_normal((4, 3), dtype=np.float32),
        rng.standard_normal((3, 8), dtype=np.float32),
    )
    result = np.empty((4, 8), np.float32)
    interpret(flat([a, b, out], body, num_outputs=1), x, y, result, vectorize=vectorize)
    np.testing.assert_allclose(result, x @ y, rtol=1e-5, atol=1e-6)


def test_masked_vectors_touch_active_lanes_only(vectorize: bool) -> None:
    """The last vector of 10 elements in steps of 4 is cut by a mask."""
    a, b, i = buf("A", 10), buf("B", 10), ir.Var("i", I64)
    at = ramp(i * 4, 4)
    mask = ir.LT(at, ir.Broadcast(c(10), 4))
    value = ir.BufferLoad(a, (at,), mask) + ir.Broadcast(ir.const(1.0, F32), 4)
    body = loop(i, 3, ir.BufferStore(b, value, (at,), mask))
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    interpret(flat([a, b], body, num_outputs=1), x, y, vectorize=vectorize)
    np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(InterpretError) as caught:
        interpret(
            flat([a, b], loop(i, 3, ir.BufferStore(b, ir.load(a, at), (at,)))),
            x,
            y,
            vectorize=vectorize,
        )
    assert "A[10] is outside" in str(caught.value)


def test_masked_lanes_read_as_zero() -> None:
    a, b = buf("A", 4), buf("B", 4)
    mask = ir.LT(ramp(0, 4), ir.Broadcast(c(2), 4))
    body = ir.BufferStore(b, ir.BufferLoad(a, (ramp(0, 4),), mask), (ramp(0, 4),))
    y = np.full(4, 9, np.float32)
    interpret(flat([a, b], body), np.ones(4, np.float32), y)
    assert y.tolist() == [1, 1, 0, 0]


def test_gather_shuffle_select_and_reductions() -> None:
    a, b = buf("A", 8), buf("B", 4)
    even = ir.load(a, ramp(0, 4, 2))
    odd = ir.load(a, ramp(1, 4, 2))
    mixed = ir.Shuffle((even, odd), (0, 4, 1, 5))
    chosen = ir.Select(ir.LT(ramp(0, 4), ir.Broadcast(c(2), 4)), mixed, even)
    total = ir.Call("vector_reduce_add", (even,), F32)
    most = ir.Call("vector_reduce_max", (odd,), F32)
    body = ir.seq(
        [
            ir.BufferStore(b, chosen, (ramp(0, 4),)),
            ir.BufferStore(b, total, (c(3),)),
            ir.BufferStore(b, most, (c(2),)),
        ]
    )
    y = np.zeros(4, np.float32)
    interpret(flat([a, b], body), np.arange(8, dtype=np.float32), y)
    assert y.tolist() == [0, 1, 7, 12]


def test_let_bound_vectors_per_lane(vectorize: bool) -> None:
    a, b, i = buf("A", 8), buf("B", 8), ir.Var("i", I64)
    v, w = ir.Var("v", F32.with_lanes(4)), ir.Var("w", F32.with_lanes(4))
    at = ramp(i * 4, 4)
    body = loop(i, 2, ir.LetStmt(v, ir.load(a, at), ir.BufferStore(b, w + v, (at,))))
    whole = ir.LetStmt(w, ir.Broadcast(ir.const(10.0, F32), 4), body)
    y = np.zeros(8, np.float32)
    interpret(flat([a, b], whole), np.arange(8, dtype=np.float32), y, vectorize=vectorize)
    np.testing.assert_array_equal(y, np.arange(8) + 10)


def test_while_break_continue_and_ret() -> None:
    a, n = buf("A", 8, dtype="int32"), buf("n", 1, dtype="int32")
    i = ir.Var("i", I64)
    count = ir.load(n, c(0))

    def jump(op: str) -> ir.Stmt:
        return ir.Evaluate(ir.Call(op, (), I32))

    store = ir.BufferStore(a, ir.const(1, I32), (i,))
    leave = ir.seq(
        [
            ir.IfThenElse(ir.EQ(i, c(1)), jump("continue")),
            ir.IfThenElse(ir.EQ(i, c(4)), jump("break")),
            store,
        ]
    )
    grow = ir.While(count < 5, ir.BufferStore(n, count + 2, (c(0),)))
    after = ir.seq([jump("ret"), ir.BufferStore(n, ir.const(0, I32), (c(0),))])
    x, y = np.zeros(8, np.int32), np.zeros(1, np.int32)
    interpret(flat([a, n], ir.seq([loop(i, 8, leave), grow, after])), x, y)
    assert x.tolist() == [1, 0, 1, 1, 0, 0, 0, 0]
    assert y.tolist() == [6]


def test_one_arena_seen_as_several_types() -> None:
    arena, out = buf("arena", 128, dtype="uint8", data_alignment=64), buf("out", 4)
    whole, ints = buf("whole", 4, data_alignment=64), buf("ints", 4, dtype="int32")
    i, j = ir.Var("i", I64), ir.Var("j", I64)
    bits = ir.call("reinterpret", ir.load(ints, j), dtype="float32")
    body: ir.Stmt = ir.seq(
        [
            loop(i, 4, ir.BufferStore(ints, ir.cast_to(i, I32), (i,))),
            loop(j, 4, ir.BufferStore(out, bits, (j,))),
        ]
    )
    body = ir.DeclBuffer(whole, address(arena, 64), ir.DeclBuffer(ints, address(whole), body))
    y = np.zeros(4, np.float32)
    interpret(flat([out], ir.Allocate(arena, body)), y)
    assert y.view(np.int32).tolist() == [0, 1, 2, 3]
    late = ir.DeclBuffer(whole, address(arena, 32), ir.Evaluate(ir.const(0, I32)))
    with pytest.raises(InterpretError, match="not at a multiple of 64"):
        interpret(flat([], ir.Allocate(arena, late)))


def host_module() -> ir.IRModule:
    """out = (x + 1) * weights, two calls with a buffer in an arena between them."""
    n = ir.Var("n", I64)
    p = Program("add_one")
    x = p.param("X", (n,), "float32")
    add_one = p.finish([p.compute("Y", (n,), lambda i: x[i] + 1.0)], {"tir.is_private": True})
    m = ir.Var("m", I64)
    q = Program("times")
    a, b = q.param("A", (m,), "float32"), q.param("B", (m,), "float32")
    times = q.finish([q.compute("Y", (m,), lambda i: a[i] * b[i])])
    size = ir.Var("n", I64)
    arg, out, lv, weights = buf("x", size), buf("out", size), buf("lv", size), buf("w", 3)
    arena = buf("arena", size * 4, dtype="uint8")

    def call(name: str, *args: ir.Expr) -> ir.Stmt:
        return ir.Evaluate(ir.Call("call_global", (ir.StringImm(name), *args, size), I32))

    body: ir.Stmt = ir.seq(
        [
            call("add_one", address(arg), address(lv)),
            ir.AssertStmt(ir.EQ(size, c(3)), "BW704: weights have 3 elements"),
            call("times", address(lv), address(weights), address(out)),
        ]
    )
    constant = ir.Call("constant_data", (ir.StringImm("main.w"),), HANDLE)
    body = ir.DeclBuffer(lv, address(arena), ir.DeclBuffer(weights, constant, body))
    main = flat([arg, out], ir.Allocate(arena, body), num_outputs=1)
    constants = {"main.w": np.array([1, 2, 3], np.float32)}
    return ir.IRModule({"main": main, "add_one": add_one, "times": times}, {"constants": constants})


def test_host_program_calls_functions_of_its_module() -> None:
    y = np.empty(3, np.float32)
    x = np.array([0, 1, 2], np.float32)
    x.flags.writeable = False  # the calls only read it
    interpret(host_module(), x, y)
    assert y.tolist() == [1, 4, 9]
    with pytest.raises(InterpretError, match="weights have 3 elements"):
        interpret(host_module(), np.zeros(4, np.float32), np.empty(4, np.float32))


def test_uninitialised_memory_is_followed_across_calls() -> None:
    module = host_module()
    main = module["main"]
    first = next(s for s in ir.collect(main.body, ir.SeqStmt))
    skipped = ir.rewrite_bottom_up(
        main, lambda s: ir.SeqStmt(first.seq[1:]) if isinstance(s, ir.SeqStmt) else None
    )
    with pytest.raises(InterpretError, match=r"A\[0\] is read before it is written"):
        interpret(
            module.with_function("main", skipped), np.zeros(3, np.float32), np.empty(3, np.float32)
        )


def test_python_functions_work_on_tensors() -> None:
    a, b = buf("A", 2, 3), buf("B", 2, 3)
    views = [ir.Call("tensor", (ir.BufferLoad(x, (c(0), c(0))),), HANDLE) for x in (a, b)]
    call = ir.Call("call_packed", (ir.StringImm("scale"), *views, ir.const(3.0, F32)), I32)

    def scale(source: Any, target: Any, factor: Any) -> None:
        target[...] = source * factor

    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    interpret(flat([a, b], ir.Evaluate(call)), x, y, packed={"scale": scale})
    assert (y == 3).all()
    with pytest.raises(InterpretError, match="no Python function 'unknown'"):
        interpret(flat([], ir.Evaluate(ir.Call("call_packed", (ir.StringImm("unknown"),), I32))))
    register_packed("tests.interp.scale", scale)
    named = ir.Call("call_packed", (ir.StringImm("tests.interp.scale"), *call.args[1:]), I32)
    interpret(flat([a, b], ir.Evaluate(named)), x * 2, y)
    assert (y == 6).all()


def test_print_shows_values(capsys: pytest.CaptureFixture[str]) -> None:
    i = ir.Var("i", I64)
    show = ir.Evaluate(ir.Call("print", (ir.StringImm("i ="), i, ir.const(0.5, F32)), I32))
    interpret(flat([], loop(i, 2, show)))
    assert capsys.readouterr().out == "i = 0 0.5\ni = 1 0.5\n"


def test_buffers_of_vectors() -> None:
    a = buf("A", 3, dtype="float32x4")
    b, i = buf("B", 3), ir.Var("i", I64)
    total = ir.Call("vector_reduce_add", (ir.load(a, i),), F32)
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(3, np.float32)
    interpret(flat([a, b], loop(i, 3, ir.BufferStore(b, total, (i,)))), x, y)
    np.testing.assert_array_equal(y, x.sum(1))


def test_bounds_are_not_evaluated_where_no_iteration_does() -> None:
    """The inner loop divides by the number of iterations of the outer one."""
    func = from_source("""
@T.prim_func(index_dtype="int64")
def rows(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 9), "float32")
    B = T.match_buffer(b, (n, 9), "float32")
    for i in range(n):
        for k in range(T.min((i + 9) // n, 9)):
            with T.block("B"):
                vi = T.axis.spatial(n, i)
                vk = T.axis.spatial(9, k)
                B[vi, vk] = A[vi, vk]
""")
    for n, copied in [(0, 0), (1, 9), (3, 9)]:
        out = np.zeros((n, 9), "float32")
        interpret(func, np.ones_like(out), out)
        assert out.sum() == copied
