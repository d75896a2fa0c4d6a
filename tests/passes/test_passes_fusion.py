"""Fusion follows what the programs do: hand-written ones fuse like those of operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

FUSION = ("normalize", "legalize", "annotate_patterns", "fuse_ops", "fuse_tir")

# Names say nothing about what these programs compute.
PROGRAMS = """
@T.prim_func(private=True)
def apple(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, T.int64(8)), "float32")
    Y = T.match_buffer(y, (n, T.int64(8)), "float32")
    for i, j in T.grid(n, T.int64(8)):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.exp(X[vi, vj])

@T.prim_func(private=True)
def pear(x: T.handle, w: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, T.int64(8)), "float32")
    W = T.match_buffer(w, (T.int64(8), T.int64(8)), "float32")
    Y = T.match_buffer(y, (n, T.int64(8)), "float32")
    for i, j, k in T.grid(n, T.int64(8), T.int64(8)):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

@T.prim_func(private=True)
def plum(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, T.int64(8)), "float32")
    Y = T.match_buffer(y, (T.int64(8), n), "float32")
    for i, j in T.grid(T.int64(8), n):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vj, vi]

@T.prim_func(private=True)
def fig(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, T.int64(8)), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i, k in T.grid(n, T.int64(8)):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + X[vi, vk]
"""


def main(*lines: str, result: str) -> str:
    body = "\n".join(f"    {line}" for line in ("n = T.int64()", *lines))
    head = (
        'def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32"), '
        'z: R.Tensor(("n", 8), "float32")):'
    )
    return f"{PROGRAMS}\n@R.function\n{head}\n{body}\n    return {result}\n"


def call(name: str, *args: str, shape: str = "(n, 8)") -> str:
    return f'R.call_tir(cls.{name}, ({", ".join(args)},), R.Tensor({shape}, "float32"))'


def sample(rows: int = 5) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(rows)
    return [rng.standard_normal(s).astype("f4") for s in ((rows, 8), (8, 8), (rows, 8))]


def test_elementwise_consumers_become_the_epilogue_of_a_contraction(
    parse: Any, run: Any, callees: Any
) -> None:
    text = main(
        f"a = {call('pear', 'x', 'w')}", f"b = {call('apple', 'a')}", "c = R.add(b, z)", result="c"
    )
    module = run(parse(text), *FUSION)
    (name,) = callees(module)
    assert len(ir.blocks(module[name].body)) == 4
    assert "pear" not in module
    x, w, z = sample()
    np.testing.assert_allclose(bw.compile(parse(text))(x, w, z), np.exp(x @ w) + z, rtol=1e-5)


@pytest.mark.parametrize("batch", [0, 3])
def test_a_value_passed_twice_has_one_region(
    batch: int, parse: Any, run: Any, callees: Any
) -> None:
    text = f"""
@R.function
def main(x: R.Tensor(({batch}, 4, 4), "float32"), z: R.Tensor(({batch}, 4, 4), "float32")):
    y = R.add(R.matmul(x, x), z)
    return y
"""
    module = run(parse(text), *FUSION)
    (name,) = callees(module)
    for block in ir.blocks(module[name].body):
        assert len({region.buffer for region in block.reads}) == len(block.reads)
    x, z = np.random.default_rng(0).standard_normal((2, batch, 4, 4)).astype("f4")
    np.testing.assert_allclose(bw.compile(parse(text))(x, z), x @ x + z, rtol=1e-5, atol=1e-5)


def test_a_value_needed_twice_is_computed_once(parse: Any, run: Any, callees: Any) -> None:
    text = main(
        f"a = {call('pear', 'x', 'w')}",
        f"b = {call('apple', 'a')}",
        "c = R.add(a, b)",
        result="(a, c)",
    )
    module = run(parse(text), *FUSION)
    assert callees(module)[0] == "pear"
    x, w, z = sample()
    first, second = bw.compile(parse(text))(x, w, z)
    np.testing.assert_allclose(first, x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second, x @ w + np.exp(x @ w), rtol=1e-5, atol=1e-5)


def test_equal_groups_become_one_program(parse: Any, run: Any, callees: Any) -> None:
    """Layers repeat; what differs in the order of operands alone is another program."""
    text = """
@R.function
def main(x: R.Tensor((5, 8), "float32"), w: R.Tensor((8, 8), "float32"),
         z: R.Tensor((5, 8), "float32")):
    a = R.subtract(R.tanh(R.matmul(x, w)), z)
    b = R.subtract(z, R.tanh(R.matmul(a, w)))
    c = R.subtract(R.tanh(R.matmul(b, w)), z)
    d = R.subtract(R.tanh(R.matmul(c, w)), c)
    return d
"""
    first, second, third, fourth = callees(run(parse(text), *FUSION))
    assert first == third
    assert len({first, second, fourth}) == 3
    x, w, z = sample()
    a = np.tanh(x @ w) - z
    b = z - np.tanh(a @ w)
    c = np.tanh(b @ w) - z
    wanted = np.tanh(c @ w) - c
    np.testing.assert_allclose(bw.compile(parse(text))(x, w, z), wanted, rtol=1e-4, atol=1e-5)


def test_chains_of_elementwise_programs_become_one(parse: Any, run: Any, callees: Any) -> None:
    text = main(
        f"a = {call('apple', 'x')}",
        "b = R.multiply(a, z)",
        f"c = {call('apple', 'b')}",
        "d = R.negative(c)",
        result="d",
    )
    assert len(callees(run(parse(text), *FUSION))) == 1


def test_two_contractions_stay_apart(parse: Any, run: Any, callees: Any) -> None:
    text = main(f"a = {call('pear', 'x', 'w')}", f"b = {call('pear', 'a', 'w')}", result="b")
    assert callees(run(parse(text), *FUSION)) == ["pear", "pear"]


def test_movement_is_read_through_by_its_consumer(parse: Any, run: Any, callees: Any) -> None:
    """A transpose in front of an element-wise program costs no kernel and no memory."""
    text = main(f"a = {call('plum', 'x', shape='(8, n)')}", "b = R.exp(a)", result="b")
    module = run(parse(text), *FUSION)
    assert len(callees(module)) == 1
    x, w, z = sample()
    np.testing.assert_allclose(bw.compile(parse(text))(x, w, z), np.exp(x.T), rtol=1e-6)


def test_reductions_take_what_produces_their_rows(parse: Any, run: Any, callees: Any) -> None:
    text = main(
        f"a = {call('apple', 'x')}",
        f"b = {call('fig', 'a', shape='(n,)')}",
        "c = R.sqrt(b)",
        result="c",
    )
    assert len(callees(run(parse(text), *FUSION))) == 1
    x, w, z = sample(7)
    found = bw.compile(parse(text))(x, w, z)
    np.testing.assert_allclose(found, np.sqrt(np.exp(x).sum(1)), rtol=1e-5)


def test_what_only_relabels_a_result_stays_a_view(parse: Any, run: Any, callees: Any) -> None:
    """Computed along one flat axis, rows would be hidden from the rule that schedules them."""
    text = main(
        f"a = {call('pear', 'x', 'w')}",
        f"b = {call('apple', 'a')}",
        "c = R.reshape(b, R.shape([n * 8]))",
        result="c",
    )
    module = run(parse(text), *FUSION)
    group, view = callees(module)
    assert [len(buffer.shape) for buffer in module[group].buffers] == [2, 2, 2]
    assert module[view].attrs["tir.view"]
    x, w, z = sample(7)
    found = bw.compile(parse(text))(x, w, z)
    np.testing.assert_allclose(found, np.exp(x @ w).reshape(-1), rtol=1e-5)


def test_hand_written_programs_fuse_like_operators(parse: Any, run: Any, callees: Any) -> None:
    by_hand = main(f"a = {call('pear', 'x', 'w')}", f"b = {call('apple', 'a')}", result="b")
    by_name = main("a = R.matmul(x, w)", "b = R.exp(a)", result="b")
    one, two = (run(parse(text), *FUSION) for text in (by_hand, by_name))
    assert len(callees(one)) == len(callees(two)) == 1
    kinds = [len(ir.blocks(m[callees(m)[0]].body)) for m in (one, two)]
    assert kinds[0] == kinds[1]


def test_symbols_of_callees_become_the_callers_sizes(parse: Any, run: Any, callees: Any) -> None:
    """`pear` calls its rows n, the caller passes 2·n of them: one symbol is left."""
    text = f"""{PROGRAMS}
@R.function
def main(x: R.Tensor(("n", 2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
    n = T.int64()
    y = R.reshape(x, R.shape([2 * n, 8]))
    a = R.call_tir(cls.pear, (y, w), R.Tensor((2 * n, 8), "float32"))
    b = R.call_tir(cls.apple, (a,), R.Tensor((2 * n, 8), "float32"))
    return b
"""
    module = run(parse(text), *FUSION)
    func = module[callees(module)[-1]]
    symbols = {v.name for b in func.buffers for d in b.shape for v in ir.free_vars(d)}
    assert symbols == {"n"}
    x, w, _ = sample(6)
    found = bw.compile(parse(text))(x.reshape(3, 2, 8), w)
    np.testing.assert_allclose(found, np.exp(x @ w), rtol=1e-5)


def test_fused_programs_list_their_operators(parse: Any, run: Any, callees: Any) -> None:
    text = main("a = R.matmul(x, w)", "b = R.gelu(a)", "c = R.add(b, z)", result="c")
    module = run(parse(text), *FUSION)
    assert module[callees(module)[0]].attrs["op"] == "matmul+gelu+add"


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_keep_their_meaning(seed: int, parse: Any) -> None:
    """Fused and unfused compilations of the same random graph agree."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    values = ["x", "z"]
    for step in range(12):
        pick = [values[int(i)] for i in rng.integers(0, len(values), 2)]
        form = int(rng.integers(6))
        lines.append(
            f"v{step} = "
            + (
                f"R.add({pick[0]}, {pick[1]})",
                f"R.tanh({pick[0]})",
                f"R.multiply(R.tanh({pick[0]}), R.sigmoid({pick[1]}))",
                f"R.matmul({pick[0]}, w)",
                f"R.softmax({pick[0]}, axis=-1)",
                f"R.permute_dims(R.permute_dims({pick[0]}, axes=(1, 0)), axes=(1, 0))",
            )[form]
        )
        values.append(f"v{step}")
    text = main(*lines, result=f"(v11, {values[int(rng.integers(2, 13))]})")
    plain = bw.default_pipeline().without("fuse_ops", "fuse_tir")
    fused = bw.compile(parse(text))
    unfused = bw.compile(parse(text), options={"pipeline": plain})
    for rows in (1, 3, 40):
        inputs = sample(rows)
        for a, b in zip(fused(*inputs), unfused(*inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)
    x, w, z = sample(4)
    assert fused.profile(x, w, z).kernel_calls <= unfused.profile(x, w, z).kernel_calls


def test_a_concatenation_fuses_with_what_makes_and_what_uses_it(
    parse: Any, run: Any, callees: Any
) -> None:
    text = main("a = R.relu(x)", "b = R.concat(a, z, axis=0)", "c = R.exp(b)", result="c")
    module = run(parse(text), *FUSION)
    assert len(callees(module)) == 1
    for rows in (1, 6, 70):
        x, w, z = sample(rows)
        wanted = np.exp(np.concatenate([np.maximum(x, 0), z]))
        np.testing.assert_allclose(bw.compile(parse(text))(x, w, z), wanted, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_take_rows_made_in_parts(parse: Any, run: Any, callees: Any, axis: int) -> None:
    text = main("a = R.relu(x)", f"b = R.concat(a, z, axis={axis})", "c = R.softmax(b)", result="c")
    assert len(callees(run(parse(text), *FUSION))) == 1
    x, w, z = sample(9)
    e = np.exp(np.concatenate([np.maximum(x, 0), z], axis))
    found = bw.compile(parse(text))(x, w, z)
    np.testing.assert_allclose(found, e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_a_contraction_does_not_take_operands_made_in_parts(
    parse: Any, run: Any, callees: Any
) -> None:
    """Its tiles would have to tell the parts apart."""
    text = main(
        f"a = {call('pear', 'x', 'w')}",
        "l = R.slice(z, axis=1, begin=0, end=4)",
        "r = R.slice(z, axis=1, begin=4)",
        "b = R.concat(r, l, axis=1)",
        "c = R.add(a, b)",
        result="c",
    )
    assert len(callees(run(parse(text), *FUSION))) == 2
    x, w, z = sample(9)
    wanted = x @ w + np.concatenate([z[:, 4:], z[:, :4]], 1)
    np.testing.assert_allclose(bw.compile(parse(text))(x, w, z), wanted, rtol=1e-5, atol=1e-5)
