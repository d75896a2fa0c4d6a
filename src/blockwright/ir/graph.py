"""Graph level: annotated values, operator calls, calls of tensor programs and libraries.

Every graph expression carries its deduced annotation in `info`. Symbolic dimensions are the same
int64 `Var`s and expressions that tensor programs use, so both levels share one arithmetic core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from blockwright.ir.dtype import DType
from blockwright.ir.expr import Add, Expr, IntImm, Mul, Sub, Var
from blockwright.ir.node import Node
from blockwright.ir.visit import collect
from blockwright.support import IRError


class Info(Node, frozen=True, eq=False, kw_only=True):
    """Base of annotations: compile-time information about a value."""


class ObjectInfo(Info, frozen=True, eq=False):
    """Any runtime value."""


class PrimInfo(Info, frozen=True, eq=False):
    """A scalar of the tensor level, with its value when known."""

    dtype: DType
    value: Expr | None = None


class ShapeInfo(Info, frozen=True, eq=False):
    """A shape value: its dimensions, or only how many (`ndim`), or nothing (-1)."""

    values: tuple[Expr, ...] | None = None
    ndim: int = -1

    @property
    def rank(self) -> int:
        return len(self.values) if self.values is not None else self.ndim


class TensorInfo(Info, frozen=True, eq=False):
    """A tensor: symbolic shape, or known rank (`shape` None), or rank unknown (`ndim` -1).

    `dtype` None means unknown. `device` names where it lives ("" is the host).
    """

    shape: tuple[Expr, ...] | None = None
    dtype: DType | None = None
    ndim: int = -1
    device: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape) if self.shape is not None else self.ndim


class TupleInfo(Info, frozen=True, eq=False):
    fields: tuple[Info, ...]


class CallableInfo(Info, frozen=True, eq=False):
    """A function: parameter annotations (None when unknown), result, purity."""

    params: tuple[Info, ...] | None
    ret: Info
    pure: bool = True


class GraphExpr(Node, frozen=True, eq=False, kw_only=True):
    """Base of graph expressions. `info` is the deduced or declared annotation, None if not yet."""

    info: Info | None = None

    @property
    def tensor_info(self) -> TensorInfo:
        """The annotation as a `TensorInfo`; raises if it is anything else."""
        if not isinstance(self.info, TensorInfo):
            raise IRError(f"expected a tensor, got {self.info!r}", code="BW245")
        return self.info


class GraphVar(GraphExpr, frozen=True, eq=False):
    """A value bound in a function; `dataflow` ones are local to their dataflow block."""

    name: str
    dataflow: bool = False


class Constant(GraphExpr, frozen=True, eq=False):
    """A tensor known at compile time. `name` tells where it came from (a parameter's path).

    The array is stored in native byte order; foreign byte order is converted on construction.
    """

    data: np.ndarray[Any, Any]
    name: str = ""

    def __post_init__(self) -> None:
        data = np.asarray(self.data)
        if not data.dtype.isnative:
            data = data.astype(data.dtype.newbyteorder("="))
        if data is not self.data:
            msgspec.structs.force_setattr(self, "data", data)


class PrimValue(GraphExpr, frozen=True, eq=False):
    """A tensor-level scalar as a graph value."""

    value: Expr


class ShapeExpr(GraphExpr, frozen=True, eq=False):
    """A shape as a first-class value."""

    values: tuple[Expr, ...]


class StringValue(GraphExpr, frozen=True, eq=False):
    value: str


class TupleExpr(GraphExpr, frozen=True, eq=False):
    fields: tuple[GraphExpr, ...]


class TupleGetItem(GraphExpr, frozen=True, eq=False):
    tuple_value: GraphExpr
    index: int


class GlobalVar(GraphExpr, frozen=True, eq=False):
    """A function of the same module, by name; also usable as a value."""

    name: str


class ExternFunc(GraphExpr, frozen=True, eq=False):
    """A function outside the module, by its registered name.

    `function` is a Python function that is called in its place, for debugging.
    """

    name: str
    function: Callable[..., Any] | None = None


class OpRef(GraphExpr, frozen=True, eq=False):
    """A graph operator such as "matmul" (a row of the operator table)."""

    name: str


class GraphCall(GraphExpr, frozen=True, eq=False):
    """Application of an operator or function.

    Special operators (`OpRef` names), arguments in order:
        call_tir: (GlobalVar, TupleExpr args[, ShapeExpr of symbolic arguments]); the result
            annotation is in `out_info`.
        call_tir_inplace: the same, attrs["inplace_indices"]: argument index per output (-1: fresh).
        call_dps_library: (ExternFunc, TupleExpr args), scalar attributes in `attrs`, `out_info`;
            the function of a library, a packed function or a Python function.
        call_packed / call_pure_packed: (ExternFunc, args…), `out_info`.
        shape_of, tensor_to_shape, invoke_closure: as named.
        scan: (GlobalVar of the step, values…), while_loop: (GlobalVar of the condition, GlobalVar
            of the step, values…); see `graph.loops`.

    Attributes:
        attrs: compile-time attributes (Python ints, floats, strings, bools, tuples, DTypes).
        out_info: declared result annotation(s) of calls whose result cannot be deduced.
    """

    op: GraphExpr
    args: tuple[GraphExpr, ...]
    attrs: dict[str, Any] = {}
    out_info: tuple[Info, ...] = ()


class If(GraphExpr, frozen=True, eq=False):
    condition: GraphExpr
    then_branch: SeqExpr
    else_branch: SeqExpr


class Binding(Node, frozen=True, eq=False, kw_only=True):
    """Base of bindings."""


class VarBinding(Binding, frozen=True, eq=False):
    var: GraphVar
    value: GraphExpr


class MatchCast(Binding, frozen=True, eq=False):
    """`var` is `value`, checked at run time to have annotation `pattern`; binds new symbols.

    `message` and `values` define the error when the check fails (see `AssertStmt`); without them
    the error names the dimension.
    """

    var: GraphVar
    value: GraphExpr
    pattern: Info
    message: str = ""
    values: tuple[Expr, ...] = ()


class BindingBlock(Node, frozen=True, eq=False):
    """Bindings in order; a dataflow block holds pure ones only."""

    bindings: tuple[Binding, ...]
    dataflow: bool = False


class SeqExpr(GraphExpr, frozen=True, eq=False):
    """Binding blocks followed by a result."""

    blocks: tuple[BindingBlock, ...]
    body: GraphExpr


class GraphFunction(GraphExpr, frozen=True, eq=False):
    """A graph function; as an expression it is a closure-free local function.

    `attrs` holds "global_symbol", "primitive" (created by fusion), "num_input" (parameters from
    this index on are weights), "tir_var_upper_bound" / "tir_var_lower_bound" (symbol name → int).
    """

    params: tuple[GraphVar, ...]
    body: SeqExpr
    ret_info: Info | None = None
    attrs: dict[str, Any] = {}
    pure: bool = True

    @property
    def name(self) -> str:
        return str(self.attrs.get("global_symbol", "main"))

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All bindings in order."""
        return tuple(b for block in self.body.blocks for b in block.bindings)

    def script(self) -> str:
        """Program text in the `R` dialect."""
        return repr(self)


def symbolic_vars(info: Info | None) -> list[Var]:
    """Symbols bound by a value with this annotation, in order: those that are a whole dimension."""
    out: dict[Var, None] = {}
    stack: list[Any] = [info]
    while stack:
        item = stack.pop(0)
        if isinstance(item, TensorInfo) and item.shape is not None:
            out.update((d, None) for d in item.shape if isinstance(d, Var))
        elif isinstance(item, ShapeInfo) and item.values is not None:
            out.update((d, None) for d in item.values if isinstance(d, Var))
        elif isinstance(item, TupleInfo):
            stack = [*item.fields, *stack]
        elif isinstance(item, PrimInfo) and isinstance(item.value, Var):
            out[item.value] = None
    return list(out)


def parameter_symbols(info: Info | None) -> list[Var]:
    """Symbols that a parameter with this annotation binds.

    First the symbols that are a dimension by themselves, then those that a call can solve for: the
    only symbol of a linear dimension, such as n of `2 * n + 1`.
    """
    result = dict.fromkeys(symbolic_vars(info))
    shape = info.shape if isinstance(info, TensorInfo) else None
    for dim in shape or ():
        inside = list(dict.fromkeys(collect(dim, Var)))
        if len(inside) == 1 and _is_linear(dim):
            result.update(dict.fromkeys(inside))
    return list(result)


def _is_linear(dim: Expr) -> bool:
    """Whether a dimension is a symbol with numbers added, subtracted or multiplied."""
    if isinstance(dim, Var):
        return True
    if isinstance(dim, (Add, Sub, Mul)):
        symbolic = [side for side in (dim.a, dim.b) if not isinstance(side, IntImm)]
        return len(symbolic) == 1 and _is_linear(symbolic[0])
    return False
