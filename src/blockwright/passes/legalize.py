"""LowerOperatorToTensorProgram: replace operator calls by calls of tensor programs.

Before::

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor((1,), "float32")):
        n = T.int64()
        z = R.add(x, y)
        return z

After::

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor((1,), "float32")):
        n = T.int64()
        z = R.call_tir(cls.add, (x, y), R.Tensor((n,), "float32"))
        return z

    @T.prim_func(private=True, index_dtype="int64")
    def add(A_handle: T.handle, B: T.Buffer((1,), "float32"), out_handle: T.handle):
        T.func_attr({"tir.noalias": True, "op": "add"})
        n = T.int64()
        A = T.match_buffer(A_handle, (n,), "float32")
        out = T.match_buffer(out_handle, (n,), "float32")
        for i in range(n):
            with T.block("out"):
                v = T.axis.spatial(n, i)
                out[v] = A[v] + B[0]

Each operator row builds the program for its annotations, by the implementation that the call names;
structurally equal programs are shared.
Symbols that no parameter shape binds become extra scalar parameters of the program (`tir_vars`).
Attributes: "op" names the operator, "tir.view" marks a program that only reinterprets the shape of
contiguous elements.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.graph import function_analyzer
from blockwright.ir.attributes import IS_PRIVATE, IS_VIEW
from blockwright.ops.device import TO_DEVICE
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import (
    call_tir,
    flat_function,
    graph_functions,
    unbound_symbols,
    unique_name,
)
from blockwright.support import GraphError

VIEW_OPS = frozenset({"reshape", "flatten", "expand_dims", "squeeze"})


class ProgramTable:
    """Tensor programs of a module under unique names; structurally equal ones are stored once."""

    def __init__(self, module: ir.IRModule) -> None:
        self.functions: dict[str, ir.Node] = dict(module.functions)
        self._programs = ir.Programs()
        self.lowered: dict[tuple[Any, ...], str] = {}  # by operator, shapes and attributes
        for name, function in self.functions.items():
            if isinstance(function, ir.PrimFunc):
                self._programs.add(name, function)

    def add(self, base: str, func: ir.PrimFunc) -> str:
        """Add a program and return its name: that of an equal program, or `base` made unique."""
        known = self._programs.equal_to(func)
        if known is not None:
            return known
        name, number = base, 1
        while name in self.functions:
            name, number = f"{base}_{number}", number + 1
        named = func.replace(attrs={**func.attrs, "global_symbol": name, IS_PRIVATE: True})
        self.replace(name, named)
        return name

    def replace(self, name: str, func: ir.PrimFunc) -> None:
        """Store a program under a name, replacing the previous one, if any."""
        self.functions[name] = func
        self._programs.add(name, func)


def symbol_attrs(func: ir.PrimFunc, caller: ir.GraphFunction) -> dict[str, Any]:
    """The caller's declared bounds of the symbols that `func` uses."""
    mentioned = {v.name for b in func.buffers for d in b.shape for v in ir.free_vars(d)}
    mentioned |= {p.name for p in func.params}
    out: dict[str, Any] = {}
    for key in ir.BOUND_ATTRS:
        kept = {n: v for n, v in caller.attrs.get(key, {}).items() if n in mentioned}
        if kept:
            out[key] = kept
    return out


def with_scalar_symbols(func: ir.PrimFunc) -> tuple[ir.PrimFunc, list[ir.Var]]:
    """Add the unbound symbols of a program as scalar parameters; also return these symbols."""
    extra = unbound_symbols(func)
    return (func.replace(params=(*func.params, *extra)) if extra else func), extra


@graph_pass
def legalize(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Lower every operator call whose operator has a tensor program."""
    table = ProgramTable(module)
    for name, function in graph_functions(module):
        table.functions[name] = _function(function, table)
    return module.replace(functions=table.functions)


def _function(function: ir.GraphFunction, table: ProgramTable) -> ir.GraphFunction:
    analyzer = function_analyzer(function)
    bindings: list[ir.Binding] = []
    names = {value.name for value in ir.collect(function, ir.GraphVar)}
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding) and isinstance(binding.value, ir.GraphCall):
            value: ir.GraphExpr = _call(binding.value, function, table, analyzer)
            if value is not binding.value and _is_one_tuple(value.info, binding.value.info):
                # A call_tir of one result is that result, not a tuple of it.
                field = ir.GraphVar(
                    unique_name(f"{binding.var.name}_field", names), info=value.info
                )
                bindings.append(ir.VarBinding(field, value))
                value = ir.TupleExpr((field,), info=binding.value.info)
            binding = binding.replace(value=value)
        bindings.append(binding)
    return flat_function(function, bindings)


def _is_one_tuple(field: ir.Info | None, whole: ir.Info | None) -> bool:
    """Whether the annotation of a call is a tuple of one field, and `field` is not a tuple."""
    return isinstance(whole, ir.TupleInfo) and not isinstance(field, ir.TupleInfo)


def _call(
    call: ir.GraphCall, caller: ir.GraphFunction, table: ProgramTable, analyzer: Any
) -> ir.GraphCall:
    if not isinstance(call.op, ir.OpRef) or call.op.name not in OPERATORS:
        return call
    row = OPERATORS[call.op.name]
    if (
        row.lower is None or row.name == TO_DEVICE
    ):  # copies separate devices until programs are fused
        return call
    tensors = [a for a in call.args if isinstance(a.info, ir.TensorInfo)]
    infos = [a.tensor_info for a in tensors]
    attrs = {**row.attrs, **call.attrs}
    if len(tensors) != len(call.args):
        attrs["shape_args"] = tuple(a for a in call.args if not isinstance(a.info, ir.TensorInfo))
    if call.info is None:
        raise GraphError(f"{row.name}: result annotation missing", code="BW406")
    out = call.info.fields if isinstance(call.info, ir.TupleInfo) else (call.info,)
    key = _key(row.name, infos, attrs)
    if key is not None and key in table.lowered:  # repeated layers share one program
        return call_tir(table.lowered[key], tensors, out, [])
    func = lower_call(row, OpContext(row.name, analyzer, infos), infos, attrs)
    marks: dict[str, Any] = {"op": row.name, **symbol_attrs(func, caller)}
    if row.name in VIEW_OPS:
        marks[IS_VIEW] = True
    func, symbols = with_scalar_symbols(func.replace(attrs={**func.attrs, **marks}))
    name = table.add(row.name.replace(".", "_"), func)
    if key is not None and not symbols:
        table.lowered[key] = name
    return call_tir(name, tensors, out, symbols)


def _key(name: str, infos: list[ir.TensorInfo], attrs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Everything the program depends on; None if sizes are symbolic or attributes not plain."""
    shapes: list[tuple[Any, ...]] = []
    for info in infos:
        sizes = [ir.const_int(d) for d in info.shape or ()]
        if info.shape is None or info.dtype is None or None in sizes:
            return None
        widths = (d.dtype.name for d in info.shape)  # indices have the types of the sizes
        shapes.append((info.dtype.name, *zip(sizes, widths, strict=True)))
    if not all(map(_plain, attrs.values())):
        return None
    values = tuple((key, repr(value)) for key, value in sorted(attrs.items()))
    return (name, tuple(shapes), values)


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))  # pyright: ignore[reportUnknownArgumentType]
    return value is None or isinstance(value, (bool, int, float, str))
