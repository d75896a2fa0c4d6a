"""Well-formedness of graph functions: every problem is reported, with its code."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder, check_graph, shape_value
from blockwright.support import ValidationError

F32 = ir.dtype_of("float32")
N = ir.var("n", "int64")


def tensor(*shape: ir.Expr | int) -> ir.TensorInfo:
    return ir.TensorInfo(tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape), F32)


def variable(name: str) -> ir.GraphVar:
    return ir.GraphVar(name, True, info=tensor(N))


def function(
    params: tuple[ir.GraphVar, ...],
    bindings: tuple[ir.Binding, ...],
    result: ir.GraphExpr,
    dataflow: bool = True,
) -> ir.GraphFunction:
    body = ir.SeqExpr((ir.BindingBlock(bindings, dataflow),), result)
    return ir.GraphFunction(params, body, attrs={"global_symbol": "main"})


def call(name: str, *args: ir.GraphExpr) -> ir.GraphCall:
    return ir.GraphCall(ir.OpRef(name), args, info=tensor(N))


def codes(func: ir.GraphFunction, module: ir.IRModule | None = None) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        check_graph(func, module)
    return [item.code for item in caught.value.diagnostics]


X, Y, Z = variable("x"), variable("y"), variable("z")


def test_what_the_builder_makes_is_well_formed() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor(N, 4))
    check_graph(b.finish("main", b.op("reshape", x, shape_value([N * 4]))))


def test_values_are_bound_before_they_are_used() -> None:
    assert codes(function((X,), (ir.VarBinding(Y, call("exp", Z)),), Y)) == ["BW225"]
    assert codes(function((X,), (), Y)) == ["BW225"]


def test_values_are_bound_once() -> None:
    twice = (ir.VarBinding(Y, call("exp", X)), ir.VarBinding(Y, call("exp", X)))
    assert codes(function((X,), twice, Y)) == ["BW224"]


def test_parameters_are_annotated() -> None:
    bare = ir.GraphVar("x")
    assert codes(function((bare,), (), bare)) == ["BW221"]


def test_symbols_have_different_names() -> None:
    other = ir.GraphVar("w", info=tensor(ir.var("n", "int64")))
    assert codes(function((X, other), (), X)) == ["BW222"]


def test_shapes_use_bound_symbols() -> None:
    m = ir.var("m", "int64")
    reshaped = call("reshape", X, shape_value([m]))
    assert codes(function((X,), (ir.VarBinding(Y, reshaped),), Y)) == ["BW226"]
    bound = ir.MatchCast(Z, X, tensor(m))
    check_graph(function((X,), (bound, ir.VarBinding(Y, reshaped)), Y))


def test_dataflow_blocks_hold_no_control_flow() -> None:
    flag = ir.GraphVar("flag", info=ir.TensorInfo((), ir.dtype_of("bool")))
    branch = ir.SeqExpr((), X)
    binding = ir.VarBinding(Y, ir.If(flag, branch, branch))
    assert codes(function((X, flag), (binding,), Y)) == ["BW223"]
    check_graph(function((X, flag), (binding,), Y, dataflow=False))


def test_operators_and_functions_exist() -> None:
    assert codes(function((X,), (ir.VarBinding(Y, call("exq", X)),), Y)) == ["BW405"]
    missing = ir.GraphCall(ir.GlobalVar("f"), (X,), info=tensor(N))
    func = function((X,), (ir.VarBinding(Y, missing),), Y)
    assert codes(func, ir.IRModule({"main": func})) == ["BW205"]
    check_graph(func)  # without a module nothing is known about its functions


def test_all_problems_are_reported_at_once() -> None:
    bindings = (
        ir.VarBinding(Y, call("exq", X)),
        ir.VarBinding(Y, call("exp", Z)),
        ir.VarBinding(variable("v"), ir.TupleExpr((Z, ir.TupleGetItem(Y, 0)))),
    )
    assert codes(function((X,), bindings, Y)) == ["BW405", "BW225", "BW224", "BW225"]


def test_parameters_have_different_names() -> None:
    other = variable("x")
    assert codes(function((X, other), (), X)) == ["BW253"]
