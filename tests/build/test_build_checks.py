"""What compiled code checks and shows: indices, sanitizers, assertions, output, symbols, dumps."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import Module
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.script import tir as T
from blockwright.strategies import apply_strategies


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


def fails(code: str, call: Any, *args: Any) -> str:
    with pytest.raises(bw.BlockwrightError) as caught:
        call(*args)
    assert caught.value.code == code
    return str(caught.value)


def operator(name: str, infos: list[tuple[Any, str]], **attrs: Any) -> ir.PrimFunc:
    row = OPERATORS[name]
    given: list[ir.TensorInfo] = []
    for shape, dtype in infos:
        dims = (d if isinstance(d, ir.Expr) else ir.const(d, "int64") for d in shape)
        given.append(ir.TensorInfo(tuple(dims), ir.dtype_of(dtype)))
    assert row.lower is not None
    return row.lower(OpContext(name), given, {**row.attrs, **attrs})


N, M = ir.var("n", "int64"), ir.var("m", "int64")
ROWS = np.array([3, 0, 9, 5])
POSITIONS = {
    # operator: index infos, attributes, good index, bad ones
    "embedding": (((N,), "int64"), {}, ROWS, (10, -1, 2**62)),
    "take": (((N,), "int64"), {"axis": 0}, ROWS - 10, (10, -11)),
    "gather": (((N, 24), "int64"), {"axis": 0}, np.repeat(ROWS[:, None], 24, 1), (10, -1)),
    "index": (((N,), "int64"), {"axes": (0,)}, ROWS - 5, (10, -11)),
}  # fmt: skip


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", POSITIONS)
def test_positions_outside_the_table_fail_the_call(name: str, scheduled: bool) -> None:
    info, attrs, good, bad = POSITIONS[name]
    func = operator(name, [((10, 24), "float32"), info], **attrs)
    if scheduled:
        func = apply_strategies(func, bw.Target("native")).func
    built, table, out = bw.build(func), floats(10, 24), np.zeros((4, 24), "float32")
    built(table, good, out)
    expected = np.take_along_axis(table, good, 0) if name == "gather" else table[good]
    assert np.array_equal(out, expected)
    for value in bad:
        index = good.copy()
        index[-1] = value
        text = fails("BW708", built, table, index, out)
        assert name in text
        assert "at least 0 and less than 10" in text


def test_an_embedding_kernel_stays_vectorized() -> None:
    func = operator("embedding", [((10, 24), "float32"), ((N, M), "int64")])
    lowered = bw.build(apply_strategies(func, bw.Target("native")).func).lowered["embedding"]
    (store,) = ir.collect(lowered.body, ir.BufferStore)
    assert store.value.dtype.lanes > 1
    innermost = ir.loops(lowered.body)[-1]
    assert not ir.collect(innermost, ir.AssertStmt)


@pytest.mark.parametrize("scheduled", [False, True])
def test_sums_over_nothing_are_zero(scheduled: bool) -> None:
    for axis, shape in ((1, (4, 0)), (0, (0, 4))):
        func = operator("sum", [((N, M), "float32")], axes=(axis,))
        if scheduled:
            func = apply_strategies(func, bw.Target("native")).func
        out = np.full(4, 7, "float32")
        bw.build(func)(floats(*shape), out)
        assert np.array_equal(out, np.zeros(4))


# ------------------------------------------------------------------------------------ sanitizers
@T.prim_func
def shifted(A: T.Buffer((8,)), k: T.Buffer((1,), "int32"), B: T.Buffer((8,))):
    for i in T.vectorized(8):
        B[i] = A[i + k[0]]


@T.prim_func
def partly(A: T.Buffer((8,)), k: T.Buffer((1,), "int32"), B: T.Buffer((8,))):
    t = T.alloc_buffer((8,))
    for i in range(8):
        if i < k[0]:
            t[i] = T.sqrt(A[i])
    for i in range(8):
        B[i] = t[i]


def test_sanitizers_stop_the_call() -> None:
    everything = ("bounds", "nan", "uninit")
    far, near = np.array([1 << 20], "int32"), np.array([0], "int32")
    out = floats(8)
    checked = bw.build(shifted, sanitize=everything)
    checked(floats(8), near, out)
    assert np.array_equal(out, floats(8))
    assert "A: index out of bounds" in fails("BW713", checked, floats(8), far, out)
    checked = bw.build(partly, sanitize=everything)
    eight, seven = np.array([8], "int32"), np.array([7], "int32")
    checked(np.ones(8, "float32"), eight, out)
    assert "t: NaN written" in fails("BW714", checked, -np.ones(8, "float32"), eight, out)
    assert "t: read before" in fails("BW715", checked, np.ones(8, "float32"), seven, out)
    bw.build(partly)(np.ones(8, "float32"), seven, out)  # a plain build does not look
    with pytest.raises(bw.OptionError, match="unknown sanitizer"):
        bw.build(partly, sanitize=("luck",))


@T.prim_func
def divided(A: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in T.vectorized(8):
        B[i] = A[i] // D[i] + T.truncmod(A[i], D[i])


@T.prim_func
def divided_where(
    A: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")
):
    for i in T.vectorized(8):
        B[i] = T.if_then_else(D[i] != 0, A[i] // D[i], 0)


@T.prim_func
def divided_surely(
    A: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")
):
    for i in T.vectorized(8):
        B[i] = A[i] // T.checked_divisor(D[i])


def test_division_by_zero_is_reported_and_never_traps() -> None:
    a = np.array([-(2**31), -7, 7, 0, 1, 2, 3, 9], "int32")
    d = np.array([-1, 2, -2, 5, 1, 3, 3, -9], "int32")
    none, out = np.where(np.arange(8) == 3, 0, d).astype("int32"), np.zeros(8, "int32")
    with np.errstate(over="ignore"):
        quotient = np.floor_divide(a, d)
        right = quotient + np.fmod(a, d)
    for options in ({}, {"sanitize": ("bounds",)}):
        bw.build(divided, **options)(a, d, out)
        assert np.array_equal(out, right)
    bw.build(divided)(a, none, out)  # undefined, but no trap ends the process
    assert "division by zero" in fails(
        "BW716", bw.build(divided, sanitize=("bounds",)), a, none, out
    )
    bw.build(divided_where, sanitize=("bounds",))(a, none, out)
    assert np.array_equal(out, np.where(none == 0, 0, quotient))
    checked = bw.build(divided_surely)
    checked(a, d, out)
    assert np.array_equal(out, quotient)
    assert "division by zero" in fails("BW716", checked, a, none, out)
    for func, code in ((divided, "BW754"), (divided_surely, "BW716")):
        with pytest.raises(bw.BlockwrightError) as caught:
            bw.interpret(func, a, none, out)
        assert caught.value.code == code


def test_guarded_accesses_are_checked_under_their_guard() -> None:
    @T.prim_func
    def window(A: T.Buffer((8,)), k: T.Buffer((8,), "int32"), B: T.Buffer((16,))):
        for i in range(16):
            B[i] = T.if_then_else(i < 8, A[k[i]], T.float32(0))

    checked, out = bw.build(window, sanitize=("bounds",)), np.ones(16, "float32")
    checked(floats(8), np.arange(8, dtype="int32"), out)
    assert np.array_equal(out[:8], floats(8))
    assert not out[8:].any()
    fails("BW713", checked, floats(8), np.arange(1, 9, dtype="int32"), out)


# ------------------------------------------------------------------------ output and assertions
def test_print_and_assert_work_in_compiled_code(capfd: pytest.CaptureFixture[str]) -> None:
    @T.prim_func
    def talk(A: T.Buffer((3,)), n: T.int32):
        T.evaluate(T.print("n is", n))
        assert n < 3, "n must be small"
        for i in range(n):
            T.evaluate(T.print("A", i, A[i]))

    built = bw.build(talk)
    values = np.array([0.5, -1.25, 3], "float32")
    built(values, 2)
    assert capfd.readouterr().out.splitlines() == ["n is 2", "A 0 0.5", "A 1 -1.25"]
    assert "n must be small" in fails("BW712", built, values, 3)
    assert capfd.readouterr().out.splitlines() == ["n is 3"]


def test_a_failed_assertion_in_a_parallel_loop_fails_the_call() -> None:
    @T.prim_func
    def positive(A: T.Buffer((64,)), B: T.Buffer((64,))):
        for i in T.parallel(64):
            assert A[i] > T.float32(0), "A must be positive"
            B[i] = T.log(A[i])

    built, x = bw.build(positive), np.ones(64, "float32")
    built(x, floats(64))
    x[37] = -1
    assert "A must be positive" in fails("BW712", built, x, floats(64))


# ----------------------------------------------------------------------------- dumps and symbols
def test_every_pass_can_be_watched_and_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv("BLOCKWRIGHT_DUMP_DIR", str(tmp_path))
    bw.build(partly, on_pass=lambda name, before, after: seen.append(name))
    files = sorted(path.name for path in (tmp_path / "partly").iterdir())
    names = ["import", *seen]
    assert files == [f"{number:02d}-{name}.py" for number, name in enumerate(names)]
    last = bw.from_source((tmp_path / "partly" / files[-1]).read_text())
    ir.assert_structural_equal(last, bw.build(partly).lowered["partly"])
    monkeypatch.setenv("BLOCKWRIGHT_DUMP_DIR", str(tmp_path / "partly" / files[0]))
    fails("BW915", bw.build, partly)


def test_an_empty_variable_dumps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOCKWRIGHT_DUMP_DIR", "")
    bw.build(partly)
    assert not list(tmp_path.iterdir())


def function_symbols(image: bytes) -> set[str]:
    """Names of functions in `.symtab`, as `nm` and profilers see them."""
    (table,) = struct.unpack_from("<Q", image, 40)
    count = struct.unpack_from("<H", image, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * k) for k in range(count)]
    found: set[str] = set()
    for kind, offset, size, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 2:
            continue
        for at in range(offset, offset + size, 24):
            name, info = struct.unpack_from("<IB", image, at)
            if info & 15 == 2:
                start = sections[link][4] + name
                found.add(image[start : image.index(b"\0", start)].decode())
    return found


def test_profilers_find_kernels_by_name() -> None:
    module = ir.IRModule({"shifted": shifted, "partly": partly})
    built: Module = bw.build(module)
    symbols = function_symbols(built.library_bytes)
    assert {"bw.shifted", "bw.partly"} <= symbols
