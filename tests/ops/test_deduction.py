"""Deduction of symbolic shapes by the operator rows, and what they say when a call is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.ops.implementation import ATTRIBUTE
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS, row
from blockwright.support import GraphError

B, S, N, M = (ir.var(name, "int64") for name in "bsnm")


def tensor(*shape: Any, dtype: str = "float32") -> ir.TensorInfo:
    return ir.TensorInfo(
        tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape), ir.dtype_of(dtype)
    )


def known() -> Analyzer:
    """b in [1, 64], s in [2, 512], n and m in [1, 1000)."""
    limits = {B: (1, 64), S: (2, 512), N: (1, 999), M: (1, 999)}
    return Analyzer(
        {
            symbol: ir.Range(ir.const(low, "int64"), ir.const(high - low + 1, "int64"))
            for symbol, (low, high) in limits.items()
        }
    )


def deduce(name: str, *infos: ir.Info, **attrs: Any) -> ir.Info:
    found = OPERATORS[name]
    return found.deduce(OpContext(name, known(), infos), infos, {**found.attrs, **attrs})


def assert_shape(info: ir.Info, *shape: Any, dtype: str = "float32") -> None:
    wanted = tensor(*shape, dtype=dtype)
    assert isinstance(info, ir.TensorInfo)
    assert info.dtype is wanted.dtype
    assert info.shape is not None
    assert wanted.shape is not None
    assert len(info.shape) == len(wanted.shape), info
    for have, want in zip(info.shape, wanted.shape, strict=True):
        assert known().prove_equal(have, want), f"{have!r} is not {want!r}"


def error_of(name: str, *infos: ir.Info, **attrs: Any) -> str:
    with pytest.raises(GraphError) as caught:
        deduce(name, *infos, **attrs)
    assert caught.value.code == "BW401"
    return str(caught.value)


# ---------------------------------------------------------------------------------- elementwise
def test_broadcast_aligns_at_the_last_dimension() -> None:
    assert_shape(deduce("add", tensor(B, S, 8), tensor(8)), B, S, 8)
    assert_shape(deduce("multiply", tensor(1, S, 1), tensor(B, 1, 4)), B, S, 4)
    assert_shape(deduce("less", tensor(S), tensor(B, 1)), B, S, dtype="bool")


def test_equal_dimensions_need_not_be_written_alike() -> None:
    assert_shape(deduce("add", tensor(N + M), tensor(M + N)), N + M)


def test_dimensions_that_may_differ_are_refused() -> None:
    text = error_of("add", tensor(N), tensor(M))
    assert "dimension 0 does not broadcast" in text
    assert "match_cast" in text


def test_unknown_shapes_give_the_rank() -> None:
    half_known = ir.TensorInfo(None, ir.dtype_of("float32"), 3)
    info = deduce("add", half_known, tensor(S, 8))
    assert isinstance(info, ir.TensorInfo)
    assert info.shape is None
    assert info.rank == 3
    nothing = deduce("exp", ir.TensorInfo(None, ir.dtype_of("float32")))
    assert isinstance(nothing, ir.TensorInfo)
    assert nothing.rank == -1


@pytest.mark.parametrize(
    ("name", "infos", "attrs", "says"),
    [
        ("add", (tensor(3), tensor(3, dtype="int32")), {}, "float32 and int32 differ"),
        ("add", (tensor(3),), {}, "takes 2 tensor arguments, got 1"),
        ("add", (tensor(3), tensor(3)), {"scalar": 1.0}, "takes 1 tensor arguments, got 2"),
        ("add", (tensor(3, dtype="int32"),), {"scalar": 0.5}, "scalar 0.5 does not fit int32"),
        ("add", (tensor(3, dtype="uint8"),), {"scalar": -1}, "out of range for uint8"),
        ("divide", (tensor(3, dtype="int32"),), {"scalar": 2}, "needs a floating-point"),
        ("exp", (tensor(3, dtype="int64"),), {}, "convert the argument with astype first"),
        ("exp", (ir.ShapeInfo(None, 2),), {}, "argument 0 must be a tensor"),
        ("sum", (tensor(3, dtype="bool"),), {}, "needs a number type, got bool"),
        ("sum", (tensor(3, 4),), {"axes": (0, -2)}, "contain one axis twice"),
        ("sum", (tensor(3, 4),), {"axes": 2}, "axis 2 is out of range for rank 2"),
        ("softmax", (tensor(3, 4),), {"axis": 2}, "axis 2 is out of range"),
        ("layer_norm", (tensor(3, 4),), {"axes": 0}, "are not the last ones of rank 2"),
        ("layer_norm", (tensor(B, 8), tensor(7)), {}, "argument 1 does not fit axis 1"),
        ("matmul", (tensor(3, 4), tensor(5, 6)), {}, "the inner dimensions differ"),
        ("linear", (tensor(B, 4), tensor(8, 5)), {}, "x and weight disagree"),
        ("linear", (tensor(B, 5), tensor(8, 5), tensor(5)), {}, "bias and weight disagree"),
        ("embedding", (tensor(9, 4), tensor(B)), {}, "needs an integer type, got float32"),
        ("permute_dims", (tensor(3, 4),), {"axes": (0, 0)}, "not a permutation of 2 axes"),
        ("squeeze", (tensor(B, S),), {"axis": 0}, "not 1"),
        ("reshape", (tensor(3, 4),), {"shape": (5, -1)}, "-1 has no solution"),
        ("reshape", (tensor(B, 4),), {"shape": (B, 5)}, "the number of elements must be the same"),
        ("reshape", (tensor(B, 4),), {"shape": (-1, -1)}, "more than one dimension is -1"),
        ("reshape", (tensor(B, 4),), {}, "one shape argument"),
        ("broadcast_to", (tensor(3),), {"shape": (4,)}, "does not broadcast"),
        ("concat", (tensor(3, 4), tensor(3, 5)), {}, "dimension 1 differs"),
        ("split", (tensor(7),), {"indices_or_sections": 2}, "2 equal parts"),
        ("slice", (tensor(7),), {"step": -1}, "use flip"),
        ("attention", (*(tensor(B, 2, S, 8),) * 3, tensor(S, dtype="int8")), {}, "must be bool"),
        ("attention", (tensor(B, 3, S, 8), *(tensor(B, 2, S, 8),) * 2), {}, "evenly"),
        ("attention", (tensor(B, S, 8),) * 3, {}, "has rank 3"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong(
    name: str, infos: tuple[ir.Info, ...], attrs: dict[str, Any], says: str
) -> None:
    text = error_of(name, *infos, **attrs)
    assert text.startswith(f"error[BW401]: {name}: ")
    assert says in text


# ------------------------------------------------------------------------------------- shapes
@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        ((B, S, 384), (B, S, -1, 32), (B, S, 12, 32)),
        ((B, S, 12, 32), (B, S, -1), (B, S, 384)),
        ((B, 12, S, 32), (B, -1, S, 32), (B, 12, S, 32)),
        ((B, S, 8), (-1, 8), (B * S, 8)),
        ((B * S, 8), (B, S, 8), (B, S, 8)),
        ((B, S), (-1,), (B * S,)),
        ((B * S,), (B, -1), (B, S)),
        ((N, 4), (4, N), (4, N)),
        ((N + 1, 6), (N + 1, 3, -1), (N + 1, 3, 2)),
        ((2 * N, 3), (N, -1), (N, 6)),
        ((), (1, -1), (1, 1)),
        ((0, N), (N, 0), (N, 0)),
    ],
)
def test_reshape(shape: tuple[Any, ...], wanted: tuple[Any, ...], result: tuple[Any, ...]) -> None:
    assert_shape(deduce("reshape", tensor(*shape), shape=wanted), *result)


def test_reshape_takes_the_shape_as_an_argument_too() -> None:
    dims = tensor(B, -1).shape
    assert_shape(deduce("reshape", tensor(B, 2, 3), ir.ShapeInfo(dims)), B, 6)
    rank_only = deduce("reshape", tensor(B, 2, 3), ir.ShapeInfo(None, 2))
    assert isinstance(rank_only, ir.TensorInfo)
    assert rank_only.shape is None
    assert rank_only.rank == 2


def test_slices_keep_symbolic_ends_that_surely_fit() -> None:
    assert_shape(deduce("slice", tensor(1, 512), axis=1, begin=0, end=S), 1, S)
    assert_shape(deduce("slice", tensor(B, S), axis=1, begin=1), B, S - 1)
    assert_shape(deduce("slice", tensor(S), begin=-1), 1)
    assert_shape(deduce("slice", tensor(10), begin=2, end=100, step=3), 3)
    assert_shape(deduce("slice", tensor(100), end=S), ir.minimum(S, 100))


def test_a_tensor_has_no_negative_size() -> None:
    """Only the operand tells that n >= m: every second element of it is half of it."""
    assert_shape(deduce("slice", tensor((N - M) * 2), axis=0, begin=0, end=None, step=2), N - M)
    assert_shape(deduce("slice", tensor(N - M, 4), axis=0, begin=0, end=N - M, step=1), N - M, 4)


def test_joining_and_splitting() -> None:
    assert_shape(deduce("concat", tensor(N, 4), tensor(M, 4), tensor(3, 4)), N + M + 3, 4)
    whole = deduce("split", tensor(B, 12 * N), indices_or_sections=3, axis=1)
    assert isinstance(whole, ir.TupleInfo)
    for field in whole.fields:
        assert_shape(field, B, 4 * N)
    parts = deduce("split", tensor(S), indices_or_sections=(2,))
    assert isinstance(parts, ir.TupleInfo)
    assert_shape(parts.fields[0], 2)
    assert_shape(parts.fields[1], S - 2)


def test_shape_operators() -> None:
    assert_shape(deduce("flatten", tensor(B, S, 4), start=1), B, S * 4)
    assert_shape(deduce("expand_dims", tensor(B, S), axis=(1, -1)), B, 1, S, 1)
    assert_shape(deduce("squeeze", tensor(1, S, 1)), S)
    assert_shape(deduce("permute_dims", tensor(B, S, 12, 32), axes=(0, 2, 1, 3)), B, 12, S, 32)
    assert_shape(deduce("broadcast_to", tensor(B, 1, S), shape=(-1, N, -1)), B, N, S)
    assert_shape(deduce("pad", tensor(S), pad_width=((1, N),)), S + 1 + N)
    assert_shape(deduce("repeat", tensor(S), repeats=2), 2 * S)
    assert_shape(deduce("arange", end=S), S, dtype="int64")
    assert_shape(deduce("arange", begin=1, end=S, step=2), S // 2, dtype="int64")
    assert_shape(deduce("full", shape=(B, 2), fill_value=1), B, 2)
    assert_shape(deduce("zeros_like", tensor(B, 2), dtype="int8"), B, 2, dtype="int8")


def test_contractions_and_lookups() -> None:
    assert_shape(deduce("matmul", tensor(B, S, 8), tensor(8, N)), B, S, N)
    assert_shape(deduce("matmul", tensor(B, 1, S, 8), tensor(12, 8, S)), B, 12, S, S)
    assert_shape(deduce("linear", tensor(B, S, 384), tensor(1536, 384), tensor(1536)), B, S, 1536)
    assert_shape(deduce("embedding", tensor(99, 8), tensor(B, S, dtype="int64")), B, S, 8)
    assert_shape(deduce("take", tensor(N, 9, 4), tensor(B, dtype="int32"), axis=1), N, B, 4)
    rows, columns = tensor(B, 1, 1, 1, dtype="int64"), tensor(1, 1, 1, S, dtype="int64")
    mask = tensor(B, S, dtype="bool")
    assert_shape(deduce("index", mask, rows, columns), B, 1, 1, S, dtype="bool")
    q, kv, allowed = tensor(B, 12, S, 32), tensor(B, 4, N, 32), tensor(B, 1, S, N, dtype="bool")
    assert_shape(deduce("attention", q, kv, kv, allowed), B, 12, S, 32)


def test_reductions() -> None:
    assert_shape(deduce("sum", tensor(B, S, 384), axes=(1,)), B, 384)
    assert_shape(deduce("vector_norm", tensor(B, 384), axes=(1,), keepdims=True), B, 1)
    assert_shape(deduce("mean", tensor(B, S)))
    assert_shape(deduce("argmax", tensor(B, S), axis=-1), B, dtype="int64")
    assert_shape(deduce("sum", tensor(B, dtype="bool"), axes=0, dtype="int64"), dtype="int64")


# ------------------------------------------------------------------------------------ programs
def lowered(name: str, *infos: ir.TensorInfo, **attrs: Any) -> ir.PrimFunc:
    found = OPERATORS[name]
    assert found.lower is not None
    return found.lower(OpContext(name, known(), infos), infos, {**found.attrs, **attrs})


def block_names(func: ir.PrimFunc) -> list[str]:
    return [block.name for block in ir.blocks(func.body) if block.name != "root"]


def test_a_linear_layer_is_one_reduction_and_one_addition() -> None:
    func = lowered("linear", tensor(B, S, 8), tensor(4, 8), tensor(4))
    assert block_names(func) == ["product", "out"]
    kinds = [it.iter_type.value for it in ir.blocks(func.body)[1].iter_vars]
    assert kinds == ["S", "S", "S", "R"]
    assert block_names(lowered("linear", tensor(B, 8), tensor(4, 8))) == ["out"]


def test_attention_blocks() -> None:
    q = tensor(B, 2, S, 8)
    func = lowered("attention", q, q, q, tensor(B, 1, S, S, dtype="bool"))
    assert block_names(func) == ["S", "S_masked", "M", "P", "L", "O", "out"]


def test_reshapes_split_and_join_only_the_dimensions_that_change() -> None:
    text = lowered("reshape", tensor(B, S, 384), shape=(B, S, 12, 32)).script()
    assert "A[v_i0, v_i1, v_i2 * 32 + v_i3]" in text
    text = lowered("reshape", tensor(B, S, 12, 32), shape=(B, S, 384)).script()
    assert "A[v_i0, v_i1, v_i2 // 32, v_i2 % 32]" in text
    text = lowered("reshape", tensor(B, S), shape=(B, 1, S, 1)).script()
    assert "A[v_i0, v_i2]" in text


def test_narrow_floats_are_summed_in_float32() -> None:
    half = tensor(B, 8, dtype="float16")
    func = lowered("sum", half, axes=1)
    assert [b.dtype.name for b in func.root.alloc_buffers] == ["float32"]
    assert func.buffers[-1].dtype.name == "float16"


# --------------------------------------------------------------------------------------- table
def test_the_table_is_sorted_and_complete() -> None:
    assert list(OPERATORS) == sorted(OPERATORS)
    assert row("add") is OPERATORS["add"]
    with pytest.raises(GraphError) as caught:
        row("no_such")
    assert caught.value.code == "BW405"


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_row_explains_itself(name: str) -> None:
    found = OPERATORS[name]
    assert found.doc.endswith(".")
    assert found.samples
    for sample in found.samples:
        assert set(sample.attrs) - {ATTRIBUTE} <= set(found.attrs)
        assert sample.tolerance <= 4 or sample.why


def test_a_front_end_name_belongs_to_one_operator() -> None:
    """ONNX has one name for convolutions of every rank; no name means two different operators."""
    for field in ("torch", "onnx"):
        rows = [
            (name, re.sub(r"[123]d", "", found.name))
            for found in OPERATORS.values()
            for name in getattr(found, field)
        ]
        families = dict(rows)
        assert [pair for pair in rows if families[pair[0]] != pair[1]] == []
