"""Values of sizes known only at run time: results, memory, checks, branches."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

X = np.array([3, 1, 2, 2, 1, 0, 0, 7], "float32")
YES, NO = np.array(True), np.array(False)


def parse(text: str) -> ir.IRModule:
    return bw.from_source(f"@I.ir_module\nclass Module:\n{textwrap.indent(text, '    ')}\n")


def arrays(value: Any) -> list[Any]:
    whole = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    return [np.asarray(v) for v in whole]


def checked(text: str, *args: Any) -> tuple[bw.CompiledModel, list[Any]]:
    """Compile, and compare with the interpreter of the graph and of the host program."""
    module = parse(text)
    exe = bw.compile(module)
    found = arrays(exe(*args))
    for exact in (False, True):
        for a, b in zip(found, arrays(bw.interpret(module, *args, exact=exact)), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-5)
    return exe, found


def interpreted(text: str) -> Callable[..., Any]:
    return partial(bw.interpret, parse(text))


def assert_counted(exe: bw.CompiledModel, *args: Any) -> None:
    """A call takes no more memory than the plan says."""
    assert 0 < exe.measure_memory(*args) <= exe.memory_plan.activation_bytes(*args, threads=2)


# The first listing of the Relax paper's figures, with and without symbols.
SYMBOLIC = """
@R.function
def main(x: R.Tensor(("n", 2, 2), "float32")) -> R.Tensor(("m",), "float32"):
    n = T.int64()
    m = T.int64()
    lv0: R.Tensor((n, 4), "float32") = R.reshape(x, R.shape([n, 4]))
    lv1: R.Tensor((n * 4,), "float32") = R.flatten(lv0)
    lv2: R.Tensor(ndim=1, dtype="float32") = R.unique(lv1)
    lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
    lv4: R.Tensor((m,), "float32") = R.exp(lv3)
    return lv4
"""
ANY_SHAPE = """
@R.function
def main(x: R.Tensor(ndim=3, dtype="float32")):
    n = T.int64()
    size = R.match_cast(R.shape_of(x), R.Shape((n, 2, 2)))
    lv0: R.Tensor(ndim=2, dtype="float32") = R.reshape(x, R.shape([n, 4]))
    lv1: R.Tensor(ndim=1, dtype="float32") = R.flatten(lv0)
    lv2: R.Tensor(ndim=1, dtype="float32") = R.unique(lv1)
    lv3: R.Tensor(ndim=1, dtype="float32") = R.exp(lv2)
    return lv3
"""


@pytest.mark.parametrize("text", [SYMBOLIC, ANY_SHAPE])
def test_the_first_listing_runs(text: str) -> None:
    exe = bw.compile(parse(text))
    for data in (X.reshape(2, 2, 2), X[:4].reshape(1, 2, 2), X[:0].reshape(0, 2, 2)):
        wanted = np.exp(np.unique(data))
        np.testing.assert_allclose(exe(data), wanted, rtol=1e-6)
        np.testing.assert_allclose(bw.interpret(parse(text), data), wanted, rtol=1e-6)
        if data.size:
            assert_counted(exe, data)
    with pytest.raises(bw.BlockwrightError) as caught:
        exe(np.zeros((2, 3, 2), "float32"))
    assert caught.value.code == "BW704"


def test_the_host_program_allocates_the_result() -> None:
    exe, found = checked(SYMBOLIC, X.reshape(2, 2, 2))
    results: list[Any] = []
    bw.interpret(exe.stages["lower_host"], X.reshape(2, 2, 2), results)
    np.testing.assert_allclose(results[0], found[0], rtol=1e-6)
    assert "T.result_memory(out_handle" in exe.show("host", "main")
    assert str(exe.signature.results[0].shape) == "('m',)"


def test_memory_of_the_caller_must_have_the_size() -> None:
    exe = bw.compile(parse(SYMBOLIC))
    memory = np.empty(5, "float32")
    assert exe(X.reshape(2, 2, 2), out=memory) is memory
    np.testing.assert_allclose(memory, np.exp(np.unique(X)), rtol=1e-6)
    with pytest.raises(bw.ArgumentError, match="expected dimension 0 to be m = 5, got 4") as caught:
        exe(X.reshape(2, 2, 2), out=memory[:4])
    assert caught.value.code == "BW704"
    assert caught.value.help is not None
    assert "call without memory" in caught.value.help
    x = X.reshape(2, 2, 2).copy()
    np.testing.assert_array_equal(exe(x, out=x.reshape(-1)[3:]), memory)


SEVERAL = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    y = R.unique(x, return_counts=True, return_inverse=True)
    z = R.nonzero(x)
    w = R.masked_select(x, R.greater(x, R.const(1.5, "float32")))
    return R.exp(x), y[0], y[1], y[2], z, R.sum(w), w, w
"""


def test_results_of_both_kinds_are_returned_in_order() -> None:
    exe, found = checked(SEVERAL, X)
    distinct, inverse, counts = np.unique(X, return_inverse=True, return_counts=True)
    wanted = [np.exp(X), distinct, inverse, counts, np.stack(np.nonzero(X))]
    for a, b in zip(found, [*wanted, X[X > 1.5].sum(), X[X > 1.5], X[X > 1.5]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert_counted(exe, X)
    memory = tuple(np.empty_like(a) for a in found)
    exe(X, out=memory)
    for a, b in zip(memory, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_artefact_returns_results_of_run_time_size(tmp_path: Any) -> None:
    bw.compile(parse(SEVERAL)).save(tmp_path / "several.bwx")
    loaded = bw.load(tmp_path / "several.bwx")
    for size in (8, 3, 0):
        np.testing.assert_array_equal(loaded(X[:size])[1], np.unique(X[:size]))


UNLIMITED = """
@R.function
def main(x: R.Tensor((), "float32"), sizes: R.Tensor((2,), "int64")):
    z = R.broadcast_to(x, R.tensor_to_shape(sizes))
    y = R.add(R.exp(z), z)
    w = R.matmul(y, R.permute_dims(y))
    return R.sum(w), R.negative(y)
"""


def test_values_without_a_limit_are_allocated_when_their_size_is_known() -> None:
    two = np.array(2, "float32")
    exe, found = checked(UNLIMITED, two, np.array([3, 5]))
    assert found[1].shape == (3, 5)
    for sizes in ([0, 5], [5, 0], [200, 3]):
        assert exe(two, np.array(sizes))[1].shape == tuple(sizes)
    assert exe.measure_memory(two, np.array([300, 5])) > exe.measure_memory(two, np.array([30, 5]))
    with pytest.raises(bw.BlockwrightError) as caught:
        exe.memory_plan.activation_bytes(two, np.array([3, 5]))
    assert caught.value.code == "BW835"
    for run in (exe, interpreted(UNLIMITED)):
        with pytest.raises(bw.BlockwrightError) as caught:
            run(two, np.array([3, -5]))
        assert caught.value.code == "BW708"


def test_memory_is_released_after_an_error() -> None:
    text = """
@R.function
def main(x: R.Tensor((), "float32"), sizes: R.Tensor((1,), "int64"), t: R.Tensor((1,), "int64")):
    a = T.int64()
    y = R.broadcast_to(x, R.tensor_to_shape(sizes))
    b = R.match_cast(R.tensor_to_shape(t), R.Shape((a,)))
    z = R.match_cast(R.exp(y), R.Tensor((a,), "float32"))
    return z, R.sum(y)
"""
    exe = bw.compile(parse(text))
    args = np.array(1, "float32"), np.array([100_000])
    assert exe(*args, np.array([100_000]))[0].shape == (100_000,)
    peaks: list[int] = []
    for _ in range(3):
        with pytest.raises(bw.ArgumentError, match="match_cast of z: dimension 0 is") as caught:
            exe(*args, np.array([7]))
        assert caught.value.code == "BW704"
        peaks.append(exe.measure_memory(*args, np.array([100_000])))
    assert len(set(peaks)) == 1


def test_a_cast_to_declared_bounds_is_checked_and_limits_memory() -> None:
    text = """
@R.function
def main(x: R.Tensor((), "float32"), sizes: R.Tensor((1,), "int64")):
    R.func_attr({"tir_var_upper_bound": {"a": 64}, "tir_var_lower_bound": {"a": 2}})
    a = T.int64()
    s = R.match_cast(R.tensor_to_shape(sizes), R.Shape((a,)))
    y = R.exp(R.broadcast_to(x, R.shape([a, 3])))
    return R.sum(y)
"""
    exe, _ = checked(text, np.array(1, "float32"), np.array([5]))
    assert exe.memory_plan.upper_bound is not None
    assert exe.measure_memory(np.array(1, "float32"), np.array([64])) <= exe.memory_plan.upper_bound
    for size in (65, 1):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(np.array(1, "float32"), np.array([size]))
        assert caught.value.code == "BW708"


def test_casts_of_two_run_time_sizes_must_agree() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), t: R.Tensor((), "float32")):
    m = T.int64()
    y = R.match_cast(R.unique(x), R.Tensor((m,), "float32"))
    z = R.match_cast(R.masked_select(x, R.greater(x, t)), R.Tensor((m,), "float32"))
    return R.add(y, z)
"""
    exe = bw.compile(parse(text))
    x = np.array([1, 1, 2, 3], "float32")
    for run in (exe, interpreted(text)):
        with pytest.raises(bw.BlockwrightError) as caught:
            run(x, np.array(0.5, "float32"))
        assert caught.value.code == "BW704"
    np.testing.assert_array_equal(exe(x[1:], np.array(0.5, "float32")), 2 * x[1:])


BRANCHES = """
@R.function
def main(x: R.Tensor(("n",), "float32"), z: R.Tensor(("m", 3), "float32"),
         c: R.Tensor((), "bool")):
    u = R.unique(x)
    if c:
        y = (R.exp(R.unique(x)), u, R.add(u, u), x)
    else:
        y = (x, R.unique(z), R.negative(u), R.flatten(z))
    return R.negative(y[0]), y[1], R.exp(y[2]), y[3]
"""


@pytest.mark.parametrize("chosen", [YES, NO])
def test_branches_return_different_sizes(chosen: Any) -> None:
    z = np.arange(6, dtype="float32").reshape(2, 3)
    exe, found = checked(BRANCHES, X, z, chosen)
    assert [a.size for a in found] == ([5, 5, 5, 8] if chosen else [8, 6, 5, 6])
    assert_counted(exe, X, z, chosen)


def test_functions_with_run_time_sizes_are_called_and_call_themselves() -> None:
    text = """
@R.function(private=True)
def total(x: R.Tensor(("k",), "float32")):
    return R.sum(R.unique(x))
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
    n = T.int64()
    last = R.equal(k, R.const(0, "int64"))
    if last:
        y = R.add(x, cls.total(x))
    else:
        y = cls.main(R.add(x, cls.total(R.exp(x))), R.subtract(k, R.const(1, "int64")))
    return y
"""
    checked(text, X / 8, np.array(1))


REFUSED = {
    "BW407 of unknown rank": """
@R.function
def main(x: R.Tensor(dtype="float32")):
    return R.unique(x)
""",
    "BW407 of unknown count": """
@R.function
def main(x: R.Tensor(("n",), "int64")):
    return R.zeros(R.tensor_to_shape(x), dtype="float32")
""",
    "BW401 of floats": """
@R.function
def main(x: R.Tensor((2,), "float32")):
    return R.zeros(R.tensor_to_shape(x), dtype="float32")
""",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_size_is_refused(why: str) -> None:
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.compile(parse(REFUSED[why]))
    assert caught.value.code == why.split()[0]
    assert caught.value.help


class TestATensorThatIsReadTwice:
    """Equal loads are one load, but each cast reads the tensor."""

    def test_keeps_its_memory_until_the_last_cast(self) -> None:
        _, (first, second) = checked(
            """
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")):
    n = T.int64()
    m = T.int64()
    j = T.int64()
    a = R.add(k, scalar=1, scalar_side="right")
    one = R.match_cast(R.item(a), R.Prim(value=m))
    y = R.slice(x, axis=0, begin=0, end=m)
    total = R.sum(R.exp(R.subtract(x, R.sum(R.exp(x)))))
    b = R.add(k, scalar=1, scalar_side="right")
    other = R.match_cast(R.item(b), R.Prim(value=j))
    z = R.add(R.slice(x, axis=0, begin=0, end=j), total)
    return y, z
""",
            X,
            np.array(2),
        )
        assert first.shape == second.shape == (3,)

    def test_is_copied_before_an_update_in_between(self) -> None:
        _, (first, second) = checked(
            """
@T.prim_func(private=True)
def more(a: T.Buffer((), "int64")):
    with T.block("a"):
        a[()] = a[()] + T.int64(2)

@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")):
    n = T.int64()
    m = T.int64()
    a = R.add(k, scalar=1, scalar_side="right")
    loaded = R.item(a)
    b = R.call_tir_inplace(cls.more, (a,), [0], R.Tensor((), "int64"))
    one = R.match_cast(loaded, R.Prim(value=m))
    return R.slice(x, axis=0, begin=0, end=m), b
""",
            X,
            np.array(2),
        )
        assert first.shape == (3,)
        assert second == 5
