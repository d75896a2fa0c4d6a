"""Calls of functions: symbols of the signature are matched, the result is in the caller's symbols.

The examples follow the Relax paper: a function whose signature speaks of (n, m) is called with
other dimensions, and where the caller knows less the result is known less, never wrongly.
"""

from __future__ import annotations

from typing import Any

import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import GraphBuilder, deduce_call, function_info
from blockwright.support import GraphError

F32 = ir.dtype_of("float32")
N, M, K = (ir.var(name, "int64") for name in "nmk")


def dims(*values: Any) -> tuple[ir.Expr, ...]:
    return tuple(ir.as_expr(v, ir.dtype_of("int64")) for v in values)


def tensor(*shape: Any) -> ir.TensorInfo:
    return ir.TensorInfo(dims(*shape), F32)


def call(params: tuple[ir.Info, ...], ret: ir.Info, *args: ir.Info | None) -> ir.Info:
    """Result of calling a function of this signature with values so annotated."""
    callee = ir.GraphVar("f", info=ir.CallableInfo(params, ret))
    values = tuple(ir.GraphVar(f"x{i}", info=a) for i, a in enumerate(args))
    return deduce_call(ir.GraphCall(callee, values), Analyzer())


def assert_same(info: ir.Info, wanted: ir.Info) -> None:
    assert ir.structural_equal(info, wanted), f"{info!r} is not {wanted!r}"


def test_symbols_take_the_dimensions_of_the_arguments() -> None:
    signature = ((tensor(N, 4),), tensor(N * 4))
    assert_same(call(*signature, tensor(K, 4)), tensor(K * 4))
    assert_same(call(*signature, tensor(10, 4)), tensor(40))


def test_a_symbol_may_stand_for_an_expression() -> None:
    got = call((tensor(N, 4),), tensor(N * 4), tensor(N + 1, 4))
    assert isinstance(got, ir.TensorInfo)
    assert got.shape is not None
    assert Analyzer().prove_equal(got.shape[0], (N + 1) * 4)


def test_shape_arguments_bind_symbols() -> None:
    params = (ir.ShapeInfo(dims(N, M)),)
    assert_same(call(params, tensor(N * M), ir.ShapeInfo(dims(3, K))), tensor(K * 3))


def test_a_less_known_argument_gives_a_coarser_result() -> None:
    got = call((tensor(N, 4),), tensor(N * 4), ir.TensorInfo(None, F32, 2))
    assert isinstance(got, ir.TensorInfo)
    assert got.shape is None
    assert got.rank == 1
    assert got.dtype is F32
    shape = call((ir.ObjectInfo(),), ir.ShapeInfo(dims(N, 2)), tensor(3))
    assert isinstance(shape, ir.ShapeInfo)
    assert shape.values is None
    assert shape.ndim == 2


def test_one_known_argument_is_enough_to_bind_a_symbol() -> None:
    got = call((tensor(N, 4), tensor(N)), tensor(N), ir.TensorInfo(None, F32, 2), tensor(7))
    assert_same(got, tensor(7))


def test_tuples_are_matched_field_by_field() -> None:
    pair = ir.TupleInfo((tensor(N), tensor(M)))
    got = call(
        (pair,), ir.TupleInfo((tensor(M), tensor(N + M))), ir.TupleInfo((tensor(2), tensor(K)))
    )
    assert_same(got, ir.TupleInfo((tensor(K), tensor(K + 2))))


def test_a_primitive_value_binds_its_symbol() -> None:
    i64 = ir.dtype_of("int64")
    got = call((ir.PrimInfo(i64, N),), tensor(N), ir.PrimInfo(i64, ir.const(5, i64)))
    assert_same(got, tensor(5))


@pytest.mark.parametrize(
    ("arg", "says"),
    [
        (tensor(3, 5), "dimension 5 cannot be 4"),
        (tensor(3), "expected rank 2, got rank 1"),
        (ir.TensorInfo(dims(3, 4), ir.dtype_of("int32")), "expected float32, got int32"),
        (ir.ShapeInfo(dims(3, 4)), "expected a tensor"),
    ],
)
def test_arguments_that_cannot_fit_are_refused(arg: ir.Info, says: str) -> None:
    with pytest.raises(GraphError) as caught:
        call((tensor(N, 4),), tensor(N), arg)
    assert caught.value.code == "BW402"
    assert says in str(caught.value)


def test_two_arguments_that_disagree_on_a_symbol_are_refused() -> None:
    with pytest.raises(GraphError, match="cannot be"):
        call((tensor(N), tensor(N)), tensor(N), tensor(3), tensor(4))


def test_derived_dimensions_are_checked_where_they_can_be() -> None:
    signature = ((tensor(N), tensor(N * 2)), tensor(N))
    assert_same(call(*signature, tensor(3), tensor(6)), tensor(3))
    with pytest.raises(GraphError, match="dimension 5 cannot be 6"):
        call(*signature, tensor(3), tensor(5))


def test_the_number_of_arguments_must_agree() -> None:
    with pytest.raises(GraphError) as caught:
        call((tensor(N),), tensor(N), tensor(3), tensor(3))
    assert caught.value.code == "BW403"


def test_functions_of_the_module_are_called_by_name() -> None:
    inner = GraphBuilder()
    x = inner.param("x", tensor(N, 4))
    sub = inner.finish("sub", inner.op("flatten", x))
    assert_same(function_info(sub).ret, tensor(N * 4))

    module = ir.IRModule({"sub": sub})
    b = GraphBuilder(module=module)
    y = b.param("y", tensor(K, 4))
    out = b.emit(ir.GraphCall(ir.GlobalVar("sub"), (y,)))
    assert_same(out.tensor_info, tensor(K * 4))


def test_external_calls_state_their_result() -> None:
    x = ir.GraphVar("x", info=tensor(3))
    stated = ir.GraphCall(ir.ExternFunc("lib.f"), (x,), out_info=(tensor(5),))
    assert_same(deduce_call(stated, Analyzer()), tensor(5))
    several = ir.GraphCall(
        ir.OpRef("call_packed"), (ir.ExternFunc("f"),), out_info=(tensor(5), tensor(6))
    )
    assert isinstance(deduce_call(several, Analyzer()), ir.TupleInfo)
    with pytest.raises(GraphError) as caught:
        deduce_call(ir.GraphCall(ir.ExternFunc("lib.f"), (x,)), Analyzer())
    assert caught.value.code == "BW404"


def test_shape_of_gives_the_shape() -> None:
    x = ir.GraphVar("x", info=tensor(N, 4))
    info = deduce_call(ir.GraphCall(ir.OpRef("shape_of"), (x,)), Analyzer())
    assert isinstance(info, ir.ShapeInfo)
    assert info.values is not None
    assert info.values[0] is N


def test_an_argument_without_annotation_is_an_error() -> None:
    with pytest.raises(GraphError) as caught:
        deduce_call(ir.GraphCall(ir.OpRef("exp"), (ir.GraphVar("x"),)), Analyzer())
    assert caught.value.code == "BW406"
