"""Programs lowered once for symbolic sizes, run at several: the same meaning at each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.interp import interpret
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS

N, M = ir.var("n", "int64"), ir.var("m", "int64")
Case = tuple[str, tuple[tuple[Any, ...], ...], dict[str, Any]]

CASES: list[Case] = [
    ("add", ((N, 1, 4), (M, 1)), {}),
    ("gelu", ((N, M),), {}),
    ("where", ((N, 1), (N, M), (M,)), {}),
    ("softmax", ((N, M),), {"axis": 0}),
    ("layer_norm", ((N, M), (M,), (M,)), {}),
    ("rms_norm", ((N, 3, M),), {"axes": (1, 2)}),
    ("sum", ((N, 3, M),), {"axes": (0, 2)}),
    ("mean", ((N, M),), {}),
    ("vector_norm", ((N, M),), {"axes": 1, "keepdims": True}),
    ("argmax", ((N, M),), {"axis": 0}),
    ("matmul", ((2, N, 5), (5, M)), {}),
    ("matmul", ((3, M), (N, M, 2)), {}),
    ("linear", ((N, 2, M), (4, M), (4,)), {}),
    ("attention", ((N, 4, M, 3), (N, 2, M, 3), (N, 2, M, 3), (M, M)), {"is_causal": True}),
    ("permute_dims", ((N, 3, M),), {"axes": (2, 0, 1)}),
    ("flatten", ((N, M, 3),), {"start": 1}),
    ("flip", ((N, M),), {}),
    ("pad", ((N, M),), {"pad_width": ((1, 0), (0, 2)), "pad_value": 1.5}),
    ("slice", ((N, M),), {"axis": 1, "begin": 1, "step": 2}),
    ("slice", ((N, M),), {"begin": -2, "end": 100}),
    ("concat", ((N, 2), (M, 2), (3, 2)), {}),
    ("split", ((N, M),), {"indices_or_sections": (1,), "axis": 1}),
    ("repeat", ((N, M),), {"repeats": 2, "axis": 1}),
    ("tril", ((N, M),), {}),
    ("nn.conv1d_transpose", ((N, 3, M), (3, 2, 3)), {"strides": 2, "output_padding": 1}),
    (
        "nn.conv2d_transpose",
        ((N, M, M, 4), (4, 3, 3, 2)),
        {
            "strides": 3,
            "padding": (0, 1, 1, 0),
            "groups": 2,
            "data_layout": "NHWC",
            "kernel_layout": "IHWO",
        },
    ),
    ("nn.max_pool2d", ((N, 3, M, M),), {"pool_size": 3, "strides": 2, "padding": 1}),
    (
        "nn.max_pool1d",
        ((N, 3, M),),
        {"pool_size": 3, "strides": 2, "padding": 1, "ceil_mode": True},
    ),
    (
        "nn.avg_pool2d",
        ((N, M, M, 2),),
        {
            "pool_size": 2,
            "strides": 3,
            "padding": 1,
            "ceil_mode": True,
            "layout": "NHWC",
        },
    ),
    ("nn.adaptive_avg_pool2d", ((N, 2, M, M),), {"output_size": (1, 3)}),
    ("nn.adaptive_max_pool1d", ((N, 2, M),), {"output_size": 2}),
    ("nn.batch_norm", ((N, 3, M), (3,), (3,), (3,), (3,)), {"scale": False, "epsilon": 9.0}),
    ("nn.group_norm", ((N, 4, M), (4,), (4,)), {"num_groups": 2}),
    ("nn.instance_norm", ((N, 4, M),), {}),
    ("nn.prelu", ((N, M), (M,)), {}),
    ("nn.conv1d", ((N, 2, M), (3, 2, 3)), {"padding": (1, 2), "strides": 2}),
    ("nn.conv2d", ((N, 4, M, M), (6, 2, 3, 2)), {"groups": 2, "dilation": (1, 3), "padding": 2}),
    (
        "nn.conv2d",
        ((N, M, 5, 4), (3, 3, 1, 4)),
        {
            "groups": 4,
            "padding": 1,
            "data_layout": "NHWC",
            "kernel_layout": "HWIO",
        },
    ),
    ("ones_like", ((N, M),), {}),
]


def known() -> Analyzer:
    """Both symbols are at least 1."""
    bounds = ir.Range(ir.const(1, "int64"), ir.const(1 << 20, "int64"))
    return Analyzer({N: bounds, M: bounds})


def size_of(dim: Any, sizes: dict[ir.Var, int]) -> int:
    value = ir.substitute(
        ir.as_expr(dim, ir.dtype_of("int64")),
        {symbol: ir.const(size, "int64") for symbol, size in sizes.items()},
    )
    number = ir.const_int(Analyzer().simplify(value))
    assert number is not None
    return number


def infos_of(name: str, shapes: tuple[tuple[Any, ...], ...]) -> list[ir.TensorInfo]:
    first = ir.dtype_of("bool" if name == "where" else "float32")
    dims = [tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape) for shape in shapes]
    return [ir.TensorInfo(d, ir.dtype_of("float32") if i else first) for i, d in enumerate(dims)]


@pytest.mark.parametrize(("name", "shapes", "attrs"), CASES)
def test_one_program_serves_all_sizes(
    name: str, shapes: tuple[tuple[Any, ...], ...], attrs: dict[str, Any]
) -> None:
    row = OPERATORS[name]
    attrs = {**row.attrs, **attrs}
    infos = infos_of(name, shapes)
    info = row.deduce(OpContext(name, known()), infos, attrs)
    results = info.fields if isinstance(info, ir.TupleInfo) else (info,)
    assert row.lower is not None
    func = row.lower(OpContext(name, known()), infos, attrs)
    rng = np.random.default_rng(1)
    for n, m in ((1, 1), (1, 7), (5, 2), (3, 4)):
        sizes = {N: n, M: m}
        arrays = [
            rng.standard_normal([size_of(d, sizes) for d in i.shape or ()]).astype(
                "bool" if i.dtype is ir.dtype_of("bool") else "float32"
            )
            for i in infos
        ]
        wanted = row.oracle(*arrays, **attrs)
        wanted = wanted if isinstance(wanted, list) else [wanted]
        for found, want in zip(results, wanted, strict=True):
            assert isinstance(found, ir.TensorInfo)
            assert tuple(size_of(d, sizes) for d in found.shape or ()) == np.shape(want)
        outs = [np.full_like(w, 77) for w in wanted]
        interpret(func, *arrays, *outs)
        for got, want in zip(outs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def splits(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes, ones included, whose sizes multiply to `total`."""

    def shape(cuts: list[int]) -> tuple[int, ...]:
        out, rest = [], total
        for cut in cuts:
            factor = cut if rest % cut == 0 else 1
            out.append(factor)
            rest //= factor
        return (*out, rest)

    return st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4).map(shape)


@given(splits(72), splits(72))
def test_reshape_between_any_shapes(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    row = OPERATORS["reshape"]
    assert row.lower is not None
    array = np.arange(72, dtype=np.float32).reshape(source)
    info = ir.TensorInfo(tuple(ir.const(d, "int64") for d in source), ir.dtype_of("float32"))
    func = row.lower(OpContext("reshape"), [info], {"shape": target})
    out = np.zeros(target, np.float32)
    interpret(func, array, out)
    np.testing.assert_array_equal(out, array.reshape(target))


@pytest.mark.parametrize(
    ("source", "target"),
    [((N, 6, M), (N, 2, 3, M)), ((N, M, 2, 3), (N, M * 2, 3)), ((N, M), (M, N)), ((N * M,), (N, M)),
     ((N, 4), (2, N, 2)), ((1, N, M), (N, 1, M, 1)), ((6 * N, M), (N, 3, 2 * M))],
)  # fmt: skip
def test_symbolic_reshape(source: tuple[Any, ...], target: tuple[Any, ...]) -> None:
    row = OPERATORS["reshape"]
    assert row.lower is not None
    (info,) = infos_of("reshape", (source,))
    func = row.lower(OpContext("reshape", known()), [info], {"shape": target})
    for n, m in ((1, 1), (2, 3), (5, 4)):
        sizes = {N: n, M: m}
        shape = [size_of(d, sizes) for d in source]
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        wanted = array.reshape([size_of(d, sizes) for d in target])
        out = np.zeros_like(wanted)
        interpret(func, array, out)
        np.testing.assert_array_equal(out, wanted)


def lowered(name: str, **attrs: Any) -> ir.PrimFunc:
    row = OPERATORS[name]
    assert row.lower is not None
    return row.lower(OpContext(name, known()), [], {**row.attrs, **attrs})


def test_fills_of_symbolic_size() -> None:
    func = lowered("full", shape=(N, 2), fill_value=7.0)
    for n in (1, 5):
        out = np.zeros((n, 2), np.float32)
        interpret(func, out)
        assert (out == 7.0).all()


def test_symbols_that_no_shape_binds_become_scalar_parameters() -> None:
    func = lowered("arange", end=N, step=3)
    func = func.replace(params=(*func.params, N))
    for n in (1, 5, 9):
        wanted = np.arange(0, n, 3)
        out = np.zeros_like(wanted)
        interpret(func, out, n)
        np.testing.assert_array_equal(out, wanted)
