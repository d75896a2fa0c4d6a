"""Building graph functions one binding at a time."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.graph import (
    GraphBuilder,
    check_graph,
    constant,
    function_analyzer,
    function_info,
    function_symbols,
    shape_value,
)
from blockwright.support import GraphError

F32 = ir.dtype_of("float32")


def tensor(*shape: ir.Expr | int) -> ir.TensorInfo:
    return ir.TensorInfo(tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape), F32)


def test_annotations_are_deduced_as_bindings_are_made() -> None:
    n = ir.var("n", "int64")
    b = GraphBuilder()
    x = b.param("x", tensor(n, 4))
    y = b.op("add", x, np.ones(4, np.float32))
    func = b.finish("main", b.op("sum", y, axes=1))

    assert func.name == "main"
    assert [v.var.name for v in func.bindings if isinstance(v, ir.VarBinding)] == ["add", "sum"]
    assert isinstance(func.ret_info, ir.TensorInfo)
    assert func.ret_info.shape is not None
    assert func.ret_info.shape[0] is n
    check_graph(func)


def test_names_are_made_unique_and_can_be_chosen() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor(3))
    names = [b.op("exp", x).name, b.op("exp", x).name, b.op("exp", x, bind="y").name]
    assert names == ["exp", "exp1", "y"]


def test_declared_bounds_of_symbols_are_known_while_building() -> None:
    s = ir.var("s", "int64")
    attrs = {"tir_var_lower_bound": {"s": 2}, "tir_var_upper_bound": {"s": 512}}
    b = GraphBuilder(attrs)
    ids = b.param("ids", tensor(s))
    table = b.param("table", tensor(512))
    head = b.op("slice", table, end=s)
    assert head.tensor_info.shape is not None
    assert head.tensor_info.shape[0] is s
    func = b.finish("main", b.op("add", ids, head))
    assert function_analyzer(func).const_bounds(s) == (2, 512)


def test_symbols_are_listed_once_in_order() -> None:
    n, m = ir.var("n", "int64"), ir.var("m", "int64")
    b = GraphBuilder()
    x = b.param("x", tensor(n, m))
    b.param("y", tensor(m, n))
    assert [v.name for v in function_symbols(b.finish("main", x))] == ["n", "m"]


def test_results_can_be_tuples() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor(6))
    func = b.finish("main", ir.TupleExpr((x, b.op("negative", x))))
    assert isinstance(func.ret_info, ir.TupleInfo)
    assert len(func.ret_info.fields) == 2
    assert isinstance(function_info(func).ret, ir.TupleInfo)


def test_match_cast_introduces_symbols() -> None:
    m = ir.var("m", "int64")
    b = GraphBuilder()
    x = b.param("x", ir.TensorInfo(None, F32, 1))
    y = b.match_cast(x, tensor(m))
    func = b.finish("main", b.op("reshape", y, shape_value([m, 1])))
    check_graph(func)
    assert isinstance(func.ret_info, ir.TensorInfo)
    assert func.ret_info.shape is not None
    assert func.ret_info.shape[0] is m


def test_wrong_calls_fail_when_they_are_made() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor(3))
    with pytest.raises(GraphError) as caught:
        b.op("no_such_operator", x)
    assert caught.value.code == "BW405"
    with pytest.raises(GraphError, match="BW401"):
        b.op("add", x, np.ones(4, np.float32))


def test_constants_carry_their_annotation() -> None:
    value = constant(np.zeros((2, 3), np.int8), "w")
    assert value.name == "w"
    assert value.tensor_info.dtype is ir.dtype_of("int8")
    assert [ir.const_int(d) for d in value.tensor_info.shape or ()] == [2, 3]


def test_axes_that_may_have_one_element() -> None:
    """Sizes of parameters, their sums and products are compared; smaller ones may be repeated."""
    b = GraphBuilder(unequal="broadcast")
    n, m, one = ir.var("n", "int64"), ir.var("m", "int64"), ir.const(1, "int64")
    b.know([n, m])
    even = ir.mul(ir.floordiv(n, ir.const(2, "int64")), ir.const(2, "int64"))
    for size in (n, ir.add(n, m), ir.mul(n, m), even, one):
        assert not b.may_repeat(size)
    for size in (ir.sub(n, one), ir.minimum(n, one), ir.floordiv(n, ir.const(2, "int64"))):
        assert b.may_repeat(size)
        assert not GraphBuilder(unequal="checked").may_repeat(size)
    assert b.is_short(ir.minimum(n, one))
    assert not b.is_short(ir.sub(n, one))


def test_a_constant_is_an_array() -> None:
    assert ir.structural_equal(constant(np.float32(2)), constant(np.array(2, "float32")))
    with pytest.raises(GraphError, match="no element type") as caught:
        constant(3.0)  # type: ignore[arg-type]  # what is tested
    assert caught.value.code == "BW401"
