"""Loops, memory, masks and calls of hand-written flat programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from blockwright import ir
from blockwright.support import ArgumentError, BlockwrightError, BuildError

INT32, INT64, HANDLE = ir.dtype_of("int32"), ir.dtype_of("int64"), ir.dtype_of("handle")


def at(buffer: ir.Buffer, *place: Any, predicate: ir.Expr | None = None) -> ir.BufferLoad:
    return ir.BufferLoad(buffer, tuple(_position(p) for p in place), predicate)


def put(buffer: ir.Buffer, place: Any, value: Any, predicate: ir.Expr | None = None) -> ir.Stmt:
    if not isinstance(value, ir.Expr):
        value = ir.const(value, buffer.dtype)
    return ir.BufferStore(buffer, value, (_position(place),), predicate)


def _position(place: Any) -> ir.Expr:
    return place if isinstance(place, ir.Expr) else ir.const(place, INT64)


def effect(op: str, *args: ir.Expr) -> ir.Stmt:
    return ir.Evaluate(ir.Call(op, args, INT32))


def loop(extent: Any, body: Callable[[ir.Var], ir.Stmt]) -> ir.Stmt:
    i = ir.var("i", INT64)
    return ir.For(i, ir.const(0, INT64), _position(extent), ir.ForKind.SERIAL, body(i))


def ramp(base: Any, lanes: int, stride: Any = 1) -> ir.Expr:
    return ir.Ramp(_position(base), _position(stride), lanes)


@pytest.fixture(scope="session")
def run(build_flat: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """`run(arrays, body)`: compiles `body` over one-dimensional arrays and calls it once."""
    flat = request.config.pluginmanager  # the helpers stand in conftest
    conftest = next(
        p for p in flat.get_plugins() if getattr(p, "__file__", "").endswith("codegen/conftest.py")
    )

    def apply(arrays: list[np.ndarray], body: Callable[..., ir.Stmt], **options: Any) -> None:
        specs = [(f"x{i}", ir.dtype_of(a.dtype).name, (len(a),)) for i, a in enumerate(arrays)]
        build_flat(conftest.flat("kernel", specs, body, attrs=options))["kernel"](*arrays)

    return apply


# ------------------------------------------------------------------------------ memory
@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_every_few_elements(run: Callable[..., None], stride: int, masked: bool) -> None:
    """As contiguous loads and shuffles, or as a gather; never beyond the last element."""
    x = np.arange(7 * stride + 1, dtype=np.float32)
    out = np.full(8, -1, np.float32)

    def body(x: ir.Buffer, a: ir.Buffer) -> ir.Stmt:
        few = ir.LT(ramp(0, 8), ir.Broadcast(_position(5), 8)) if masked else None
        return put(a, ramp(0, 8), ir.BufferLoad(x, (ramp(0, 8, stride),), few))

    run([x, out], body)


def test_gather_scatter_and_reversed_vectors(run: Callable[..., None]) -> None:
    x = np.arange(64, dtype=np.float32)
    where = np.random.default_rng(0).permutation(64).astype(np.int32)
    out = [np.zeros(64, np.float32) for _ in range(4)]

    def body(
        x: ir.Buffer, w: ir.Buffer, a: ir.Buffer, b: ir.Buffer, c: ir.Buffer, d: ir.Buffer
    ) -> ir.Stmt:
        def step(i: ir.Var) -> ir.Stmt:
            start = ir.mul(i, 8)
            some = at(w, ramp(start, 8))
            return ir.seq(
                [
                    put(a, ramp(start, 8), at(x, some)),
                    put(b, some, at(x, ramp(start, 8))),
                    put(c, ramp(start, 8), at(x, ramp(ir.sub(63, start), 8, -1))),
                    put(d, ramp(i, 8, 8), at(x, ramp(start, 8))),
                ]
            )

        return loop(8, step)

    run([x, where, *out], body)
    assert np.array_equal(out[0], x[where])
    assert np.array_equal(out[1][where], x)
    assert np.array_equal(out[2], x[::-1])
    assert np.array_equal(out[3], x.reshape(8, 8).T.ravel())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "bfloat16", "bool"])
@pytest.mark.parametrize("length", [1, 7, 16, 21])
def test_masked_tail(dtype: str, length: int, run: Callable[..., None]) -> None:
    """Vectors of 16 over a length that 16 does not divide: nothing beyond is read or written."""
    kind = ir.dtype_of(dtype).numpy()
    x = (np.arange(length) % 2 if dtype == "bool" else np.arange(length)).astype(kind)
    guard = np.zeros(64, kind)
    view = guard[16 : 16 + length]

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        def step(i: ir.Var) -> ir.Stmt:
            place = ramp(ir.mul(i, 16), 16)
            inside = ir.LT(place, ir.Broadcast(ir.const(length, INT64), 16))
            return put(y, place, at(x, place, predicate=inside), inside)

        return loop(-(-length // 16), step)

    run([x, view], body)
    assert np.array_equal(view, x)
    assert not guard[:16].any()
    assert not guard[16 + length :].any()


def test_lazy_choice_does_not_read_the_other_side(run: Callable[..., None]) -> None:
    """Indices far outside are never touched, in scalar and in vector code."""
    x = np.arange(8, dtype=np.float32)
    scalar, vector = np.zeros(16, np.float32), np.zeros(16, np.float32)

    def body(x: ir.Buffer, s: ir.Buffer, v: ir.Buffer) -> ir.Stmt:
        def chosen(place: ir.Expr, lanes: int) -> ir.Expr:
            def wide(value: ir.Expr) -> ir.Expr:
                return value if lanes == 1 else ir.Broadcast(value, lanes)

            far = ir.Mul(place, wide(ir.const(1 << 40, INT64)))
            inside = ir.EQ(place, wide(ir.const(0, INT64)))
            near = ir.And(
                ir.GE(place, wide(ir.const(4, INT64))), ir.LT(place, wide(ir.const(12, INT64)))
            )
            moved = at(x, ir.Sub(place, wide(ir.const(4, INT64))))
            nothing = ir.const(-1.0, ir.dtype_of("float32").with_lanes(lanes))
            inner = ir.Call("if_then_else", (inside, at(x, far), nothing), nothing.dtype)
            return ir.Call("if_then_else", (near, moved, inner), nothing.dtype)

        all_at_once = put(v, ramp(0, 16), chosen(ramp(0, 16), 16))
        return ir.seq([loop(16, lambda i: put(s, i, chosen(i, 1))), all_at_once])

    run([x, scalar, vector], body)
    expected = np.full(16, -1, np.float32)
    expected[4:12] = x
    expected[0] = x[0]
    assert np.array_equal(scalar, expected)
    assert np.array_equal(vector, expected)


def test_local_memory_and_reuse_between_iterations(run: Callable[..., None]) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        total = ir.Buffer("total", ir.dtype_of("float32"), (ir.const(1, INT64),), scope="local")

        def step(i: ir.Var) -> ir.Stmt:
            inner = loop(
                8, lambda j: put(total, 0, ir.add(at(total, 0), at(x, ir.add(ir.mul(i, 8), j))))
            )
            return ir.Allocate(total, ir.seq([put(total, 0, 0.0), inner, put(y, i, at(total, 0))]))

        return loop(8, step)

    run([x, y], body)
    assert np.array_equal(y, x.reshape(8, 8).sum(1))


def test_large_and_nested_scratch_memory(run: Callable[..., None]) -> None:
    """Big buffers come from the scratch list; siblings share memory, nested ones do not."""
    count = 100_000
    y = np.zeros(count, np.float32)
    f32 = ir.dtype_of("float32")

    def body(y: ir.Buffer) -> ir.Stmt:
        a, b, c = (ir.Buffer(n, f32, (ir.const(count, INT64),)) for n in "abc")

        def fill(to: ir.Buffer, value: float) -> ir.Stmt:
            return loop(count, lambda i: put(to, i, value))

        def add_to_y(source: ir.Buffer) -> ir.Stmt:
            return loop(count, lambda i: put(y, i, ir.add(at(y, i), at(source, i))))

        inner = ir.seq(
            [
                ir.Allocate(b, ir.seq([fill(b, 10.0), add_to_y(b)])),
                ir.Allocate(c, ir.seq([fill(c, 100.0), add_to_y(c)])),
            ]
        )
        return ir.Allocate(a, ir.seq([fill(a, 1.0), inner, add_to_y(a)]))

    run([y], body)
    assert (y == 111).all()


def test_scratch_whose_size_is_found_in_a_loop(run: Callable[..., None]) -> None:
    """Each iteration takes and returns its own amount, also when it is left early."""
    y = np.zeros(600, np.int64)

    def body(y: ir.Buffer) -> ir.Stmt:
        def step(i: ir.Var) -> ir.Stmt:
            temp = ir.Buffer("temp", INT64, (ir.mul(ir.add(i, 1), 100),))
            leave = ir.IfThenElse(ir.GE(i, ir.const(500, INT64)), effect("break"))
            skip = ir.IfThenElse(ir.EQ(ir.floormod(i, 7), ir.const(0, INT64)), effect("continue"))
            last = ir.sub(ir.mul(ir.add(i, 1), 100), 1)
            work = ir.seq([put(temp, last, i), leave, skip, put(y, i, at(temp, last))])
            return ir.Allocate(temp, work)

        return loop(600, step)

    run([y], body)
    expected = np.arange(600)
    expected[::7] = 0
    expected[500:] = 0
    assert np.array_equal(y, expected)


# ------------------------------------------------------------------------------ control
def test_while_break_and_continue(run: Callable[..., None]) -> None:
    out = np.zeros(3, np.int64)

    def body(out: ir.Buffer) -> ir.Stmt:
        up = put(out, 0, ir.add(at(out, 0), 1))
        odd = ir.EQ(ir.floormod(at(out, 0), 2), ir.const(1, INT64))
        skip = ir.IfThenElse(odd, effect("continue"))
        stop = ir.IfThenElse(ir.GT(at(out, 0), ir.const(10, INT64)), effect("break"))
        count = put(out, 1, ir.add(at(out, 1), 1))
        endless = ir.While(ir.const(True, "bool"), ir.seq([up, skip, stop, count]))
        return ir.seq([endless, put(out, 2, 99)])

    run([out], body)
    assert out.tolist() == [12, 5, 99]


def test_early_return(run: Callable[..., None]) -> None:
    out = np.zeros(2, np.int64)

    def body(out: ir.Buffer) -> ir.Stmt:
        big = ir.Buffer("big", INT64, (ir.const(50_000, INT64),))
        stop = ir.IfThenElse(ir.EQ(at(big, 7), ir.const(5, INT64)), effect("ret"))
        return ir.Allocate(big, ir.seq([put(big, 7, 5), put(out, 0, 1), stop, put(out, 1, 1)]))

    for _ in range(100):  # the memory is given back every time
        out[:] = 0
        run([out], body)
    assert out.tolist() == [1, 0]


def test_let_and_conditions(run: Callable[..., None]) -> None:
    y = np.zeros(10, np.int64)

    def body(y: ir.Buffer) -> ir.Stmt:
        def step(i: ir.Var) -> ir.Stmt:
            square = ir.var("square", INT64)
            other = ir.var("other", INT64)
            inner = ir.Let(other, ir.add(square, 1), ir.mul(other, other))
            both = ir.IfThenElse(
                ir.LT(square, ir.const(30, INT64)), put(y, i, inner), put(y, i, -1)
            )
            return ir.LetStmt(square, ir.mul(i, i), both)

        return loop(10, step)

    run([y], body)
    assert y.tolist() == [(i * i + 1) ** 2 if i * i < 30 else -1 for i in range(10)]


def test_assertions_name_their_condition(run: Callable[..., None]) -> None:
    x = np.array([3], np.int32)

    def body(x: ir.Buffer) -> ir.Stmt:
        return ir.AssertStmt(ir.EQ(at(x, 0), ir.const(4, INT32)), "100% of x must be 4")

    with pytest.raises(ArgumentError, match="100% of x must be 4") as caught:
        run([x], body)
    assert caught.value.code == "BW712"


def test_two_buffers_may_view_one_memory(run: Callable[..., None]) -> None:
    """A view that starts inside another buffer."""
    y = np.zeros(16, np.int64)

    def body(y: ir.Buffer) -> ir.Stmt:
        tail = ir.Buffer("tail", INT64, (ir.const(8, INT64),))
        start = ir.Call("address_of", (at(y, 8),), HANDLE)
        return ir.DeclBuffer(tail, start, loop(8, lambda i: put(tail, i, i)))

    run([y], body)
    assert y.tolist() == [0] * 8 + list(range(8))


# ------------------------------------------------------------------------------ calls
def test_atomic_add_and_prefetch(run: Callable[..., None]) -> None:
    whole, real = np.zeros(1, np.int32), np.zeros(1, np.float32)

    def body(n: ir.Buffer, r: ir.Buffer) -> ir.Stmt:
        def step(_: ir.Var) -> ir.Stmt:
            place = ir.Call("address_of", (at(n, 0),), HANDLE)
            return ir.seq(
                [
                    effect("atomic_add", place, ir.const(2, INT32)),
                    effect("atomic_add", at(r, 0), ir.const(0.5, "float32")),
                    effect("prefetch", at(r, 0)),
                ]
            )

        return loop(10, step)

    run([whole, real], body)
    assert whole[0] == 20
    assert real[0] == 5


def test_c_functions(run: Callable[..., None]) -> None:
    x = np.array([0.0, 0.25, 2.0], np.float64)
    expected = np.cbrt(x)

    def body(x: ir.Buffer) -> ir.Stmt:
        def root(i: ir.Var) -> ir.Expr:
            return ir.Call("call_extern", (ir.StringImm("cbrt"), at(x, i)), ir.dtype_of("float64"))

        return loop(3, lambda i: put(x, i, root(i)))

    run([x], body)
    assert np.allclose(x, expected, rtol=1e-15)


def test_packed_functions_see_tensors_and_numbers(run: Callable[..., None]) -> None:
    seen: list[Any] = []

    def record(view: Any, number: int, real: float, text: str) -> float:
        seen.append((np.from_dlpack(view).copy(), number, real, text))
        return 2.5

    tvm_ffi.register_global_func("test.codegen.record", record, override=True)
    x, y = np.arange(6, dtype=np.int32), np.zeros(1, np.float32)

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        view = ir.Call("tensor", (at(x, 0),), HANDLE)
        args = (
            ir.StringImm("test.codegen.record"),
            view,
            ir.const(7, INT32),
            ir.const(0.5, "float32"),
            ir.StringImm("hello"),
        )
        return put(y, 0, ir.Call("call_packed", args, ir.dtype_of("float32")))

    run([x, y], body)
    assert y[0] == 2.5
    ((array, number, real, text),) = seen
    assert np.array_equal(array, x)
    assert (number, real, text) == (7, 0.5, "hello")


def test_errors_of_packed_functions_reach_the_caller(run: Callable[..., None]) -> None:
    def fail() -> None:
        raise ValueError("deliberate")

    tvm_ffi.register_global_func("test.codegen.fail", fail, override=True)
    x = np.zeros(1, np.int32)

    def body(x: ir.Buffer) -> ir.Stmt:
        call = effect("call_packed", ir.StringImm("test.codegen.fail"))
        return ir.seq([put(x, 0, 1), call, put(x, 0, 2)])

    with pytest.raises(ValueError, match="deliberate"):
        run([x], body)
    assert x[0] == 1


def test_missing_packed_function(run: Callable[..., None]) -> None:
    with pytest.raises(BlockwrightError, match=r"no packed function .* 'test\.codegen\.absent'"):
        run(
            [np.zeros(1, np.int32)],
            lambda x: effect("call_packed", ir.StringImm("test.codegen.absent")),
        )


def test_print(run: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    x = np.array([1.5, 2.0, 3.0, -4.0], np.float32)
    number = ir.const(42, INT32)
    run([x], lambda x: effect("print", ir.StringImm("x ="), at(x, ramp(0, 4)), number))
    ctypes_flush()
    assert capfd.readouterr().out == "x = [1.5, 2, 3, -4] 42\n"


def ctypes_flush() -> None:
    """Empties the C library's buffers, which Python does not know about."""
    import ctypes

    ctypes.CDLL(None).fflush(None)


def unrolled_by_llvm(x: ir.Buffer, copies: Any) -> ir.Stmt:
    stmt = loop(6, lambda i: put(x, i, ir.cast_to(i, INT32)))
    return stmt.replace(annotations={"llvm.unroll": copies})


@pytest.mark.parametrize("copies", [1, 4, "disable"])
def test_loops_that_llvm_unrolls(copies: Any, run: Callable[..., None]) -> None:
    x = np.zeros(6, np.int32)
    run([x], lambda b: unrolled_by_llvm(b, copies))
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("stmt", "code"),
    [
        (lambda x: put(x, 0, ir.const(1.0, "float32")), "BW614"),
        (lambda x: effect("break"), "BW618"),
        (lambda x: effect("call_global", ir.StringImm("absent")), "BW616"),
        (lambda x: ir.Evaluate(ir.Call("ret", (ir.const(3, INT32),), INT32)), "BW617"),
        (lambda x: put(x, 0, ir.var("loose", INT32)), "BW612"),
        (lambda x: put(ir.Buffer("loose", INT32, (ir.const(1, INT64),)), 0, 1), "BW612"),
        (lambda x: unrolled_by_llvm(x, True), "BW636"),
        (lambda x: unrolled_by_llvm(x, 0), "BW636"),
    ],
)  # fmt: skip
def test_malformed_programs_are_refused(
    stmt: Callable[[ir.Buffer], ir.Stmt], code: str, run: Callable[..., None]
) -> None:
    with pytest.raises(BuildError) as caught:
        run([np.zeros(1, np.int32)], stmt)
    assert caught.value.code == code
