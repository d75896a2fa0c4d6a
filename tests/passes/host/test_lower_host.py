"""Host programs: what they call, what results may be, external functions, checks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.passes.host.instrument_host import host_calls, instrument_host

F32 = ir.dtype_of("float32")


@pytest.fixture(scope="module")
def ffi() -> Any:
    import tvm_ffi

    return tvm_ffi


def library_call(name: str, args: list[ir.GraphExpr], info: ir.Info, **attrs: Any) -> ir.GraphCall:
    fields = ir.TupleExpr(tuple(args), info=ir.TupleInfo(tuple(a.info for a in args)))
    operator = ir.OpRef("call_dps_library")
    return ir.GraphCall(operator, (ir.ExternFunc(name), fields), attrs, (info,))


def with_library(name: str, **attrs: Any) -> ir.GraphFunction:
    """exp, the library function on x and the exponential, then an addition."""
    b = GraphBuilder()
    info = ir.TensorInfo((ir.var("n", "int64"), ir.const(4, "int64")), F32, 2)
    x = b.param("x", info)
    y = b.op("exp", x)
    z = b.emit(library_call(name, [x, y], info, **attrs))
    return b.finish("main", b.op("add", z, y))


class TestLibraryFunctions:
    def test_a_python_function_takes_part_in_a_graph(self, ffi: Any) -> None:
        seen: list[Any] = []

        @ffi.register_global_func("blockwright.test.mix", override=True)
        def mix(x: Any, y: Any, out: Any, factor: float, text: str, count: int) -> None:
            seen.append((factor, text, count, tuple(x.shape)))
            np.from_dlpack(out)[...] = np.from_dlpack(x) * factor + np.from_dlpack(y)

        exe = bw.compile(with_library("blockwright.test.mix", factor=0.1, text="hi", count=3))
        for rows in (1, 5):
            x = np.random.default_rng(rows).random((rows, 4), dtype="f4")
            expected = (x * 0.1 + np.exp(x)) + np.exp(x)
            np.testing.assert_allclose(exe(x), expected, rtol=1e-6)
        assert seen == [(0.1, "hi", 3, (1, 4)), (0.1, "hi", 3, (5, 4))]
        profile = exe.profile(np.zeros((2, 4), "f4"))
        assert [c.kernel for c in profile.calls][1] == "blockwright.test.mix"

    def test_its_exceptions_reach_the_caller(self, ffi: Any) -> None:
        @ffi.register_global_func("blockwright.test.fails", override=True)
        def fails(x: Any, y: Any, out: Any) -> None:
            raise ValueError("not today")

        exe = bw.compile(with_library("blockwright.test.fails"))
        for _ in range(3):
            with pytest.raises(ValueError, match="not today"):
                exe(np.zeros((2, 4), "f4"))

    def test_a_function_nobody_registered_is_named(self) -> None:
        exe = bw.compile(with_library("blockwright.test.absent"))
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(np.zeros((2, 4), "f4"))
        assert caught.value.code == "BW711"
        assert "blockwright.test.absent" in caught.value.message

    @pytest.mark.usefixtures("usual_collections")
    def test_its_tensors_are_freed(self, ffi: Any) -> None:
        @ffi.register_global_func("blockwright.test.copies", override=True)
        def copies(x: Any, y: Any, out: Any) -> None:
            np.from_dlpack(out)[...] = np.from_dlpack(x)

        exe = bw.compile(with_library("blockwright.test.copies"))
        x = np.zeros((20_000, 4), "f4")
        exe(x)

        def resident() -> int:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096

        before = resident()
        for _ in range(200):
            exe(x)
        assert resident() - before < 20 * x.nbytes


class TestResults:
    """What a function returns need not be computed by its last kernel."""

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("return x", lambda x: (x,)),
            ("return (x, x)", lambda x: (x, x)),
            ("return R.reshape(x, R.shape([4 * n]))", lambda x: (x.reshape(-1),)),
            ("y = R.exp(x)\n    return (y, y)", lambda x: (np.exp(x), np.exp(x))),
            (
                "y = R.exp(x)\n    z = R.reshape(y, R.shape([4 * n]))\n"
                "    return (z, R.sqrt(y), y)",
                lambda x: (np.exp(x).reshape(-1), np.sqrt(np.exp(x)), np.exp(x)),
            ),
            (
                'return R.full(R.shape([3]), fill_value=2.0, dtype="float32")',
                lambda x: (np.full(3, 2, "f4"),),
            ),
            ("y = R.exp(x)\n    t = (x, y)\n    return t", lambda x: (x, np.exp(x))),
            ("t = (x, R.exp(x))\n    return R.add(t[0], t[1])", lambda x: (x + np.exp(x),)),
            ("y = x\n    return R.exp(y)", lambda x: (np.exp(x),)),
        ],
    )
    def test_any_value_can_be_returned(self, parse: Any, body: str, expected: Any) -> None:
        text = (
            '@R.function\ndef main(x: R.Tensor(("n", 4), "float32")):\n    n = T.int64()\n'
            f"    {body}\n"
        )
        exe = bw.compile(parse(text))
        for rows in (1, 6):
            x = np.random.default_rng(rows).random((rows, 4), dtype="f4")
            found = exe(x)
            results = found if isinstance(found, tuple) else (found,)
            wanted = expected(x)
            assert len(results) == len(wanted)
            for one, two in zip(results, wanted, strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-6)
                assert not np.shares_memory(one, x)

    def test_programs_may_have_several_results(self, parse: Any) -> None:
        text = """
@T.prim_func(private=True)
def both(x: T.handle, a: T.handle, b: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "int32")
    for i in T.serial(n):
        with T.block("A"):
            vi = T.axis.spatial(n, i)
            A[vi] = X[vi] + T.float32(1)
    for i in T.serial(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = T.Cast("int32", X[vi] * T.float32(2))

@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    lv = R.call_tir(cls.both, (x,), (R.Tensor((n,), "float32"), R.Tensor((n,), "int32")))
    a = lv[0]
    again = R.call_tir(cls.both, (a,), (R.Tensor((n,), "float32"), R.Tensor((n,), "int32")))
    return (R.exp(again[0]), lv[1], again[1])
"""
        x = np.arange(5, dtype="f4") / 4
        first, second, third = bw.compile(parse(text))(x)
        np.testing.assert_allclose(first, np.exp(x + 2), rtol=1e-6)
        np.testing.assert_array_equal(second, (x * 2).astype("i4"))
        np.testing.assert_array_equal(third, ((x + 1) * 2).astype("i4"))


class TestChecks:
    def test_match_cast_is_checked_at_run_time(self, parse: Any) -> None:
        text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
    n = T.int64()
    m = T.int64()
    z = R.match_cast(R.exp(y), R.Tensor((n,), "float32"))
    return R.add(x, z)
"""
        exe = bw.compile(parse(text))
        x = np.ones(3, "f4")
        np.testing.assert_allclose(exe(x, x), x + np.exp(x), rtol=1e-6)
        with pytest.raises(bw.ArgumentError) as caught:
            exe(x, np.ones(4, "f4"))
        assert caught.value.code == "BW704"
        assert "match_cast" in caught.value.message
        assert "dimension 0 is m = 4, which is not n = 3" in caught.value.message

    def test_match_cast_is_checked_before_its_value_is_computed(self, parse: Any) -> None:
        """The value is computed in the memory of the result, which has the stated size."""
        text = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32")):
    n = T.int64()
    m = T.int64()
    y = R.split(R.concat((x, x), axis=0), indices_or_sections=2, axis=0)
    z = R.match_cast(y[0], R.Tensor((n, 1), "float32"))
    return z
"""
        exe = bw.compile(parse(text))
        memory = np.full((4, 1), -1, "f4")
        x = np.arange(2, dtype="f4").reshape(2, 1)
        exe(x, out=memory[:2])
        assert memory.ravel().tolist() == [0, 1, -1, -1]
        memory[:] = -1
        with pytest.raises(bw.ArgumentError) as caught:
            exe(np.ones((2, 2), "f4"), out=memory[:2])
        assert caught.value.code == "BW704"
        assert (memory == -1).all()

    def test_match_cast_says_its_own_message(self, parse: Any) -> None:
        text = r"""
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
    n = T.int64()
    m = T.int64()
    _ = R.match_cast(R.prim_value(n % 4 == m), R.Prim(value=True),
                     "BW704: 100%% of %d %% 4 is not %d: %%d\nhelp: none of %d", n, m, n + m)
    return R.exp(x)
"""
        exe = bw.compile(parse(text))
        x = np.ones(5, "f4")
        np.testing.assert_allclose(exe(x, x[:1]), np.exp(x), rtol=1e-6)
        with pytest.raises(bw.ArgumentError) as caught:
            exe(x, np.ones(901, "f4"))
        with pytest.raises(bw.InterpretError) as interpreted:
            bw.interpret(exe.lowered, x, np.ones(901, "f4"), x.copy())
        for error in (caught.value, interpreted.value):
            assert error.code == "BW704"
            assert error.message == "100% of 5 % 4 is not 901: %d"
            assert error.help == "none of 906"

    def test_parameters_must_be_tensors_of_known_rank_or_sizes(self, parse: Any) -> None:
        for annotation in ("R.Shape", 'R.Tensor(dtype="float32")'):
            text = (
                f'@R.function\ndef main(x: R.Tensor(("n",), "float32"), s: {annotation}):\n'
                "    n = T.int64()\n    m = T.int64()\n    return x\n"
            )
            with pytest.raises(bw.GraphError) as caught:
                bw.compile(parse(text))
            assert caught.value.code in ("BW407", "BW413")
            assert caught.value.message.startswith("s ")

    def test_a_size_that_no_argument_determines_is_refused(self, parse: Any) -> None:
        text = """
@T.prim_func(private=True)
def pairs(x: T.handle, y: T.handle):
    k = T.int64()
    X = T.match_buffer(x, (T.int64(2) * k,), "float32")
    Y = T.match_buffer(y, (T.int64(2) * k,), "float32")
    for i in T.serial(T.int64(2) * k):
        with T.block("Y"):
            vi = T.axis.spatial(T.int64(2) * k, i)
            Y[vi] = X[vi] * T.float32(2)

@R.function
def main(x: R.Tensor((2, "n"), "float32")):
    n = T.int64()
    y = R.reshape(x, R.shape([2 * n]))
    return R.call_tir(cls.pairs, (y,), R.Tensor((2 * n,), "float32"))
"""
        with pytest.raises(bw.GraphError) as caught:
            bw.compile(parse(text))
        assert caught.value.code == "BW412"
        assert "pairs" in caught.value.message
        assert "k" in caught.value.message


def test_a_host_program_is_an_ordinary_program(parse: Any) -> None:
    """It prints, and what is printed parses to the same program."""
    text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    y = R.softmax(x, axis=-1)
    return R.sum(R.softmax(y, axis=0), axes=(0,))
"""
    exe = bw.compile(parse(text))
    shown = exe.show("host")
    again = bw.from_source(shown)
    assert ir.structural_equal(again["main"], exe.lowered["main"])
    assert "T.call_global" in shown


def test_instrumented_hosts_give_the_same_results_and_rising_ticks(parse: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    y = R.softmax(x, axis=-1)
    return R.sum(R.softmax(y, axis=0), axes=(0,))
"""
    exe = bw.compile(parse(text))
    host = exe.lowered["main"]
    timed = instrument_host(host)
    assert len(host_calls(timed)) == len(host_calls(host))
    functions = {**exe.lowered.functions, "main": timed}
    library = bw.build(exe.lowered.replace(functions=functions))
    x = np.random.default_rng(1).random((5, 4), dtype="f4")
    result, ticks = library["main"](x)
    np.testing.assert_array_equal(result, exe(x))
    assert len(ticks) == len(host_calls(host)) + 4  # three of the entry, one before the first
    assert (np.diff(ticks) >= 0).all()


def test_work_is_counted_for_symbols_inside_sizes(parse: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("2 * n + 2", 4), "float32"), z: R.Tensor(("n", 3), "float32")):
    n = T.int64()
    y = R.exp(x)
    return (R.sum(R.reshape(y, R.shape([8 * n + 8])), axes=(0,)), z)
"""
    exe = bw.compile(parse(text))
    x, z = (np.random.default_rng(0).random(shape, dtype="f4") for shape in ((6, 4), (2, 3)))
    np.testing.assert_allclose(exe(x, z)[0], np.exp(x).sum(), rtol=1e-5)
    calls = exe.profile(x, z, repeat=1).calls
    assert sum(call.flops for call in calls) == 2 * 24  # an exponential and a sum for each
    assert sum(call.written for call in calls) == 4 * (1 + 6)


def test_looking_for_signals_costs_next_to_nothing(parse: Any) -> None:
    """Hundreds of tiny kernels: with the checks between them a call stays in the microseconds."""
    lines = "\n".join(f"    v{i + 1} = R.softmax(v{i}, axis=-1)" for i in range(300))
    text = f'@R.function\ndef main(v0: R.Tensor((1, 2), "float32")):\n{lines}\n    return v300\n'
    exe = bw.compile(parse(text))
    x = np.ones((1, 2), "f4")
    assert exe.profile(x).kernel_calls == 300
    exe(x)
    best = min(_timed(exe, x, time.perf_counter) for _ in range(20))
    assert best < 300 * 2e-6


def _timed(exe: Any, x: Any, clock: Any) -> float:
    started = clock()
    exe(x)
    return float(clock() - started)
