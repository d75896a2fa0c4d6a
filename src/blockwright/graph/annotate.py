"""Attach deduced annotations to the variables and values of a graph function.

Before:  lv = R.exp(x)                              # x: R.Tensor((n, 4), "float32")
After:   lv: R.Tensor((n, 4), "float32") = R.exp(x)
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.graph.builder import constant
from blockwright.graph.check_annotations import Deduced
from blockwright.support import GraphError


def annotate(function: ir.GraphFunction, module: ir.IRModule | None = None) -> ir.GraphFunction:
    """The function with a deduced annotation on every variable, and on the value it is bound to.

    A stated annotation is kept unless the deduced one is more precise. Returns the function itself
    if nothing changes.

    Raises: GraphError listing invalid calls, and annotations that deduction does not imply.
    """
    deduced = Deduced(function, module)
    if deduced.problems:
        raise GraphError.collect(deduced.problems)
    result = _Annotate(deduced.infos)(function)
    assert isinstance(result, ir.GraphFunction)
    return result


class _Annotate(ir.Mutator):
    def __init__(self, infos: dict[ir.GraphVar, ir.Info | None]) -> None:
        super().__init__()
        self.infos = infos

    def rewrite_GraphVar(self, node: ir.GraphVar) -> ir.GraphVar:
        info = self.infos.get(node)
        return node if info is None or info is node.info else node.replace(info=info)

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node if node.info is not None else node.replace(info=constant(node.data).info)

    def rewrite_ShapeExpr(self, node: ir.ShapeExpr) -> ir.ShapeExpr:
        if node.info is not None:
            return node
        return node.replace(info=ir.ShapeInfo(node.values, len(node.values)))

    def rewrite_TupleExpr(self, node: ir.TupleExpr) -> ir.TupleExpr:
        node = self.descend(node)
        infos = tuple(field.info for field in node.fields)
        known = node.info.fields if isinstance(node.info, ir.TupleInfo) else ()
        if len(known) == len(infos) and all(a is b for a, b in zip(known, infos, strict=True)):
            return node
        return node.replace(info=ir.TupleInfo(tuple(i or ir.ObjectInfo() for i in infos)))

    def rewrite_VarBinding(self, node: ir.VarBinding) -> Any:
        node = self.descend(node)
        info = node.var.info
        if info is None or node.value.info is info:
            return node
        if isinstance(node.value, (ir.GraphCall, ir.TupleGetItem, ir.If)):
            return node.replace(value=node.value.replace(info=info))
        return node
