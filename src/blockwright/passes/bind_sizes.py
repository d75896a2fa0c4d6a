"""BindSizes: give every size that is known only at run time a symbol.

Before::

    @R.function
    def main(x: R.Tensor(("n",), "int32")):
        n = T.int64()
        y = R.nonzero(x)
        return y

After::

    @R.function
    def main(x: R.Tensor(("n",), "int32")):
        n = T.int64()
        size = T.int64()
        written = R.call_tir(
            cls.nonzero, (x,), [R.Tensor((1, n), "int64"), R.Tensor((1,), "int64")]
        )
        count = written[1]
        loaded = R.tensor_to_shape(count, R.shape([n]))
        sizes = R.match_cast(loaded, R.Shape((size,)))
        whole = written[0]
        y = R.call_tir(cls.part, (whole,), R.Tensor((1, size), "int64"))
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def nonzero(A_handle: T.handle, out_handle: T.handle, size: T.Buffer((1,), "int64")):
        T.func_attr({"tir.noalias": True})
        n = T.int64()
        A = T.match_buffer(A_handle, (n,), "int32")
        out = T.match_buffer(out_handle, (1, n), "int64")
        with T.block("collect"):
            T.reads(A[0:n], size[0])
            T.writes(size[0], out[0, 0:n])
            size[0] = T.int64(0)
            for i0 in range(n):
                if A[i0] != 0:
                    with T.LetStmt(size[0]) as place:
                        out[0, place] = i0
                        size[0] = place + T.int64(1)

    @T.prim_func(private=True, index_dtype="int64")
    def part(whole_handle: T.handle, out_handle: T.handle):
        T.func_attr({"tir.noalias": True})
        n = T.int64()
        size = T.int64()
        whole = T.match_buffer(whole_handle, (1, n), "int64")
        out = T.match_buffer(out_handle, (1, size), "int64")
        for i0, i1 in T.grid(1, size):
            with T.block("out"):
                v_i0, v_i1 = T.axis.remap("SS", [i0, i1])
                out[v_i0, v_i1] = whole[v_i0, v_i1]

An operator such as `nonzero` (`OpRow.bounded`) becomes a call of its program, which writes results
of the largest size and the size itself; what reads it then knows a symbol. The results of
`tensor_to_shape` and `item` are cast to symbols. A symbol that the function casts the value to is
used, with its declared bounds. Parameters of known rank and unknown shape get symbols too.

All shapes are known afterwards, so that no later pass has to tell these sizes from others; only the
host program loads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.graph import Deduced
from blockwright.graph.loads import is_load
from blockwright.ir.attributes import UPPER_BOUND
from blockwright.ops.row import Bounded, OpContext, OpRow
from blockwright.ops.table import OPERATORS
from blockwright.passes.branch_sizes import Branch, merged
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.emit_sizes import Emitter
from blockwright.passes.function_sizes import (
    Sized,
    calls_any,
    result_of_call,
    sized_result,
    with_sized_functions,
)
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.parameter_sizes import shaped_parameters, without_shape
from blockwright.passes.rewrite import graph_functions
from blockwright.support import GraphError

_INT64 = ir.dtype_of("int64")


@graph_pass
def bind_sizes(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Bind the sizes that are known only at run time to symbols.

    Raises: GraphError BW407 for a value of unknown rank or type on which a size depends.
    """
    values = _function_values(module)
    module, sized = with_sized_functions(module)
    results = {each.name: each.result for each in sized.values()}
    table, changed = ProgramTable(module), bool(sized)
    for name, function in graph_functions(module):
        sizes = name in results or calls_any(function, sized)
        if sizes or _has_unknown_sizes(function, module):
            binder = _Binder(function, module, table, sized, is_value=name in values)
            table.functions[name] = binder.run(results.get(name))
            changed = True
    return module.replace(functions=table.functions) if changed else module


def _function_values(module: ir.IRModule) -> set[str]:
    """Names of the functions that closures are made of."""
    calls = [c for _, f in graph_functions(module) for c in ir.collect(f.body, ir.GraphCall)]
    made = [c for c in calls if isinstance(c.op, ir.OpRef) and c.op.name == "make_closure"]
    return {c.args[0].name for c in made if isinstance(c.args[0], ir.GlobalVar)}


def _has_unknown_sizes(function: ir.GraphFunction, module: ir.IRModule) -> bool:
    """Whether a parameter, a call or a branch of a function gives sizes without symbols."""
    if any(without_shape(param.info) for param in function.params):
        return True
    if any(map(_sizes_later, ir.collect(function.body, ir.GraphCall))):
        return True
    if not ir.collect(function.body, ir.If):
        return False
    infos = Deduced(function, module).infos
    return any(
        isinstance(binding.value, ir.If) and _is_uncertain(infos.get(binding.var))
        for binding in ir.collect(function.body, ir.VarBinding)
    )


def _is_uncertain(info: ir.Info | None) -> bool:
    """Whether branches with this result may give tensors of different sizes, or objects."""
    if isinstance(info, ir.TupleInfo):
        return any(map(_is_uncertain, info.fields))
    return isinstance(info, ir.ObjectInfo) or without_shape(info)


def _sizes_later(call: ir.GraphExpr) -> bool:
    """Whether a call gives sizes that are known only at run time."""
    return is_load(call) or _bounded_row(call) is not None


def _bounded_row(call: ir.GraphExpr) -> OpRow | None:
    name = call.op.name if isinstance(call, ir.GraphCall) and isinstance(call.op, ir.OpRef) else ""
    row = OPERATORS.get(name)
    return row if row is not None and row.bounded is not None else None


class _Binder(Emitter):
    """Rewrites one function.

    Attributes:
        later: the bindings of the sequence from the one that is being rewritten.
        sized: functions whose calls become calls of functions that return objects with sizes.
    """

    def __init__(
        self,
        function: ir.GraphFunction,
        module: ir.IRModule,
        table: ProgramTable,
        sized: Mapping[str, Sized],
        *,
        is_value: bool,
    ) -> None:
        symbols = {symbol.name for symbol in ir.collect(function, ir.Var)}
        self.params = shaped_parameters(function, symbols, is_value=is_value)
        super().__init__(function, tuple(self.params.values()), symbols, module, table)
        self.later: Sequence[ir.Binding] = ()
        self.sized = sized

    def run(self, result: ir.Info | None) -> ir.GraphFunction:
        """The rewritten function; `result` is what it declares if it returns objects instead."""
        whole = self._branch(self.function.body)
        if result is not None:
            with self.inside(whole.bindings):
                whole.result = sized_result(self, self.named(whole.result), result)
        body = whole.sequence()
        attrs = dict(self.function.attrs)
        if self.bounds:
            attrs[UPPER_BOUND] = self.bounds
        params = tuple(self.params.values())
        return self.function.replace(params=params, body=body, attrs=attrs)

    # ----------------------------------------------------------------------------------- bindings
    def _branch(self, body: ir.SeqExpr) -> Branch:
        """Rewrite a sequence; its symbols are not visible afterwards."""
        saved, made = self.later, list[ir.Binding]()
        bindings = [b for block in body.blocks for b in block.bindings]
        with self.inside(made):
            for position, binding in enumerate(bindings):
                self.later = bindings[position:]
                self._binding(binding)
            self.later = ()
            result = _Values(self)(body.body)
        self.later = saved
        return Branch(body, made, result)

    def _binding(self, binding: ir.Binding) -> None:
        if isinstance(binding, ir.MatchCast):
            value = binding.value
            if isinstance(value, ir.GraphCall) and is_load(value):
                self._cast_load(binding, _Values(self).operands(value))
                return
            self.add(binding.replace(value=_Values(self)(value)))
        elif isinstance(binding, ir.VarBinding):
            value = binding.value
            if isinstance(value, ir.GraphCall) and _sizes_later(value):
                self.rewritten(_Values(self).operands(value), binding.var)
            elif isinstance(value, ir.If):
                self.branches(value, _Values(self)(value.condition), binding.var)
            elif isinstance(value, ir.GraphCall) and self.is_sized(value):
                self.called(_Values(self).operands(value), binding.var)
            else:
                self.add(binding.replace(value=_Values(self)(value)))

    def _cast_load(self, cast: ir.MatchCast, load: ir.GraphCall) -> None:
        if self._all_new(cast.pattern):
            self.cast(self.emit(load, "loaded"), cast.pattern, (), cast.var)
        else:
            self.add(cast.replace(value=self._loaded(load, None)))

    def branches(
        self, value: ir.If, condition: ir.GraphExpr, var: ir.GraphVar | None = None
    ) -> ir.GraphVar:
        """Emit an `if`."""
        parts = [self._branch(body) for body in (value.then_branch, value.else_branch)]
        for part in parts:
            with self.inside(part.bindings):
                part.result = self.named(part.result)
        return merged(self, condition, parts[0], parts[1], var)

    def _all_new(self, pattern: ir.Info) -> bool:
        """Whether a pattern consists of different symbols that nothing has bound so far."""
        dims: Sequence[ir.Expr | None] = ()
        if isinstance(pattern, ir.ShapeInfo):
            dims = pattern.values or ()
        elif isinstance(pattern, ir.PrimInfo):
            dims = (pattern.value,)
        bound = self.deduced.scope
        found = {d for d in dims if isinstance(d, ir.Var) and d not in bound}
        return bool(found) and len(found) == len(dims)

    # -------------------------------------------------------------------------------------- calls
    def rewritten(self, call: ir.GraphCall, var: ir.GraphVar | None = None) -> ir.GraphVar:
        """Emit a call whose result has sizes that are known only at run time."""
        row = _bounded_row(call)
        return self._loaded(call, var) if row is None else self._bounded(row, call, var)

    def is_sized(self, call: ir.GraphCall) -> bool:
        """Whether a call is of a function that returns objects with sizes now."""
        return isinstance(call.op, ir.GlobalVar) and call.op.name in self.sized

    def called(self, call: ir.GraphCall, var: ir.GraphVar | None = None) -> ir.GraphVar:
        """Emit a call for which `is_sized` holds, and tensors of its objects."""
        assert isinstance(call.op, ir.GlobalVar)
        callee, name = self.sized[call.op.name], "result" if var is None else var.name
        returned = self.emit(call.replace(op=ir.GlobalVar(callee.name), info=None), name)
        return self.emit(result_of_call(self, returned, callee.result, name), name, var)

    def _bounded(self, row: OpRow, call: ir.GraphCall, var: ir.GraphVar | None) -> ir.GraphVar:
        """Emit the program of an operator, and take the part of its results that counts."""
        infos = [self._known(row.name, arg) for arg in call.args]
        attrs = {**row.attrs, **call.attrs}
        assert row.bounded is not None
        assert row.lower is not None
        context = OpContext(row.name, self.deduced.analyzer, infos)
        bounded = row.bounded(context, infos, attrs)
        program = row.lower(context, infos, attrs)
        size = ir.TensorInfo((ir.const(1, "int64"),), _INT64)
        written = self.call(row.name, program, call.args, (*bounded.results, size), "written")
        count = self.field(written, len(bounded.results), "count")
        symbol = self._wanted(var, bounded)
        symbol = self.symbol("size") if symbol is None else symbol
        self.sizes(count, (bounded.limit,), (symbol,))
        last = var if len(bounded.results) == 1 else None
        parts: list[ir.GraphExpr] = []
        for index, (info, axis) in enumerate(zip(bounded.results, bounded.axes, strict=True)):
            whole = self.field(written, index, "whole")
            if axis is None:
                parts.append(whole)
                continue
            shape = info.shape or ()
            taken = info.replace(shape=(*shape[:axis], symbol, *shape[axis + 1 :]))
            parts.append(self.part(whole, taken, last))
        if len(parts) == 1:
            assert isinstance(parts[0], ir.GraphVar)
            return parts[0]
        return self.emit(ir.TupleExpr(tuple(parts)), "parts", var)

    def _wanted(self, var: ir.GraphVar | None, bounded: Bounded) -> ir.Var | None:
        """The new symbol to which the function itself casts the size of a result."""
        axis = bounded.axes[0]
        if var is None or axis is None or len(bounded.results) > 1:
            return None
        for binding in self.later:
            if not isinstance(binding, ir.MatchCast) or binding.value is not var:
                continue
            shape = binding.pattern.shape if isinstance(binding.pattern, ir.TensorInfo) else None
            dim = shape[axis] if shape is not None and len(shape) > axis else None
            if isinstance(dim, ir.Var) and dim not in self.deduced.scope:
                return dim
        return None

    def _loaded(self, call: ir.GraphCall, var: ir.GraphVar | None) -> ir.GraphVar:
        """Emit a load, and cast its value to symbols: those that the function casts it to, if it
        does."""
        loaded = self.emit(call, "loaded")
        info = self.deduced.infos[loaded]
        for binding in self.later:
            if var is not None and isinstance(binding, ir.MatchCast) and binding.value is var:
                if self._all_new(binding.pattern):
                    return self.cast(loaded, binding.pattern, (), var)
                break
        if isinstance(info, ir.ShapeInfo) and info.ndim >= 0:
            name = "sizes" if var is None else var.name
            symbols = tuple(self.symbol(f"{name}_{axis}") for axis in range(info.ndim))
            return self.cast(loaded, ir.ShapeInfo(symbols), (), var)
        if isinstance(info, ir.PrimInfo):
            symbol = self.symbol("number" if var is None else f"{var.name}_value")
            return self.cast(loaded, ir.PrimInfo(info.dtype, symbol), (), var)
        raise GraphError(
            "tensor_to_shape of a tensor of unknown size",
            code="BW407",
            help='match_cast the tensor first, to R.Tensor((2,), "int64") for two sizes',
        )

    def _known(self, name: str, value: ir.GraphExpr) -> ir.TensorInfo:
        info = self.info(value)
        if isinstance(info, ir.TensorInfo) and info.shape is not None and info.dtype is not None:
            return info
        raise GraphError(
            f"{name}: its operand is {info!r}, and the size of the result depends on its shape",
            code="BW407",
            help="annotate a parameter with a rank and a type, such as R.Tensor(ndim=2, "
            'dtype="float32"), and match_cast other values',
        )


class _Values(ir.Mutator):
    """Rewrites the calls inside one expression, and renames parameters."""

    def __init__(self, binder: _Binder) -> None:
        super().__init__()
        self._memo |= {old: new for old, new in binder.params.items() if old is not new}
        self.binder = binder

    def operands(self, call: ir.GraphCall) -> ir.GraphCall:
        """The call with rewritten operands that are variables or constants."""
        node: Any = self.descend(call)
        return node.replace(args=tuple(map(self.binder.named, node.args)))

    def rewrite_GraphVar(self, node: ir.GraphVar) -> ir.GraphVar:
        return node

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node

    def rewrite_GraphCall(self, node: ir.GraphCall) -> ir.GraphExpr:
        if _sizes_later(node):
            return self.binder.rewritten(self.operands(node))
        if self.binder.is_sized(node):
            return self.binder.called(self.operands(node))
        result: ir.GraphExpr = self.descend(node)
        return result

    def rewrite_GraphFunction(self, node: ir.GraphFunction) -> ir.GraphFunction:
        return node

    def rewrite_If(self, node: ir.If) -> ir.GraphExpr:
        return self.binder.branches(node, self(node.condition))
