"""The interpreter of graph functions: what each construct means, against NumPy and by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.graph.interpreter import Function, Shape, interpret_graph
from blockwright.ops.table import OPERATORS

F32 = "float32"
X = np.arange(8, dtype=F32).reshape(2, 4)


def module(text: str) -> ir.IRModule:
    """A module with these functions."""
    body = textwrap.indent(textwrap.dedent(text), "    ")
    return bw.from_source(f"@I.ir_module\nclass Module:\n{body}")


def run(text: str, *arguments: Any, **options: Any) -> Any:
    """Run `main` of these functions."""
    return bw.interpret(module(text), *arguments, **options)


def refusal(code: str, text: str, *arguments: Any, **options: Any) -> str:
    """The message with which the run fails."""
    with pytest.raises(bw.BlockwrightError) as caught:
        run(text, *arguments, **options)
    assert caught.value.code == code, caught.value
    return str(caught.value)


def same(found: Any, wanted: Any) -> None:
    """Equal in kind, type, shape and every element."""
    if isinstance(wanted, tuple):
        assert type(found) is type(wanted)
        assert len(found) == len(wanted)
        if isinstance(wanted, Shape):
            assert found == wanted
            return
        for f, w in zip(found, wanted, strict=True):
            same(f, w)
        return
    assert isinstance(found, np.ndarray) == isinstance(wanted, np.ndarray)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


# ---------------------------------------------------------------------------------------- operators
def test_bindings_run_in_order_and_operators_mean_their_oracles() -> None:
    text = """
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, "m"), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.relu(y - R.const(20.0, "float32"))
            R.output(z)
        return z
    """
    w = np.arange(12, dtype=F32).reshape(4, 3)
    wanted = np.maximum(X @ w - np.float32(20), 0)
    same(run(text, X, w), wanted)
    same(run(text, X, w, exact=True), wanted)
    same(run(text, X, w=w), wanted)


def test_the_meaning_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    text = """
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        y = R.softmax(x, axis=-1)
        z = R.layer_norm(y, axes=-1)
        return R.concat((z, R.cumsum(x, axis=1)), axis=0)
    """
    x = torch.from_numpy(X)
    normal = torch.nn.functional.layer_norm(torch.softmax(x, -1), (4,))
    wanted = torch.cat((normal, torch.cumsum(x, 1))).numpy()
    for exact in (False, True):
        np.testing.assert_allclose(run(text, X, exact=exact), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_runs_on_its_first_sample(name: str) -> None:
    row = OPERATORS[name]
    sample = row.samples[0]
    rng = np.random.default_rng(0)
    arrays = [a(rng) if callable(a) else np.asarray(a) for a in sample.args]
    builder = GraphBuilder()
    params = [builder.param(f"x{i}", _info(a)) for i, a in enumerate(arrays)]
    args: list[Any] = list(params)
    if len(row.args) == 1 and row.args[0].endswith("*"):
        args = [
            ir.TupleExpr(tuple(params), info=ir.TupleInfo(tuple(p.tensor_info for p in params)))
        ]
    result = builder.op(name, *args, **sample.attrs)
    with np.errstate(all="ignore"):
        wanted = row.oracle(*arrays, **{**row.attrs, **sample.attrs})
    wanted = tuple(map(np.asarray, wanted)) if isinstance(wanted, list) else np.asarray(wanted)
    same(bw.interpret(builder.finish("main", result), *arrays), wanted)


def _info(array: np.ndarray[Any, Any]) -> ir.TensorInfo:
    dims = tuple(ir.const(n, "int64") for n in array.shape)
    return ir.TensorInfo(dims, ir.dtype_of(array.dtype))


def test_symbolic_sizes_of_one_do_not_broadcast_and_are_not_squeezed() -> None:
    unknown = """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(ndim=1, dtype="float32")):
        return x + y
    """
    one, three = np.ones(1, F32), np.ones(3, F32)
    assert "does not broadcast" in refusal("BW401", unknown, one, three)
    same(run(unknown, three, one), np.full(3, 2, F32))  # y has no sizes but those of the call
    squeezed = """
    @R.function
    def main(x: R.Tensor(("n", 1, 3), "float32")):
        return R.squeeze(x)
    """
    assert run(squeezed, np.ones((1, 1, 3), F32)).shape == (1, 3)


def test_sizes_of_one_are_numbers_in_messages() -> None:
    for shape, size, call, text in (
        ('(1, 1, "n")', (1, 1, 1), "R.nn.max_pool1d(x, pool_size=3)", "do not fit into 1 with"),
        ('("n", "m")', (1, 1), "R.topk(x, k=3)", "for lines of 1 elements"),
        ('("n",)', (1,), 'R.nn.pad(x, [1, 1], pad_mode="reflect")', "for an axis of 1"),
        ('("n",)', (1,), "R.split(x, [2, 4])", "do not fit 1"),
    ):
        program = f"""
    @R.function
    def main(x: R.Tensor({shape}, "float32")):
        return {call}
    """
        message = refusal("BW401", program, np.ones(size, F32))
        assert text in message
        assert "one" not in message.split("|")[0]


READS = {
    "R.embedding(x, i)": (-1, 4),
    "R.take(x, i)": (-5, 4),
    "R.take(x, i, axis=0, from_end=False)": (-1, 4),
    "R.index(x, i)": (-5, 4),
    "R.gather(x, R.reshape(i, (1, 1)), axis=0)": (-1, 4),
    "R.scatter_nd(x, R.reshape(i, (1, 1)), R.ones((1, 2), 'float32'))": (-5, 4),
    "R.scatter_elements(x, R.reshape(i, (1, 1)), R.ones((1, 1), 'float32'), from_end=False)": (
        -1,
        4,
    ),
    "R.index_put(x, R.ones((1, 2), 'float32'), i)": (-5, 4),
}


@pytest.mark.parametrize("call", READS)
def test_positions_out_of_range_are_refused_as_in_compiled_code(call: str) -> None:
    """NumPy would count all negative positions from the end."""
    program = f"""
    @R.function
    def main(x: R.Tensor((4, 2), "float32"), i: R.Tensor((1,), "int64")):
        return {call}
    """
    x = np.arange(8, dtype=F32).reshape(4, 2)
    compiled = bw.compile(module(program))
    for position in READS[call]:
        index = np.array([position])
        message = refusal("BW708", program, x, index)
        assert f"index {position} is out of range" in message
        with pytest.raises(bw.BlockwrightError, match="BW708"):
            compiled(x, index)
    for position in (3, *range(READS[call][0] + 1, 0)):
        index = np.array([position])
        same(run(program, x, index), compiled(x, index))


def test_a_mask_does_not_take_more_elements_than_there_are() -> None:
    program = """
    @R.function
    def main(x: R.Tensor((4,), "float32"), m: R.Tensor((4,), "bool"), y: R.Tensor((1,), "float32")):
        return R.masked_scatter(x, m, y)
    """
    x, mask = np.arange(4, dtype=F32), np.array([True, False, True, False])
    assert "takes 2 elements" in refusal("BW708", program, x, mask, np.ones(1, F32))


def test_results_are_not_views_of_arguments() -> None:
    text = """
    @R.function
    def main(x: R.Tensor((2, 4), "float32")):
        return R.reshape(x, R.shape([8]))
    """
    assert not np.shares_memory(run(text, X), X)


def test_integers_are_not_divided_by_zero_and_axes_may_be_lists() -> None:
    text = """
@R.function
def main(x: R.Tensor((1, 3), "int8"), y: R.Tensor((1, 3), "int8")):
    z = R.{op}(x, y)
    return R.squeeze(z, axis=[0])
"""
    x, y = np.array([[-128, 5, -7]], "int8"), np.array([[-1, 2, 3]], "int8")
    for op, wanted in (
        ("floor_divide", [-128, 2, -3]),
        ("remainder", [0, 1, 2]),
        ("fmod", [0, 1, -1]),
    ):
        same(run(text.replace("{op}", op), x, y), np.array(wanted, "int8"))
        assert "by zero" in refusal("BW754", text.replace("{op}", op), x, y * 0)


def test_a_wrong_oracle_and_a_wrong_deduction_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        return R.exp(x)
    """
    good = OPERATORS["exp"]
    wide = msgspec.structs.replace(good, oracle=lambda x: np.exp(x.astype("float64")))
    monkeypatch.setitem(OPERATORS, "exp", wide)
    assert "float32, got float64" in refusal("BW769", text, X)
    flat = msgspec.structs.replace(good, deduce=OPERATORS["flatten"].deduce)
    monkeypatch.setitem(OPERATORS, "exp", flat)
    refusal("BW401", text, X)  # `flatten` needs attributes that `exp` does not have


# ------------------------------------------------------------------------------------------- values
def test_tuples_shapes_scalars_and_text_are_values() -> None:
    text = """
    @R.function
    def main(
        t: R.Tuple(R.Tensor(("n",), "int32"), R.Tuple(R.Tensor((2,), "bool"), R.Shape(["m", 3]))),
        p: R.Prim(value="k"),
    ):
        n, m, k = T.int64(), T.int64(), T.int64()
        s = t[1][1]
        x = R.zeros(s, dtype="int8")
        return (t[0], (t[1], R.shape_of(x)), R.shape([n * 2, k]), R.prim_value(k + m), R.str("a"))
    """
    a, b = np.arange(3, dtype="int32"), np.array([True, False])
    found = run(text, (a, [b, (5, 3)]), 7)
    wanted = (a, ((b, Shape((5, 3))), Shape((5, 3))), Shape((6, 7)), np.int64(12))
    same(found[:-1], wanted)
    assert found[-1] == "a"
    assert found[2] == (6, 7)
    assert repr(found[2]) == "Shape(6, 7)"


def test_constants_keep_their_type_and_are_read_only() -> None:
    text = """
    @R.function
    def main():
        return R.const([1, 255], "uint8")
    """
    found = run(text)
    same(found, np.array([1, 255], "uint8"))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2


NARROW = """
@R.function
def main(x: R.Tensor((16,), "{kind}"), y: R.Tensor((16,), "{kind}")):
    a = R.add(x, y)
    b = R.multiply(x, y)
    c = R.negative(x)
    d = R.astype(R.astype(x, dtype="int32"), dtype="{kind}")
    return a, b, c, d, R.maximum(x, y), R.astype(x, dtype="float32")
"""


@pytest.mark.parametrize("kind", ["int4", "int2", "uint4", "uint2"])
@pytest.mark.parametrize("exact", [False, True])
def test_integers_narrower_than_a_byte_wrap(kind: str, exact: bool) -> None:
    """Arrays hold them in bytes, of which only the low bits count."""
    dtype = ir.dtype_of(kind)
    x = np.arange(-8, 8).astype(dtype.numpy())
    y = x[::-1].copy()

    def wrapped(numbers: Any) -> Any:
        low, count = dtype.min_value, dtype.max_value - dtype.min_value + 1
        return ((np.asarray(numbers, np.int64) - low) % count + low).astype(dtype.numpy())

    p, q = (wrapped(v).astype(np.int64) for v in (x, y))
    wanted = (
        *(wrapped(v) for v in (p + q, p * q, -p, p, np.maximum(p, q))),
        p.astype("float32"),
    )
    text = NARROW.format(kind=kind)
    same(run(text, x, y, exact=exact), wanted)
    for found, want in zip(bw.compile(module(text))(x, y), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


# ------------------------------------------------------------------------------- control, functions
CHOICE = """
@R.function
def main(x: R.Tensor(("n",), "int32"), c: R.Tensor((), "bool")):
    if c:
        y = R.add(x, x)
        z = R.negative(y)
    else:
        z = x
    return z
"""


def test_if_runs_one_branch() -> None:
    x = np.arange(3, dtype="int32")
    same(run(CHOICE, x, np.array(True)), -2 * x)
    same(run(CHOICE, x, np.array(False)), x)
    refusal("BW702", CHOICE, x, True)  # a tensor is an array


def test_if_takes_a_bool_scalar() -> None:
    text = CHOICE.replace('R.Tensor((), "bool")', 'R.Prim("bool")')
    x = np.arange(3, dtype="int32")
    same(run(text, x, True), -2 * x)
    same(run(text, x, np.bool_(False)), x)


POWER = """
@R.function
def main(x: R.Tensor(("n",), "int64"), s: R.Tensor(("k",), "bool")) -> R.Tensor(("n",), "int64"):
    n, k = T.int64(), T.int64()
    stop = R.equal(R.full(R.shape([]), fill_value=k, dtype="int64"), R.const(0, "int64"))
    if stop:
        y: R.Tensor((n,), "int64") = R.ones_like(x)
    else:
        rest = R.slice(s, axis=0, begin=1, end=k)
        m = T.int64()
        less = R.match_cast(rest, R.Tensor((m,), "bool"))
        part = cls.main(x, less)
        y: R.Tensor((n,), "int64") = R.multiply(x, part)
    return y
"""


def test_recursion_ends_or_stops_at_a_depth() -> None:
    x = np.array([1, 2, 3])
    same(run(POWER, x, np.zeros(5, bool)), x**5)
    same(run(POWER, x, np.zeros(60, bool)), x**60)
    refusal("BW768", POWER, x, np.zeros(8, bool), depth=8)
    endless = """
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return cls.main(x)
    """
    assert "more than 1000 graph functions" in refusal("BW768", endless, X[0])


CLOSURES = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n",), "float32")):
    n = T.int64()

    @R.function
    def scaled(a: R.Tensor(("k", "n"), "float32")) -> R.Tensor(("k", "n"), "float32"):
        b = R.multiply(a, y)
        return b

    pair = (scaled, cls.twice)
    f: R.Callable = pair[0]
    z = f(R.permute_dims(x))
    w = cls.apply(cls.twice, z)
    return (w, scaled)

@R.function
def twice(a: R.Tensor(("p", "q"), "float32")) -> R.Tensor(("p", "q"), "float32"):
    return R.add(a, a)

@R.function
def apply(
    f: R.Callable((R.Tensor(("p", "q"), "float32"),), R.Tensor(("p", "q"), "float32")),
    a: R.Tensor(("i", "j"), "float32"),
):
    return R.invoke_closure(f, (a,), sinfo_args=R.Tensor(ndim=2, dtype="float32"))
"""


def test_closures_capture_values_and_symbols_and_functions_are_values() -> None:
    y = np.array([2, 3], F32)
    found, scaled = run(CLOSURES, X, y)
    same(found, 2 * X.T * y)
    assert isinstance(scaled, Function)
    assert "scaled" in repr(scaled) or "main" in repr(scaled)
    same(scaled(np.ones((1, 2), F32)), y.reshape(1, 2))
    with pytest.raises(bw.InterpretError, match="dimension 1 is 3, expected n = 2") as caught:
        scaled(np.ones((1, 3), F32))
    assert caught.value.code == "BW709"


def test_functions_of_the_caller_are_values_too() -> None:
    text = """
    @R.function
    def main(f: R.Callable, x: R.Tensor(("n",), "float32")):
        return R.invoke_closure(f, (x,), sinfo_args=R.Tensor(ndim=1, dtype="float32"))
    """
    same(run(text, np.negative, X[0]), -X[0])
    refusal("BW769", text, lambda x: x[0], X[0])
    refusal("BW702", text, 3, X[0])
    _, scaled = run(CLOSURES, X, np.ones(2, F32))
    with pytest.raises(bw.InterpretError, match="expected 2 dimensions, got 1"):
        run(text, scaled, X[0])


# -------------------------------------------------------------------------- programs and libraries
PROGRAMS = """
@T.prim_func(private=True)
def rows(x: T.handle, k: T.int64, y: T.handle, z: T.handle):
    n, m = T.int64(), T.int64()
    X = T.match_buffer(x, (n, m), "int32")
    Y = T.match_buffer(y, (n,), "int32")
    Z = T.match_buffer(z, (m,), "int32")
    for i in range(n):
        Y[i] = X[i, 0] + T.Cast("int32", k)
    for j in range(m):
        Z[j] = X[0, j] * T.Cast("int32", n)

@T.prim_func(private=True)
def double(x: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "int32")
    for i in range(n):
        X[i] = X[i] * 2
"""


def test_call_tir_binds_symbols_from_shapes_and_scalars_from_tir_vars() -> None:
    text = (
        PROGRAMS
        + """
@R.function
def main(x: R.Tensor(("n", 3), "int32")):
    n = T.int64()
    out = R.call_tir(cls.rows, (x,), out_sinfo=[R.Tensor((n,), "int32"), R.Tensor((3,), "int32")],
        tir_vars=R.shape([n + 10]))
    return out
"""
    )
    x = np.arange(6, dtype="int32").reshape(2, 3)
    same(run(text, x), (x[:, 0] + np.int32(12), x[0] * np.int32(2)))


def test_call_tir_inplace_writes_into_its_argument() -> None:
    text = (
        PROGRAMS
        + """
@R.function(pure=False)
def main(x: R.Tensor(("n",), "int32")):
    n = T.int64()
    one = R.const([1], "int32")
    y = R.call_tir_inplace(cls.double, (x,), [0], [R.Tensor((n,), "int32")])
    z = R.call_tir_inplace(cls.double, (one,), [0], [R.Tensor((1,), "int32")])
    return (y, z)
"""
    )
    x = np.arange(3, dtype="int32")
    for _ in range(2):  # a constant is copied first
        y, z = run(text, x)
        assert y is x
        same(z, np.array([2], "int32"))
    np.testing.assert_array_equal(x, [0, 4, 8])
    x.flags.writeable = False
    assert "read-only" in refusal("BW707", text, x)


LIBRARY = """
@R.function(pure=False)
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    y = R.call_dps_library("scale", [x], R.Tensor((n,), "float32"), factor=2.0, plus=n)
    z = R.call_packed("both", y, R.shape([n]), R.prim_value(n), k=3, sinfo_args=[R.Tensor((n,),
        "float32"), R.Object])
    w = R.call_pure_packed("pick", z, sinfo_args=R.Tensor((n,), "float32"))
    return (y, w)
"""


def scale(x: Any, out: Any, factor: float, plus: int) -> None:
    assert not x.flags.writeable
    out[...] = x * np.float32(factor) + np.float32(plus)


def test_foreign_functions_are_those_of_the_caller() -> None:
    seen: list[Any] = []

    def both(y: Any, shape: Any, n: Any, k: int) -> Any:
        seen.append((shape, n, k))
        return [y + 1, object()]

    packed: dict[str, Callable[..., Any]] = {
        "scale": scale,
        "both": both,
        "pick": lambda pair: pair[0],
    }
    x = X[0]
    same(run(LIBRARY, x, packed=packed), (2 * x + 4, 2 * x + 5))
    assert seen == [(Shape((4,)), 4, 3)]
    assert "packed=" in refusal("BW711", LIBRARY, x)
    wrong = {**packed, "pick": lambda pair: pair[0][1:]}
    assert "dimension 0 is 3, expected n = 4" in refusal("BW769", LIBRARY, x, packed=wrong)


def test_foreign_functions_may_be_registered_with_tvm_ffi() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")

    @tvm_ffi.register_global_func("blockwright.test.negated", override=True)
    def negated(x: Any, out: Any) -> None:
        np.from_dlpack(out)[...] = -np.from_dlpack(x)

    @tvm_ffi.register_global_func("blockwright.test.first", override=True)
    def first(x: Any, shape: Any, n: int) -> Any:
        assert (list(shape), n) == ([4, 2], 4)
        return x

    text = """
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = R.call_dps_packed("blockwright.test.negated", [x], R.Tensor((n,), "float32"))
        z = R.call_packed("blockwright.test.first", y, R.shape([n, 2]), R.prim_value(n),
            sinfo_args=R.Tensor((n,), "float32"))
        return z
    """
    same(run(text, X[0]), -X[0])


def test_foreign_functions_do_not_write_to_their_arguments() -> None:
    def fill(x: Any, *others: Any) -> object:
        x[...] = 3
        return x

    text = """
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")):
        y = R.exp(x)
        o = R.call_packed("fill", y, sinfo_args=R.Object)
        return y
    """
    assert "fill wrote to argument 0" in refusal("BW770", text, X[0], packed={"fill": fill})


def test_programs_call_foreign_functions() -> None:
    def fill(x: Any, value: int) -> None:
        x[...] = value

    text = """
    @T.prim_func
    def fill(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        T.call_packed("blockwright.test.fill", T.tensor(x[0]), n)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = R.exp(x)
        z = R.call_tir_inplace(cls.fill, (y,), 0, R.Tensor((n,), "float32"))
        return z
    """
    wanted = np.full(4, 4, F32)
    same(run(text, X[0], packed={"blockwright.test.fill": fill}), wanted)
    assert "there is no function" in refusal("BW711", text, X[0])
    tvm_ffi = pytest.importorskip("tvm_ffi")
    tvm_ffi.register_global_func(
        "blockwright.test.fill", lambda x, n: fill(np.from_dlpack(x), n), override=True
    )
    same(run(text, X[0]), wanted)


# ----------------------------------------------------------------------------- casts and signatures
CAST = """
@R.function
def main(x: R.Tensor(ndim=2), y: R.Tensor(("m",), "float32")):
    n, m = T.int64(), T.int64()
    z = R.match_cast(x, R.Tensor((n, m + 1), "float32"))
    return (z, R.shape([n, m]))
"""


def test_match_cast_binds_new_symbols_and_names_what_differs() -> None:
    y = np.zeros(3, F32)
    same(run(CAST, X, y), (X, Shape((2, 3))))
    assert "match_cast of z: dimension 1 is 4, expected m + 1 = 3" in refusal(
        "BW704", CAST, X, y[1:]
    )
    assert "m = 2 by dimension 0" in refusal("BW704", CAST, X, y[1:])
    assert "expected elements of type float32, got int32" in refusal(
        "BW703", CAST, X.astype("int32"), y
    )
    told = CAST.replace('"float32"))\n', '"float32"), "BW708: %d rows\\nhelp: fewer", n)\n', 1)
    assert "[BW708]: 2 rows" in refusal("BW708", told, X, y[1:])
    plain = CAST.replace('"float32"))\n', '"float32"), "not so")\n', 1)
    assert "not so" in refusal("BW753", plain, X, y[1:])


@pytest.mark.parametrize(
    ("annotations", "arguments", "code", "message"),
    [
        ('x: R.Tensor(("2 * n + 1",), "int8")', [7], "", ""),
        ('x: R.Tensor(("2 * n + 1",), "int8")', [8], "BW704", "2 * n + 1 for no integer n"),
        ('x: R.Tensor(("n",), "int8"), y: R.Tensor(("n // 4",), "int8")', [9, 2], "", ""),
        (
            'x: R.Tensor(("n",), "int8"), y: R.Tensor(("n // 4",), "int8")',
            [9, 3],
            "BW709",
            "argument y: dimension 0 is 3, expected n // 4 = 2",
        ),
        ('x: R.Tensor(("n + 1",), "int8"), y: R.Tensor(("n",), "int8")', [4, 3], "", ""),
        ('x: R.Tensor(("n", ), "int8"), y: R.Tensor(("n",), "int8")', [4, 3], "BW709", "n = 4"),
        ('x: R.Tensor(("n",), "int8")', [65], "BW708", "outside its declared range [0, 64]"),
    ],
)
def test_parameters_bind_solve_and_check_sizes(
    annotations: str, arguments: list[int], code: str, message: str
) -> None:
    text = f"""
    @R.function
    def main({annotations}):
        R.func_attr({{"tir_var_upper_bound": {{"n": 64}}}})
        n = T.int64()
        return R.shape([n])
    """
    arrays = [np.zeros(n, "int8") for n in arguments]
    if code:
        assert message in refusal(code, text, *arrays)
    else:
        assert len(run(text, *arrays)) == 1


def test_arguments_are_of_the_annotated_kind() -> None:
    text = """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), s: R.Shape(ndim=2), k: R.Prim("int32")):
        return (x, s, k)
    """
    x = X[0]
    same(run(text, x, [1, 2], 3), (x, Shape((1, 2)), np.int32(3)))
    assert "takes 3 arguments (x, s, k), got 1" in refusal("BW701", text, x)
    assert "no further parameter 'z'" in refusal("BW701", text, x, z=1)
    assert "got a Python list" in refusal("BW702", text, [1.0], (1, 2), 3)
    assert "expected 2 dimensions, got 3" in refusal("BW704", text, x, (1, 2, 3), 3)
    assert "got a tuple of 2" in refusal("BW702", text, x, (1.5, 2), 3)
    assert "does not fit int32" in refusal("BW702", text, x, (1, 2), 1 << 40)
    assert "type int32, got int64" in refusal("BW703", text, x, (1, 2), np.int64(3))
    assert "got float64" in refusal("BW703", text, x.astype("float64"), (1, 2), 3)


def test_only_graph_functions_and_valid_ones_run() -> None:
    text = """
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor((3,), "float32"):
        return x
    """
    assert "but is R.Tensor((n,)" in refusal("BW408", text, X[0])
    refusal("BW205", text, X[0], entry="other")
    with pytest.raises(bw.InterpretError, match="graph functions: main"):
        interpret_graph(module(text), X[0], entry="other")


# ----------------------------------------------------------------------------- published listings
LISTINGS: ir.IRModule = bw.from_source(
    (Path(__file__).parents[1] / "script" / "programs" / "paper_graph.py").read_text()
)


def listing(name: str, *arguments: Any, **options: Any) -> Any:
    return bw.interpret(LISTINGS, *arguments, entry=name, **options)


def test_published_listings_compute_what_they_say() -> None:
    x2 = np.array([[1, -2], [3, -4], [0, 5]], F32)
    doubled = np.maximum(2 * x2.reshape(-1), 0)
    same(listing("before_fusion", x2), doubled)
    same(listing("after_fusion", x2), doubled)
    same(listing("fused_add_relu", doubled, doubled, (3,)), 2 * doubled)
    same(listing("subfunc", X - 3), np.maximum(X - 3, 0).reshape(-1))
    np.testing.assert_allclose(listing("before_planning", X[:, :3]), np.exp(X[:, :3]), rtol=1e-6)


def test_published_listings_with_libraries_and_encoded_weights() -> None:
    def attend(x: Any, out: Any) -> None:
        out[...] = x[:, 0] + x[:, 1] * x[:, 2]

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(F32) for s in ((3, 512), (512, 1536)))
    q, k, v = (x @ w).reshape(3, 3, 8, 64).transpose(1, 0, 2, 3)
    found = listing("attention", x, w, packed={"cutlass.attention": attend})
    np.testing.assert_allclose(found, q + k * v, rtol=1e-3, atol=1e-2)
    data = rng.integers(0, 1 << 32, (128, 32), "uint32")
    factor = rng.integers(1, 4, (128, 8)).astype("float16")
    columns = np.arange(256)
    decoded = (data[:, columns // 8] >> (columns % 8 * 4).astype("uint32") & 15).astype("float16")
    decoded = (decoded - np.float16(7)) * factor[:, columns // 32]
    x16 = rng.integers(-2, 3, (2, 128)).astype("float16")
    wanted = x16.astype(F32) @ decoded.astype(F32)
    np.testing.assert_array_equal(listing("encoded", x16, data, factor), wanted.astype("float16"))


@pytest.mark.parametrize("shape", [(0, 0), (1, 0), (0, 2)])
@pytest.mark.parametrize(
    "call",
    [
        "R.nn.softmax(x, axis=1)",
        "R.nn.log_softmax(x, axis=1)",
        "R.argmax(x, axis=1)",
        "R.argmin(x, axis=1, keepdims=True)",
        "R.nn.adaptive_max_pool1d(R.reshape(x, (1, n, m)), output_size=3)",
    ],
)
def test_operators_on_empty_axes(call: str, shape: tuple[int, int]) -> None:
    """The values are those of compiled code: what a reduction over no elements gives."""
    module = bw.from_source(f"""
@R.function
def main(x: R.Tensor(("n", "m"), "float32")):
    n = T.int64()
    m = T.int64()
    return {call}
""")
    x = np.zeros(shape, "float32")
    np.testing.assert_array_equal(bw.interpret(module, x), bw.compile(module)(x))


def test_masked_scatter_from_a_source_without_elements() -> None:
    module = bw.from_source("""
@R.function
def main(x: R.Tensor((4,), "float32"), mask: R.Tensor((4,), "bool"),
         source: R.Tensor(("k", "n"), "float32")):
    return R.masked_scatter(x, mask, source)
""")
    x, none = np.arange(4, dtype="float32"), np.zeros((4, 0), "float32")
    exe = bw.compile(module)
    for run in (lambda *a: bw.interpret(module, *a), exe):
        np.testing.assert_array_equal(run(x, np.zeros(4, "bool"), none), x)
        with pytest.raises(bw.BlockwrightError) as caught:
            run(x, np.ones(4, "bool"), none)
        assert caught.value.code == "BW708"
