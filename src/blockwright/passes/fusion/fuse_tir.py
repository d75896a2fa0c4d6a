"""FuseTensorIR: turn every primitive function into one tensor program.

Before::

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        b = cls.fused_mm_relu(x, w)
        return b

    @T.prim_func(private=True, index_dtype="int64")
    def mm(
        x: T.Buffer((8, 8), "float32"),
        w: T.Buffer((8, 8), "float32"),
        y: T.Buffer((8, 8), "float32"),
    ):
        T.func_attr({"compute_pattern": "OutputEwiseFusible"})
        for i, j, k in T.grid(8, 8, 8):
            with T.block("y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]

    @T.prim_func(private=True, index_dtype="int64")
    def relu(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32")):
        T.func_attr({"compute_pattern": "ElementWise"})
        for i, j in T.grid(8, 8):
            with T.block("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.max(x[vi, vj], T.float32(0))

    @R.function
    def fused_mm_relu(
        x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor((8, 8), "float32"):
        R.func_attr({"primitive": True})
        a = R.call_tir(cls.mm, (x, w), R.Tensor((8, 8), "float32"))
        b = R.call_tir(cls.relu, (a,), R.Tensor((8, 8), "float32"))
        return b

After::

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        b = R.call_tir(cls.fused_mm_relu, (x, w), R.Tensor((8, 8), "float32"))
        return b

    @T.prim_func(private=True, index_dtype="int64")
    def fused_mm_relu(
        x: T.Buffer((8, 8), "float32"),
        w: T.Buffer((8, 8), "float32"),
        out: T.Buffer((8, 8), "float32"),
    ):
        T.func_attr({"tir.noalias": True, "op": "mm+relu"})
        a = T.alloc_buffer((8, 8), "float32")
        for i, j, k in T.grid(8, 8, 8):
            with T.block("y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    a[vi, vj] = T.float32(0)
                a[vi, vj] = a[vi, vj] + x[vi, vk] * w[vk, vj]
        for i, j in T.grid(8, 8):
            with T.block("y_1"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = T.max(a[vi, vj], T.float32(0))

Blocks keep their names, made unique. Symbols of a callee are replaced by the dimensions that the
caller passes.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis import with_one_box_per_buffer
from blockwright.graph.program_calls import reachable_programs
from blockwright.ir.attributes import IS_PRIVATE, NOALIAS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.legalize import ProgramTable, with_scalar_symbols
from blockwright.passes.rewrite import (
    call_tir,
    flat_function,
    graph_functions,
    symbol_values,
    tir_args,
    tir_callee,
    tir_symbols,
    unique_name,
)
from blockwright.support import GraphError


class _Renew(ir.Mutator):
    """Copy a program body with fresh definitions, buffers and symbols mapped."""

    def __init__(self, mapping: dict[ir.Node, ir.Node], names: set[str]) -> None:
        super().__init__()
        self._memo.update(mapping)
        self._names = names

    def own(self, buffer: ir.Buffer) -> ir.Buffer:
        """Replace a buffer that the program allocates by a fresh one for this copy."""
        fresh = buffer.map_children(self).replace(name=unique_name(buffer.name, self._names))
        self._memo[buffer] = fresh
        return fresh

    def rewrite_Var(self, node: ir.Var) -> ir.Var:
        return node

    def rewrite_For(self, node: ir.For) -> ir.For:
        self._memo[node.loop_var] = ir.Var(node.loop_var.name, node.loop_var.type)
        return self.descend(node)

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.LetStmt:
        self._memo[node.var] = ir.Var(node.var.name, node.var.type)
        return self.descend(node)

    def rewrite_Let(self, node: ir.Let) -> ir.Let:
        self._memo[node.var] = ir.Var(node.var.name, node.var.type)
        return self.descend(node)

    def rewrite_Allocate(self, node: ir.Allocate) -> ir.Allocate:
        self.own(node.buffer)
        return self.descend(node)

    def rewrite_DeclBuffer(self, node: ir.DeclBuffer) -> ir.DeclBuffer:
        self.own(node.buffer)
        return self.descend(node)

    def rewrite_IterVar(self, node: ir.IterVar) -> ir.IterVar:
        self._memo[node.var] = ir.Var(node.var.name, node.var.type)
        return self.descend(node)

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        for iter_var in node.iter_vars:
            self(iter_var)
        for buffer in node.alloc_buffers:
            self.own(buffer)
        for match in node.match_buffers:
            self.own(match.buffer)
        block = self.descend(node).replace(name=unique_name(node.name, self._names))
        return with_one_box_per_buffer(block)  # two parameters may be mapped to one buffer


class _Fused:
    """Merges the bodies of the calls of one primitive function."""

    def __init__(self, function: ir.GraphFunction, module: ir.IRModule) -> None:
        self.function = function
        self.module = module
        self.names: set[str] = {"root"}
        self.buffers: dict[ir.GraphExpr, ir.Buffer] = {}
        self.stmts: list[ir.Stmt] = []
        self.temps: list[ir.Buffer] = []
        self.params: list[ir.Buffer] = []
        self.scalars: list[ir.Var] = []
        self.ops: list[str] = []
        self.attrs: dict[str, Any] = {}

    def build(self) -> ir.PrimFunc:
        for param in self.function.params:
            if isinstance(param.info, ir.TensorInfo):
                self.params.append(self._buffer(param, param.name))
            elif isinstance(param.info, ir.ShapeInfo) and param.info.values is not None:
                self.scalars += [v for v in param.info.values if isinstance(v, ir.Var)]
        result = self.function.body.body
        out = self._buffer(result, "out")
        for binding in self.function.bindings:
            assert isinstance(binding, ir.VarBinding)
            if binding.var is not result:
                self.temps.append(self._buffer(binding.var, binding.var.name))
            self._append(binding)
        return self._function(out)

    def _buffer(self, value: ir.GraphExpr, name: str) -> ir.Buffer:
        result = self.buffers.get(value)
        if result is None:
            info = value.tensor_info
            if info.shape is None or info.dtype is None:
                raise GraphError("a fused value has no known shape or type", code="BW407")
            result = ir.Buffer(unique_name(name, self.names), info.dtype, info.shape)
            self.buffers[value] = result
        return result

    def _append(self, binding: ir.VarBinding) -> None:
        name = tir_callee(binding.value)
        assert name is not None
        callee: ir.PrimFunc = self.module[name]
        actual = [self._buffer(a, "c") for a in tir_args(binding.value)]
        actual.append(self.buffers[binding.var])
        shapes = [buffer.shape for buffer in actual]
        mapping: dict[ir.Node, ir.Node] = dict(zip(callee.buffers, actual, strict=True))
        mapping |= symbol_values(callee, shapes, tir_symbols(binding.value))
        renewed = _Renew(mapping, self.names)
        root = callee.root
        self.temps += [renewed.own(buffer) for buffer in root.alloc_buffers]
        self.stmts.append(renewed(root.body))
        self.ops.append(str(callee.attrs.get("op", callee.name)))
        self.attrs = ir.kernel_attrs(callee)  # equal for all callees, see `fuse_ops`

    def _function(self, out: ir.Buffer) -> ir.PrimFunc:
        attrs = {"global_symbol": self.function.name, NOALIAS: True, "op": "+".join(self.ops)}
        attrs |= self.attrs
        attrs |= {k: v for k, v in self.function.attrs.items() if k in ir.BOUND_ATTRS}
        return ir.prim_func(
            ir.seq(self.stmts),
            [*self.params, out],
            allocated=self.temps,
            scalars=self.scalars,
            attrs=attrs,
        )


def _key(function: ir.GraphFunction) -> object:
    """Everything that determines the program of a primitive function; None if sizes are symbolic.

    Repeated layers have equal keys and share one program.
    """
    places: dict[ir.Node, int] = {}
    steps: list[object] = []
    for param in function.params:
        places[param] = len(places)
        steps.append(_known(param.info))
    for binding in function.bindings:
        if not isinstance(binding, ir.VarBinding) or tir_symbols(binding.value):
            return None
        args = tuple(places.get(a) for a in tir_args(binding.value))
        result = _known(binding.var.info)
        steps.append(
            None if result is None or None in args else (result, tir_callee(binding.value), args)
        )
        places[binding.var] = len(places)
    bounds = any(name in function.attrs for name in ir.BOUND_ATTRS)
    return None if bounds or None in steps else (tuple(steps), places.get(function.body.body))


def _known(info: ir.Info | None) -> object:
    """Type and sizes of a tensor; None if a size is symbolic."""
    if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
        return None
    sizes = tuple((ir.const_int(d), d.dtype.name) for d in info.shape)
    return None if any(size is None for size, _ in sizes) else (info.dtype.name, sizes)


@graph_pass
def fuse_tir(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Turn primitive functions into tensor programs and their calls into call_tir."""
    fused: dict[str, ir.PrimFunc] = {}
    same_as: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, function in graph_functions(module):
        if function.attrs.get("primitive"):
            key = _key(function)
            same_as[name] = name if key is None else first.setdefault(key, name)
            if same_as[name] == name:
                fused[name] = _Fused(function, module).build()
    kept = {n: f for n, f in module.functions.items() if n not in same_as}
    table = ProgramTable(module.replace(functions=kept))
    final: dict[str, tuple[str, list[ir.Var]]] = {}
    for name, func in fused.items():
        shape_params = list(func.params[len(func.buffer_map) :])
        func, extra = with_scalar_symbols(func)
        final[name] = (table.add(name, func), [*shape_params, *extra])
    final |= {name: final[other] for name, other in same_as.items()}
    for name, function in graph_functions(module):
        if name not in same_as:
            table.functions[name] = _rewrite(function, final)
    return module.replace(functions=drop_unused(table.functions))


def _rewrite(
    function: ir.GraphFunction, final: dict[str, tuple[str, list[ir.Var]]]
) -> ir.GraphFunction:
    bindings: list[ir.Binding] = []
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding) and isinstance(binding.value, ir.GraphCall):
            callee = binding.value.op
            if isinstance(callee, ir.GlobalVar) and callee.name in final:
                name, symbols = final[callee.name]
                args = [a for a in binding.value.args if isinstance(a.info, ir.TensorInfo)]
                info = binding.var.info
                assert info is not None
                binding = ir.VarBinding(binding.var, call_tir(name, args, (info,), symbols))
        bindings.append(binding)
    return flat_function(function, bindings)


def drop_unused(functions: dict[str, ir.Node]) -> dict[str, ir.Node]:
    """Drop private tensor programs that neither graph functions nor public programs call.

    Calls through other programs count.
    """
    used: set[str] = set()
    for name, function in functions.items():
        if isinstance(function, ir.GraphFunction):
            used |= {g.name for g in ir.collect(function, ir.GlobalVar)}
        elif not _is_private_program(function):
            used.add(name)
    module = ir.IRModule(functions)
    used = {called for name in used for called in (name, *reachable_programs(module, name))}
    return {n: f for n, f in functions.items() if n in used or not _is_private_program(f)}


def _is_private_program(function: ir.Node) -> bool:
    return isinstance(function, ir.PrimFunc) and bool(function.attrs.get(IS_PRIVATE))
