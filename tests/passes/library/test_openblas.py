"""Matrix products that go to OpenBLAS, beside NumPy; everything else stays compiled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext, default_pipeline
from blockwright.support import GraphError, OptionError

try:
    metadata.distribution("scipy-openblas32")
    MISSING = ""
except metadata.PackageNotFoundError:
    MISSING = "scipy-openblas32 is not installed: pip install blockwright[openblas]"
needs_openblas = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ALL = {"libraries": ["openblas"]}


def graph(body: str, params: str) -> ir.GraphFunction:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return bw.from_source(f"@R.function\ndef main({params}):\n    n = T.int64()\n{lines}\n")


def lowered(function: ir.GraphFunction, *names: str, target: str = "x86-64-v3") -> Any:
    """The module after PartialLibraryLowering, and the decisions."""
    context = PassContext(bw.Target(target), {"libraries": list(names)})
    pipeline = default_pipeline().until("lower_to_libraries")
    module = pipeline(ir.IRModule({"main": function}), context)
    return module["main"].script(), context.decisions.get("lower_to_libraries", [])


MLP = graph(
    "y = R.linear(x, w, b)\nz = R.relu(y)\nu = R.matmul(z, v)\nq = R.matmul(x, s)\nreturn (u, q)",
    'x: R.Tensor(("n", 96), "float32"), w: R.Tensor((48, 96), "float32"), '
    'b: R.Tensor((48,), "float32"), v: R.Tensor((48, 32), "float32"), '
    's: R.Tensor((96,), "float32")',
)


# ------------------------------------------------------------------------------------- selection
def test_products_become_calls_and_the_rest_stays() -> None:
    text, decisions = lowered(MLP, "openblas")
    assert text.count('R.call_dps_library("openblas.gemm"') == 2
    assert "R.linear" not in text
    assert "R.add(gemm, b)" in text
    assert "trans_b=True" in text
    assert decisions[:2] == [
        "u = matmul(z, v): openblas.matmul",
        "y = linear(x, w, b): openblas.linear_bias",
    ]
    assert decisions[2].startswith("q = matmul(x, s): compiled; ")
    assert "openblas.matmul: the rank of `the parameter s` is not 2" in decisions[2]


def test_single_patterns_are_chosen_by_name() -> None:
    text, _ = lowered(MLP, "openblas.matmul")
    assert text.count("openblas.gemm") == 1
    assert "R.linear" in text
    text, decisions = lowered(MLP)
    assert "openblas" not in text
    assert decisions == []
    with pytest.raises(OptionError, match="unknown library or pattern"):
        bw.compile(MLP, options={"libraries": ["openblas.conv"]})
    with pytest.raises(OptionError, match="BW928"):
        bw.compile(MLP, options={"libraries": "openblas"})


def test_calls_print_and_parse_again() -> None:
    text, _ = lowered(MLP, "openblas")
    assert bw.from_source(text).script() == text


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return R.matmul(x, R.permute_dims(w))", 1),
        ("return R.matmul(R.astype(x, dtype='float16'), R.astype(v, dtype='float16'))", 0),
        ("return R.matmul(R.astype(x, dtype='int32'), R.astype(v, dtype='int32'))", 0),
        ("return R.matmul(R.reshape(x, (n, 2, 4)), R.reshape(t, (n, 4, 3)))", 1),
        ("return R.matmul(R.reshape(x, (n, 2, 4)), R.reshape(o, (1, 4, 3)))", 0),  # broadcasts
        ("return R.matmul(R.reshape(o, (12,)), R.reshape(o, (12,)))", 0),
    ],
)
def test_what_openblas_takes(body: str, count: int) -> None:
    function = graph(
        body,
        'x: R.Tensor(("n", 8), "float32"), w: R.Tensor((5, 8), "float32"), '
        'v: R.Tensor((8, 5), "float32"), t: R.Tensor(("n", 12), "float32"), '
        'o: R.Tensor((12, 1), "float32")',
    )
    text, _ = lowered(function, "openblas")
    assert text.count("openblas.gemm") == count
    assert text.count("permute_dims") == 0


def test_other_targets_compile_everything() -> None:
    text, decisions = lowered(MLP, "openblas", target="cuda-sm_90a")
    assert "openblas" not in text
    assert "openblas runs on CPUs" in decisions[0]


# --------------------------------------------------------------------------------------- results
@needs_openblas
def test_results_of_all_forms_and_sizes() -> None:
    """Symbolic rows (by rows and by columns), batches, both types, alpha and beta."""
    kinds = "float32", "float64"
    params = [
        f'x{k}: R.Tensor(("n", 40), "{k}"), w{k}: R.Tensor((40, 70), "{k}"), '
        f'v{k}: R.Tensor((70, 40), "{k}"), c{k}: R.Tensor(("n", 70), "{k}"), '
        f'p{k}: R.Tensor((3, "n", 40), "{k}"), q{k}: R.Tensor((3, 40, 9), "{k}")'
        for k in kinds
    ]
    body = [
        f"a{k} = R.matmul(x{k}, w{k})\nb{k} = R.linear(p{k}, v{k})\n"
        f"d{k} = R.matmul(p{k}, q{k})\n"
        f'e{k} = R.call_dps_library("openblas.gemm", (x{k}, w{k}, c{k}), '
        f'out_sinfo=R.Tensor((n, 70), "{k}"), alpha=0.5, beta=2.0)'
        for k in kinds
    ]
    names = ", ".join(f"a{k}, b{k}, d{k}, e{k}" for k in kinds)
    exe = bw.compile(graph("\n".join(body) + f"\nreturn ({names})", ", ".join(params)), options=ALL)
    assert exe.show("libraries").count('"openblas.gemm"') == 8
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 33, 1000):
        args: list[Any] = []
        expected: list[Any] = []
        for kind in kinds:
            shapes = [(n, 40), (40, 70), (70, 40), (n, 70), (3, n, 40), (3, 40, 9)]
            x, w, v, c, p, q = given = [rng.standard_normal(s).astype(kind) for s in shapes]
            args += given
            expected += [x @ w, p @ v.T, p @ q, 0.5 * (x @ w) + 2 * c]
        for got, wanted in zip(exe(*args), expected, strict=True):
            tolerance = 1e-5 if wanted.dtype == np.float32 else 1e-13
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=40 * tolerance)


@needs_openblas
def test_a_model_saves_loads_and_serves_concurrent_callers(tmp_path: Any) -> None:
    exe = bw.compile(MLP, options=ALL)
    assert exe.metadata.extra["libraries"][0]["name"] == "openblas"
    assert exe.metadata.extra["libraries"][0]["version"] == "0.3"
    exe.save(tmp_path / "mlp.bwx")
    loaded = bw.load(tmp_path / "mlp.bwx")
    rng = np.random.default_rng(1)

    def call(rows: int) -> None:
        shapes = [(rows, 96), (48, 96), (48,), (48, 32), (96,)]
        x, w, b, v, s = (rng.random(shape, np.float32) for shape in shapes)
        u, q = loaded(x, w, b, v, s)
        np.testing.assert_allclose(u, np.maximum(x @ w.T + b, 0) @ v, rtol=1e-4)
        np.testing.assert_allclose(q, x @ s, rtol=1e-4)

    with ThreadPoolExecutor(3) as callers:
        list(callers.map(call, [1, 40, 200, 3, 500, 64]))
    args = [rng.random(s, np.float32) for s in [(9, 96), (48, 96), 48, (48, 32), 96]]
    assert exe["main"].estimate(*args) > 0
    assert "shared_libraries" in exe.show("host")


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ('"openblas.gemm", (x, x)', "shapes of its tensors do not fit"),
        ('"openblas.gemm", (x,)', "two or three tensors"),
        ('"openblas.gemm", (x, w), beta=1.0', "beta needs a third tensor"),
        ('"openblas.gemm", (x, w), gamma=1.0', "has no attribute gamma"),
        ('"openblas.gemv", (x, w)', "has no function 'gemv'"),
    ],
)
def test_calls_that_openblas_does_not_take(call: str, rule: str) -> None:
    name, _, rest = call.partition(", (")
    tensors, _, attrs = rest.partition(")")
    function = graph(
        f"return R.call_dps_library({name}, ({tensors}), "
        f'out_sinfo=R.Tensor((n, 5), "float32"){attrs})',
        'x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 5), "float32")',
    )
    with pytest.raises(GraphError, match=rule) as caught:
        bw.compile(function)
    assert caught.value.code == "BW424"
