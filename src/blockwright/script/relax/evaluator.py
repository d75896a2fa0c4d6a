"""Evaluate expressions of the `R` dialect."""

from __future__ import annotations

import ast
from typing import Any

from blockwright import ir
from blockwright.ir import Expr, GraphCall, GraphExpr, OpRef, TensorInfo
from blockwright.script.core import Evaluator, ParseProblem
from blockwright.script.relax.values import OpName, as_graph, const, graph_call
from blockwright.script.tir.evaluator import FunctionRef
from blockwright.script.tir.macro import Macro
from blockwright.support import ScriptError
from blockwright.support.kinds import is_huge

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
    ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.Pow: "power", ast.MatMult: "matmul",
    ast.Eq: "equal", ast.NotEq: "not_equal", ast.Lt: "less", ast.LtE: "less_equal",
    ast.Gt: "greater", ast.GtE: "greater_equal", ast.USub: "negative",
    ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor",
}  # fmt: skip


class DataflowLocal:
    """Marks, after a dataflow block, a name of the block that `R.output` does not list."""


class RelaxEvaluator(Evaluator):
    """Operators on graph values become operator calls; `cls.f` is a function of the module."""

    def is_ir(self, value: Any) -> bool:
        return isinstance(value, (Expr, GraphExpr))

    def eval_Name(self, node: ast.Name) -> Any:
        value = super().eval_Name(node)
        if isinstance(value, DataflowLocal):
            raise ParseProblem(
                "BW102", f"{node.id!r} is local to its dataflow block", node, "list it in R.output"
            )
        return self._global(value, node)

    def _global(self, value: Any, node: ast.AST) -> Any:
        """Convert a reference to a function of the module to a `GlobalVar`."""
        if isinstance(value, FunctionRef):
            return ir.GlobalVar(value.name, span=self.span(node))
        return value

    def attribute(self, value: Any, name: str, node: ast.Attribute) -> Any:
        return self._global(super().attribute(value, name, node), node)

    def subscript(self, value: Any, index: Any, node: ast.Subscript) -> Any:
        if not isinstance(value, GraphExpr):
            return self._global(value[index], node)
        if not isinstance(index, int) or isinstance(value.info, TensorInfo):
            raise ScriptError(
                "only tuples can be subscripted, with a constant",
                code="BW107",
                help="use R.take or R.slice for elements of tensors",
            )
        if is_huge(index):
            raise ScriptError("the index of a tuple does not fit 64 bits", code="BW107")
        return ir.TupleGetItem(value, index, span=self.span(node))

    def binary(self, op: ast.operator, a: Any, b: Any, node: ast.BinOp) -> Any:
        if isinstance(a, GraphExpr) or isinstance(b, GraphExpr):
            return self._operator(op, a, b, node)
        return super().binary(op, a, b, node)

    def compare(self, op: ast.cmpop, a: Any, b: Any, node: ast.Compare) -> Any:
        if isinstance(a, GraphExpr) or isinstance(b, GraphExpr):
            return self._operator(op, a, b, node)
        return super().compare(op, a, b, node)

    def _operator(self, op: ast.AST, a: Any, b: Any, node: ast.AST) -> GraphCall:
        name = _OPERATORS.get(type(op))
        if name is None:
            raise ParseProblem(
                "BW104", f"`{type(op).__name__}` has no meaning on graph values", node
            )
        args = tuple(as_graph(_scalar(x, y)) for x, y in ((a, b), (b, a)))
        return GraphCall(OpRef(name), args, span=self.span(node))

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        if not isinstance(value, GraphExpr):
            return super().eval_UnaryOp(node)
        if not isinstance(node.op, ast.USub):
            raise ParseProblem("BW104", "this operator has no meaning on graph values", node)
        return GraphCall(OpRef("negative"), (value,), span=self.span(node))

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        if any(isinstance(self.eval(v), GraphExpr) for v in node.values):
            raise ParseProblem(
                "BW104",
                "`and` and `or` have no meaning on graph values",
                node,
                "write R.logical_and(x, y)",
            )
        return super().eval_BoolOp(node)

    def fragment(self, body: list[ast.stmt]) -> Any:
        """Expand a macro body at its call; implemented by the parser."""
        raise NotImplementedError

    def called(self, func: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> Any:
        if isinstance(func, Macro):
            return func.expand(self, args, kwargs, node)
        if isinstance(func, OpName):
            for item in node.keywords:  # string literals of `dtype` attributes become types
                literal = isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)
                if literal and item.arg is not None and item.arg.endswith("dtype"):
                    named = kwargs[item.arg]  # "void" leaves the type to the operator
                    kwargs[item.arg] = named if named == "void" else ir.dtype_of(named)
        if isinstance(func, (ir.PrimFunc, ir.GraphFunction)):
            func = as_graph(func)
        if isinstance(func, GraphExpr):
            infos = kwargs.pop("out_sinfo", kwargs.pop("sinfo_args", None))
            value: Any = graph_call(func, args, kwargs, infos)
        else:
            value = func(*args, **kwargs)
        if isinstance(value, GraphCall) and value.span is None:
            return value.replace(span=self.span(node))
        return value

    def is_callable(self, value: Any) -> bool:
        return callable(value) or isinstance(value, (GraphExpr, ir.PrimFunc))


def _scalar(value: Any, other: Any) -> Any:
    """Convert a Python number beside a tensor to a constant of the tensor's type."""
    if not isinstance(value, (int, float)):
        return value
    info = other.info if isinstance(other, GraphExpr) else None
    return const(value, info.dtype if isinstance(info, TensorInfo) else None)
