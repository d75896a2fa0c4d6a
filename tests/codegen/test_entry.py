"""What the entry of a compiled function checks, and what it allocates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw
from blockwright import ir
from blockwright.support import ArgumentError, BuildError

INT64 = ir.dtype_of("int64")
n, m = ir.var("n", INT64), ir.var("m", INT64)


@pytest.fixture(scope="session")
def make(build_flat: Any, flat_program: Any) -> Callable[..., Any]:
    """`make(buffers, body=…)`: the callable of a function; by default the body does nothing."""

    def build(buffers: list[Any], body: Any = None, raw: bool = False, **options: Any) -> Any:
        nothing = lambda *_: ir.Evaluate(ir.const(0, "int32"))  # noqa: E731
        module = build_flat(flat_program("f", buffers, body or nothing, **options))
        return module.loaded().function("f") if raw else module["f"]

    return build


def copy(source: ir.Buffer, target: ir.Buffer) -> ir.Stmt:
    i = ir.var("i", INT64)
    body = ir.BufferStore(target, ir.BufferLoad(source, (i,)), (i,))
    return ir.For(i, ir.const(0, INT64), source.shape[0], ir.ForKind.SERIAL, body)


def error(call: Callable[..., Any], *args: Any) -> tuple[str, str]:
    with pytest.raises(ArgumentError) as caught:
        call(*args)
    return caught.value.code, caught.value.message


def test_number_and_kind_of_arguments(make: Any) -> None:
    f = make([("mask", "bool", (4,)), ("x", "float32", (4,))], raw=False)
    mask, x = np.zeros(4, bool), np.zeros(4, np.float32)
    f(mask, x)
    assert error(f, mask) == ("BW701", "f: expected 2 arguments (mask, x), got 1")
    code, text = error(f, 3, x)
    assert code == "BW702"
    assert text == (
        "argument 1 `mask` of f: expected a tensor of bool with shape (4), got an integer"
    )
    assert error(f, mask, 2.5)[1].endswith("got a float")


def test_symbols_that_are_solved_for_are_not_negative(make: Any) -> None:
    f = make([("x", "float32", (n + 3,))])
    f(np.zeros(3, np.float32))
    code, text = error(f, np.zeros(2, np.float32))
    assert (code, text) == ("BW708", "size `n`: expected at least 0, got -1")


def test_missing_tensors_are_named_through_the_plain_ffi(make: Any) -> None:
    f = make([("mask", "bool", (4,))], raw=True)
    with pytest.raises(TypeError, match=r"BW702: argument 1 `mask` of f: expected .*, got None"):
        f(None)


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16", "bool", "uint8"])
def test_data_type(dtype: str, make: Any) -> None:
    f = make([("x", "float32", (4,))])
    code, text = error(f, np.zeros(4, dtype))
    assert code == "BW703"
    assert text.startswith("argument 1 `x` of f: expected float32, got ")


def test_rank_and_constant_shape(make: Any) -> None:
    f = make([("x", "float32", (2, 3))])
    f(np.zeros((2, 3), np.float32))
    code, text = error(f, np.zeros(6, np.float32))
    assert (code, text) == (
        "BW704",
        "argument 1 `x` of f: expected 2 dimensions, shape (2, 3), got 1 dimensions",
    )
    code, text = error(f, np.zeros((2, 4), np.float32))
    assert (code, text) == ("BW704", "argument 1 `x` of f: expected dimension 1 to be 3, got 4")


def test_symbols_must_agree(make: Any) -> None:
    f = make([("x", "float32", (n, m)), ("y", "float32", (m,)), ("z", "float32", (ir.mul(n, 2),))])
    f(np.zeros((2, 3), np.float32), np.zeros(3, np.float32), np.zeros(4, np.float32))
    f(np.zeros((0, 3), np.float32), np.zeros(3, np.float32), np.zeros(0, np.float32))
    code, text = error(
        f, np.zeros((2, 3), np.float32), np.zeros(5, np.float32), np.zeros(4, np.float32)
    )
    assert code == "BW709"
    assert text == (
        "argument 2 `y` of f: expected dimension 0 to be `m` (from argument 1 `x` "
        "dimension 1) = 3, got 5"
    )
    code, text = error(
        f, np.zeros((2, 3), np.float32), np.zeros(3, np.float32), np.zeros(5, np.float32)
    )
    assert code == "BW704"
    assert text.startswith("argument 3 `z` of f: expected dimension 0 to be ")
    assert text.endswith(" = 4, got 5")


def test_symbols_are_solved_from_expressions(make: Any) -> None:
    """`2 * n + 1` determines n when nothing else does."""
    y = np.zeros(1, np.int64)

    def body(_: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        return ir.BufferStore(y, n, (ir.const(0, INT64),))

    f = make([("x", "float32", (ir.add(ir.mul(n, 2), 1),)), ("y", "int64", (1,))], body)
    f(np.zeros(11, np.float32), y)
    assert y[0] == 5
    code, text = error(f, np.zeros(10, np.float32), y)
    assert code == "BW704"
    assert "got 10" in text


def test_undetermined_symbols_are_refused_when_building(make: Any) -> None:
    with pytest.raises(BuildError, match="does not determine"):
        make([("x", "float32", (ir.mul(n, m),))])


def test_bounds_of_symbols(make: Any) -> None:
    attrs = {"tir_var_upper_bound": {"n": 8}, "tir_var_lower_bound": {"n": 2}}
    f = make([("x", "float32", (n,))], attrs=attrs)
    f(np.zeros(8, np.float32))
    code, text = error(f, np.zeros(9, np.float32))
    assert code == "BW708"
    assert text == "size `n` (argument 1 `x` dimension 0): expected at most 8, got 9"
    assert error(f, np.zeros(1, np.float32))[1].endswith("expected at least 2, got 1")


def test_layout(make: Any) -> None:
    """The entry refuses what it cannot take; the Python side copies instead."""
    buffers = [("x", "float32", (4, 4)), ("y", "float32", (4, 4))]
    body = lambda x, y: copy(x, y)  # noqa: E731
    x = np.arange(32, dtype=np.float32).reshape(4, 8)[:, ::2]
    y = np.zeros((4, 4), np.float32)
    raw = make(buffers, body, raw=True)
    with pytest.raises(ValueError, match="BW706: argument 1 `x` of f: expected a contiguous"):
        raw(x, y)
    odd = np.frombuffer(bytearray(65), np.uint8)[1:].view(np.float32).reshape(4, 4)
    with pytest.raises(
        ValueError, match="BW706: argument 2 `y` of f: expected memory aligned to 4"
    ):
        raw(y, odd)
    f = make(buffers, body)
    f(x, y)
    assert np.array_equal(x, y)
    f(x, odd)
    assert np.array_equal(x, odd)
    assert f.copies == 3


def test_axes_of_size_one_and_empty_tensors_have_any_stride(make: Any) -> None:
    raw = make([("x", "float32", (1, n))], raw=True)
    raw(np.zeros((4, 3), np.float32)[::4])
    raw(np.zeros((1, 0), np.float32))
    raw(torch.zeros(3, 1).T)


def test_strides_may_be_parameters(make: Any) -> None:
    step = ir.var("step", INT64)
    source = ir.Buffer("x", ir.dtype_of("float32"), (n,), strides=(step,))
    target = ir.Buffer("y", ir.dtype_of("float32"), (n,))
    handles = [ir.var(f"{b.name}_handle", "handle") for b in (source, target)]
    i = ir.var("i", INT64)
    body = ir.For(
        i,
        ir.const(0, INT64),
        n,
        ir.ForKind.SERIAL,
        ir.BufferStore(target, ir.BufferLoad(source, (i,)), (i,)),
    )
    f = ir.PrimFunc(
        tuple(handles),
        tuple(zip(handles, (source, target), strict=True)),
        body,
        {"global_symbol": "f"},
    )
    raw = _raw(make, f)
    x, y = np.arange(12, dtype=np.float32), np.zeros(4, np.float32)
    raw(x[::3], y)
    assert y.tolist() == [0, 3, 6, 9]
    raw(x[:4], y)
    assert y.tolist() == [0, 1, 2, 3]


def _raw(make: Any, func: ir.PrimFunc) -> Any:
    module = make.__closure__  # the build fixture is what `make` closes over
    build = next(c.cell_contents for c in module if callable(c.cell_contents))
    return build(func).loaded().function("f")


def test_overlap_with_what_is_written(make: Any) -> None:
    buffers = [("x", "float32", (8,)), ("y", "float32", (8,))]
    data = np.arange(12, dtype=np.float32)
    raw = make(buffers, copy, raw=True)
    with pytest.raises(
        ValueError, match="BW706: argument 2 `y` of f: it is written and overlaps argument 1 `x`"
    ):
        raw(data[:8], data[4:])
    # memory that is only read may be shared
    make(buffers, raw=True)(data[:8], data[:8])
    # and a function that says so takes overlapping memory
    make(buffers, copy, raw=True, attrs={"tir.noalias": False})(data[:8], data[:8])


def test_overlapping_arguments_are_copied_by_the_python_side(make: Any) -> None:
    data = np.arange(12, dtype=np.float32)
    expected = data[:8].copy()
    make([("x", "float32", (8,)), ("y", "float32", (8,))], copy)(data[:8], data[4:])
    assert np.array_equal(data[4:], expected)


def test_scalars(make: Any) -> None:
    flag, small, real = ir.var("flag", "bool"), ir.var("small", "int8"), ir.var("real", "float32")

    def body(y: ir.Buffer) -> ir.Stmt:
        chosen = ir.Select(flag, ir.Cast(ir.dtype_of("float32"), small), real)
        return ir.BufferStore(y, chosen, (ir.const(0, INT64),))

    f = make([("y", "float32", (1,))], body, scalars=[flag, small, real])
    y = np.zeros(1, np.float32)
    f(y, True, -5, 2.5)
    assert y[0] == -5
    f(y, False, -5, 2.5)
    assert y[0] == 2.5
    f(y, False, -5, 3)
    assert y[0] == 3
    code, text = error(f, y, True, 200, 2.5)
    assert (code, text) == ("BW702", "argument 3 `small` of f: 200 does not fit int8 (-128 to 127)")
    assert error(f, y, True, 2.5, 2.5)[1].endswith("expected an integer (int8), got a float")


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.fixture(scope="module")
def scalar_functions() -> Any:
    """One function per type, which fills an array with its scalar argument."""
    names = [*INTEGERS, "bool", "float16", "bfloat16", "float8_e4m3fn", "float32", "float64"]
    text = "".join(
        f"""
    @T.prim_func
    def of_{name}(k: T.{name}, y: T.Buffer((2,), "{name}")):
        for i in range(2):
            y[i] = k
"""
        for name in names
    )
    return bw.build(bw.from_source(f"@I.ir_module\nclass Module:{text}"))


def _filled(functions: Any, name: str, value: Any) -> Any:
    y = np.zeros(2, ir.dtype_of(name).numpy())
    functions[f"of_{name}"](value, y)
    assert y[0].tobytes() == y[1].tobytes()
    return y[0]


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_scalars_at_both_ends(scalar_functions: Any, name: str) -> None:
    """Python's and NumPy's integers; the ones next to the ends are rejected with the range."""
    low, high = int(np.iinfo(name).min), int(np.iinfo(name).max)
    for value in (low, high, high // 2 + 1):
        assert _filled(scalar_functions, name, value) == value
        assert _filled(scalar_functions, name, np.dtype(name).type(value)) == value
    for value in (low - 1, high + 1, -(2**70), 2**70):
        with pytest.raises(ArgumentError, match=f"does not fit {name}") as caught:
            _filled(scalar_functions, name, value)
        assert caught.value.code == "BW702"
    with pytest.raises(ArgumentError, match="got a float"):
        _filled(scalar_functions, name, 1.0)


def test_the_ffi_passes_large_unsigned_integers_as_tensors(scalar_functions: Any) -> None:
    """The FFI's integers are signed. A program that loads the library itself passes a tensor."""
    entry = scalar_functions.entry("of_uint64")
    y = np.zeros(2, np.uint64)
    entry(np.array(2**64 - 3, np.uint64), y)
    assert y.tolist() == [2**64 - 3] * 2
    entry(torch.tensor(2**63 + 1, dtype=torch.uint64), y)
    assert y.tolist() == [2**63 + 1] * 2
    entry(7, y)
    assert y.tolist() == [7, 7]
    for wrong, text in (
        (np.array(1, np.int64), "BW703.*expected uint64, got int"),
        (np.array([1], np.uint64), r"BW704.*shape \(\), got 1"),
        (-1, "BW702.*-1 does not fit uint64"),
        ("1", "BW702.*expected an integer"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            entry(wrong, y)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float32", "float64"])
def test_float_scalars(scalar_functions: Any, name: str) -> None:
    type_ = ir.dtype_of(name).numpy().type
    for value in (1.5, -0.0, float("nan"), float("inf"), 1e300, 3, True, 2**63, 10**30):
        expected = type_(float(value))
        found = _filled(scalar_functions, name, value)
        assert found.tobytes() == expected.tobytes() or (found != found and expected != expected)
    assert _filled(scalar_functions, name, type_(1.5)) == 1.5
    with pytest.raises(ArgumentError, match=f"does not fit {name}"):
        _filled(scalar_functions, name, 10**400)


def test_bool_scalars(scalar_functions: Any) -> None:
    for value in (True, False, np.True_, np.False_, 1, 0):
        assert _filled(scalar_functions, "bool", value) == bool(value)
    with pytest.raises(ArgumentError, match="2 does not fit bool"):
        _filled(scalar_functions, "bool", 2)


def test_scalars_may_be_sizes(make: Any) -> None:
    f = make([("x", "float32", (n,))], scalars=[n])
    f(np.zeros(3, np.float32), 3)
    code, text = error(f, np.zeros(3, np.float32), 4)
    assert code in ("BW704", "BW709")
    assert "got 4" in text or "= 4, got 3" in text


def test_outputs_are_allocated(make: Any) -> None:
    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        return copy(x, y)

    one = make([("x", "float32", (n, 2)), ("y", "float32", (n, 2))], body, attrs={"num_outputs": 1})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    y = one(x)
    assert isinstance(y, np.ndarray)
    assert np.array_equal(x, y)
    assert y.ctypes.data % 64 == 0
    assert isinstance(one(torch.from_numpy(x)), torch.Tensor)
    assert one(np.zeros((0, 2), np.float32)).shape == (0, 2)

    def both(x: ir.Buffer, y: ir.Buffer, z: ir.Buffer) -> ir.Stmt:
        return ir.seq([copy(x, y), copy(x, z)])

    two = make(
        [("x", "float32", (n,)), ("y", "float32", (n,)), ("z", "float32", (n,))],
        both,
        attrs={"num_outputs": 2},
    )
    first, second = two(x.ravel())
    assert np.array_equal(first, x.ravel())
    assert np.array_equal(second, x.ravel())


def test_failure_releases_outputs(make: Any) -> None:
    """A million failing calls would need terabytes if their results stayed."""

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        bad = ir.EQ(ir.BufferLoad(x, (ir.const(0, INT64),)), ir.const(1.0, "float32"))
        return ir.AssertStmt(bad, "first element must be 1")

    f = make(
        [("x", "float32", (n,)), ("y", "float32", (ir.mul(n, 1 << 20),))],
        body,
        attrs={"num_outputs": 1},
    )
    x = np.zeros(64, np.float32)
    for _ in range(2000):
        assert error(f, x)[0] == "BW712"


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bfloat16", "float16", "float8_e4m3fn"])
def test_every_type_crosses_the_call(dtype: str, make: Any) -> None:
    x = np.arange(8).astype(ir.dtype_of(dtype).numpy())
    y = np.zeros_like(x)
    make([("x", dtype, (8,)), ("y", dtype, (8,))], copy)(x, y)
    assert x.tobytes() == y.tobytes()


def test_many_callers(make: Any) -> None:
    """Threads that call one function at once, each with its own memory."""

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        temp = ir.Buffer("temp", ir.dtype_of("float32"), (x.shape[0],))
        return ir.Allocate(temp, ir.seq([copy(x, temp), copy(temp, y)]))

    f = make([("x", "float32", (n,)), ("y", "float32", (n,))], body)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for size in range(1000, 30_000, 997):
            x = np.full(size, seed, np.float32)
            y = np.zeros_like(x)
            f(x, y)
            if not np.array_equal(x, y):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
