"""Deduction: the annotation of an expression from the annotations of its operands."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.unify import Binding
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.support import GraphError

# Operators of the graph level itself; the result annotation of the first group is stated.
STATED = frozenset(
    {"call_tir", "call_tir_inplace", "call_dps_library", "call_packed", "call_pure_packed"}
)


def function_info(function: ir.GraphFunction) -> ir.CallableInfo:
    """The annotation of a function used as a value."""
    params = tuple(p.info or ir.ObjectInfo() for p in function.params)
    ret = function.ret_info or function.body.info or ir.ObjectInfo()
    return ir.CallableInfo(params, ret, function.pure)


def deduce_call(
    call: ir.GraphCall, analyzer: Analyzer, module: ir.IRModule | None = None
) -> ir.Info:
    """Result annotation of a call; raises GraphError when the call is not valid."""
    if isinstance(call.op, ir.OpRef):
        return _operator(call, call.op.name, analyzer)
    if isinstance(call.op, ir.ExternFunc):
        return _stated(call)
    callee = _callee(call.op, module)
    name = getattr(call.op, "name", "function")
    if callee is None:
        return _stated(call) if call.out_info else ir.ObjectInfo()
    binding = Binding(analyzer, name)
    if callee.params is not None:
        if len(callee.params) != len(call.args):
            raise GraphError(f"{name} takes {len(callee.params)} arguments, got {len(call.args)}",
                             code="BW403")  # fmt: skip
        for param, arg in zip(callee.params, call.args, strict=True):
            binding.match(param, arg.info)
    return binding.result(callee.ret)


def _callee(op: ir.GraphExpr, module: ir.IRModule | None) -> ir.CallableInfo | None:
    if isinstance(op.info, ir.CallableInfo):
        return op.info
    if isinstance(op, ir.GraphFunction):
        return function_info(op)
    if isinstance(op, ir.GlobalVar) and module is not None and op.name in module:
        target = module[op.name]
        if isinstance(target, ir.GraphFunction):
            return function_info(target)
    return None


def _stated(call: ir.GraphCall) -> ir.Info:
    if not call.out_info:
        raise GraphError("the call does not state its result annotation", code="BW404",
                         help="pass out_sinfo=R.Tensor(...)")  # fmt: skip
    return call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)


def _operator(call: ir.GraphCall, name: str, analyzer: Analyzer) -> ir.Info:
    if name in STATED:
        return _stated(call)
    if name == "shape_of":
        info = call.args[0].tensor_info
        return ir.ShapeInfo(info.shape, -1 if info.shape is not None else info.rank)
    row = OPERATORS.get(name)
    if row is None:
        raise GraphError(f"unknown operator {name!r}", code="BW405",
                         help="operators are rows of blockwright.ops.table")  # fmt: skip
    infos = _argument_infos(call)
    return row.deduce(OpContext(name, analyzer), infos, {**row.attrs, **call.attrs})


def _argument_infos(call: ir.GraphCall) -> Sequence[ir.Info]:
    out: list[ir.Info] = []
    for position, arg in enumerate(call.args):
        if arg.info is None:
            raise GraphError(f"argument {position} has no annotation yet", code="BW406")
        out.append(arg.info)
    return out
