"""Printer of graph functions (`@R.function`) and modules (`@I.ir_module`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from keyword import iskeyword
from typing import Any, ClassVar, cast

import numpy as np

from blockwright.ir import graph as G
from blockwright.ir import node as N
from blockwright.ir.buffer import Buffer, BufferRegion, IterVar, MatchBufferRegion, Range
from blockwright.ir.dtype import DType, dtype_of
from blockwright.ir.expr import Expr, Var
from blockwright.ir.function import IRModule, PrimFunc
from blockwright.ir.printer.expr import quote
from blockwright.ir.printer.info import InfoPrinter
from blockwright.ir.printer.writer import member_names
from blockwright.ir.stmt import Stmt
from blockwright.ir.structural import structural_equal
from blockwright.ir.visit import collect

_SMALL = 16  # constants of at most this many elements are printed inline
_TIR_CALLS = ("call_tir", "call_tir_inplace")
_DPS_CALLS = ("call_dps_library", "call_dps_packed")
_PACKED_CALLS = ("call_packed", "call_pure_packed", "invoke_closure")


class ScriptPrinter(InfoPrinter):
    """Prints any node."""

    graph_values: ClassVar[dict[type[G.GraphExpr], Callable[[Any, Any], str]]] = {}

    def any_node(self, node: N.Node) -> None:
        """Print a node of any class; a fragment looks as it does inside a program."""
        if isinstance(node, PrimFunc):
            self.prim_func(node)
        elif isinstance(node, G.GraphFunction):
            self.graph_function(node)
        elif isinstance(node, IRModule):
            self.module(node)
        elif isinstance(node, Stmt):
            self.body(node)
        elif isinstance(node, (G.Binding, G.BindingBlock)):
            self._binding_block(
                node if isinstance(node, G.BindingBlock) else G.BindingBlock((node,))
            )
        elif isinstance(node, G.SeqExpr):
            self.seq_body(node, "return ")
        elif isinstance(node, G.If):
            self._if_binding(G.VarBinding(G.GraphVar("_"), node), node)
        else:
            self.out.line(self._fragment(node))

    def _fragment(self, node: N.Node) -> str:
        if isinstance(node, Expr):
            return self.expr(node)
        if isinstance(node, G.Info):
            return self.info(node)
        if isinstance(node, G.GraphExpr):
            return self.graph(node)
        if isinstance(node, Buffer):
            return f"{self.buffer(node)}: T.Buffer({self.buffer_args(node)})"
        if isinstance(node, BufferRegion):
            return self.region(node)
        if isinstance(node, MatchBufferRegion):
            return f"{self.buffer(node.buffer)} = {self.match_region(node)}"
        if isinstance(node, Range):
            return ":".join(self.ends(node.min, node.extent))
        if isinstance(node, IterVar):
            kind = node.thread_tag or node.iter_type.name.lower()
            return f"{self.var(node.var)}: {kind}({self.axis_args(node.dom, None)})"
        return f"<{type(node).__name__}>"

    # ------------------------------------------------------------------------------------- modules
    def module(self, module: IRModule) -> None:
        self.members = member_names(module.functions)
        self.out.line("@I.ir_module")
        self.out.line("class Module:")
        with self.out.indent():
            attrs = {k: v for k, v in module.attrs.items() if k != "vdevice"}
            if devices := module.attrs.get("vdevice"):
                self.out.line(f'I.module_global_infos({{"vdevice": {self._devices(devices)}}})')
            if attrs:
                self.out.line(f"I.module_attrs({self.value(attrs)})")
            for index, (key, function) in enumerate(module.functions.items()):
                if index or module.attrs:
                    self.out.line()
                with self.names.scope():
                    if isinstance(function, PrimFunc):
                        self.prim_func(function, key)
                    elif isinstance(function, G.GraphFunction):
                        self.graph_function(function, key)
                    else:
                        self.out.line(f"{self.members[key]} = {self._fragment(function)}")
            if not (module.functions or module.attrs):
                self.out.line("pass")

    def _devices(self, listed: Any) -> str:
        """The devices of a module as calls, or as they are if they are no devices."""
        texts: list[str] = []
        entries = cast("Sequence[Any]", listed) if isinstance(listed, (list, tuple)) else [None]
        for entry in entries:
            given = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
            if tuple(given) != ("target", "vdevice_id", "memory_scope"):
                return self.value(listed)
            name, *rest = given.values()
            if rest == [0, "global"]:
                rest = []
            texts.append(f"I.vdevice({', '.join(map(self.value, (name, *rest)))})")
        return f"[{', '.join(texts)}]"

    # ----------------------------------------------------------------------------------- functions
    def graph_function(
        self, func: G.GraphFunction, key: str | None = None, nested: bool = False
    ) -> None:
        """Print a function; `key` is its name in the module, or the variable it is bound to."""
        attrs = dict(func.attrs)
        options = [] if func.pure else ["pure=False"]
        if nested:
            spelled = key or "func"
        elif "global_symbol" in attrs:
            spelled, attrs = self._name_and_attrs(attrs, key)
        else:
            spelled = self.defined_name(key or "main")
            options.insert(0, "private=True")
        if not nested:
            options += self.name_option(spelled, key)
        self.out.line(f"@R.function({', '.join(options)})" if options else "@R.function")
        with self.names.scope():
            symbols = self._signature_symbols(func)
            params = [self._param(p) for p in func.params]
            result = f" -> {self.info(func.ret_info, quoted=True)}" if func.ret_info else ""
            self.out.line(self.marked(func, f"def {spelled}({', '.join(params)}){result}:"))
            with self.out.indent():
                for name, var in symbols:
                    self.out.line(f"{name} = T.{var.type}()")
                if attrs:
                    self.out.line(f"R.func_attr({self.value(attrs)})")
                self.seq_body(func.body, "return ")

    def _signature_symbols(self, func: G.GraphFunction) -> list[tuple[str, Var]]:
        infos = [*(p.info for p in func.params), func.ret_info]
        result = [v for info in infos if info is not None for v in collect(info, Var)]
        fresh = [v for v in dict.fromkeys(result) if not self.names.known(v)]
        return [(self.names.define(v, v.name), v) for v in fresh]

    def _param(self, param: G.GraphVar) -> str:
        name = self.names.define(param, param.name)
        return f"{name}: {self.info(param.info, quoted=True)}" if param.info else name

    def seq_body(self, seq: G.SeqExpr, result: str) -> None:
        """Print the bindings, then the result, prefixed with the text `result`."""
        for index, block in enumerate(seq.blocks):
            used: set[G.GraphVar] = set()
            if block.dataflow:
                for later in (*seq.blocks[index + 1 :], seq.body):
                    used.update(collect(later, G.GraphVar))
            self._binding_block(block, used)
        body = seq.body
        if isinstance(body, G.If):  # `If` can only be printed as a binding
            variable = G.GraphVar("gv")
            self._if_binding(G.VarBinding(variable, body), body)
            body = variable
        self.declare_symbols(body)
        self.out.line(f"{result}{self.graph(body)}")

    def _binding_block(
        self, block: G.BindingBlock, used: AbstractSet[G.GraphVar] = frozenset()
    ) -> None:
        """Print a block; a dataflow block outputs non-dataflow variables and those `used` later."""
        if not block.dataflow:
            for binding in block.bindings:
                self._binding(binding)
            return
        self.out.line("with R.dataflow():")
        with self.out.indent():
            for binding in block.bindings:
                self._binding(binding)
            variables = [
                b.var for b in block.bindings if isinstance(b, (G.VarBinding, G.MatchCast))
            ]
            leaving = [v for v in variables if not v.dataflow or v in used]
            outputs = ", ".join(self.names.of(v, v.name) for v in leaving)
            self.out.line(f"R.output({outputs})")

    def _binding(self, binding: G.Binding) -> None:
        if isinstance(binding, G.MatchCast):
            self.declare_symbols(binding.value, binding.pattern)
            parts = [self.graph(binding.value), self.info(binding.pattern)]
            if binding.message:
                parts += [quote(binding.message), *(self.dim(v) for v in binding.values)]
            text = f"R.match_cast({', '.join(parts)})"
            info = binding.var.info
            same = info is None or structural_equal(info, binding.pattern)
            self._assign(binding, None if same else info, text)
        elif isinstance(binding, G.VarBinding):
            if isinstance(binding.value, G.GraphFunction):
                name = self.names.define(binding.var, binding.var.name)
                self.graph_function(binding.value, name, nested=True)
            elif isinstance(binding.value, G.If):
                self._if_binding(binding, binding.value)
            else:
                self.declare_symbols(binding.value, binding.var.info)
                self._assign(binding, binding.var.info, self.graph(binding.value))

    def _assign(self, binding: Any, info: G.Info | None, text: str) -> None:
        name = self.names.define(binding.var, binding.var.name)
        annotation = f": {self.info(info)}" if info is not None else ""
        self.out.line(self.marked(binding, f"{name}{annotation} = {text}"))

    def _if_binding(self, binding: G.VarBinding, value: G.If) -> None:
        """Print an `If`; both branches end by assigning the bound variable."""
        condition = self.graph(value.condition)
        info = binding.var.info
        self.declare_symbols(info)
        annotation = f": {self.info(info)}" if info is not None else ""
        name = self.names.define(binding.var, binding.var.name)
        self.out.line(self.marked(binding, f"if {condition}:"))
        for index, branch in enumerate((value.then_branch, value.else_branch)):
            if index:
                self.out.line("else:")
            with self.out.indent(), self.names.scope():
                self.seq_body(branch, f"{name}{annotation} = ")

    # --------------------------------------------------------------------------------- expressions
    def graph(self, node: G.GraphExpr) -> str:
        """Text of a graph expression."""
        method = self.graph_values.get(type(node))
        if method is None:
            return f"<{type(node).__name__}>"
        return self.marked(node, method(self, node))

    def _graph_var(self, node: G.GraphVar) -> str:
        return self.names.of(node, node.name)

    def _constant(self, node: G.Constant) -> str:
        if node.data.size > _SMALL:
            key = self.array_key(node.data, node.name)
            name = f", name={quote(node.name)}" if node.name != key else ""
            return f"R.constant({quote(key)}{name})"
        name = f", name={quote(node.name)}" if node.name else ""
        dtype = dtype_of(node.data.dtype)
        if node.data.size == 0:
            return f'R.const([], "{dtype}", shape={node.data.shape}{name})'
        return f'R.const({_literal(node.data)}, "{dtype}"{name})'

    def _prim_value(self, node: G.PrimValue) -> str:
        return f"R.prim_value({self.dim(node.value)})"

    def _shape(self, node: G.ShapeExpr) -> str:
        return f"R.shape([{self.dims(node.values)}])"

    def _string_value(self, node: G.StringValue) -> str:
        return f"R.str({quote(node.value)})"

    def _graph_tuple(self, node: G.TupleExpr) -> str:
        items = [self.graph(f) for f in node.fields]
        if not items:
            return "R.tuple()"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def _get_item(self, node: G.TupleGetItem) -> str:
        return f"{self.graph(node.tuple_value)}[{node.index}]"

    def _global_var(self, node: G.GlobalVar) -> str:
        name = node.name
        plain = name.isidentifier() and not iskeyword(name) and not name.startswith("__")
        return f"cls.{name}" if plain else f"cls[{quote(name)}]"

    def _extern(self, node: G.ExternFunc) -> str:
        return f"R.ExternFunc({quote(node.name)})"

    def _op_ref(self, node: G.OpRef) -> str:
        return f"R.op({quote(node.name)})"

    def _graph_call(self, node: G.GraphCall) -> str:
        if not isinstance(node.op, G.OpRef):
            return f"{self.graph(node.op)}({self._arguments(node, node.args)})"
        name, args = node.op.name, node.args
        target = f"R.{name}"
        if name in _TIR_CALLS or name in _DPS_CALLS:
            parts = [self._callee(args[0]), *(self.graph(a) for a in args[1:2])]
            parts += self._infos(node, "out_sinfo")
            parts += [f"tir_vars={self.graph(a)}" for a in args[2:]]
            return f"{target}({', '.join(parts + self._attrs(node))})"
        if name in _PACKED_CALLS:
            parts = [self._callee(args[0]), *(self.graph(a) for a in args[1:])]
            infos = ", ".join(map(self.info, node.out_info))
            comma = "," if len(node.out_info) == 1 else ""
            parts += [f"sinfo_args=({infos}{comma})"] if infos else []
            return f"{target}({', '.join(parts + self._attrs(node))})"
        if not all(part.isidentifier() for part in name.split(".")):
            target = f"R.op({quote(name)})"
        return f"{target}({self._arguments(node, args)})"

    def _callee(self, node: G.GraphExpr) -> str:
        if isinstance(node, G.ExternFunc):  # a Python function prints as the name it has in Python
            return quote(node.name) if node.function is None else node.name
        return self.graph(node)

    def _arguments(self, node: G.GraphCall, args: tuple[G.GraphExpr, ...]) -> str:
        parts = [self.graph(a) for a in args]
        return ", ".join(parts + self._attrs(node) + self._infos(node, "out_sinfo"))

    def _infos(self, node: G.GraphCall, key: str) -> list[str]:
        if not node.out_info:
            return []
        texts = [self.info(i) for i in node.out_info]
        return [f"{key}={texts[0] if len(texts) == 1 else '[' + ', '.join(texts) + ']'}"]

    def _attrs(self, node: G.GraphCall) -> list[str]:
        return [f"{key}={self._attr(key, value)}" for key, value in node.attrs.items()]

    def _attr(self, key: str, value: Any) -> str:
        """Text of an attribute value.

        Under a key ending in "dtype" a type prints as a string, so a string there prints as
        `str(…)`.
        """
        if key.endswith("dtype"):
            if isinstance(value, DType):
                return f'"{value}"'
            if isinstance(value, str):
                return f"str({quote(value)})"
        return self.value(value)


def _literal(data: np.ndarray[Any, Any]) -> str:
    """The elements as nested lists, with the shortest float texts that round-trip exactly."""
    if data.ndim:
        return "[" + ", ".join(_literal(item) for item in data) + "]"
    text = str(data[()])
    return f'float("{text}")' if text in ("nan", "inf", "-inf") else text


ScriptPrinter.graph_values.update({
    getattr(G, name): getattr(ScriptPrinter, method)
    for name, method in {
        "GraphVar": "_graph_var", "Constant": "_constant", "PrimValue": "_prim_value",
        "ShapeExpr": "_shape", "StringValue": "_string_value", "TupleExpr": "_graph_tuple",
        "TupleGetItem": "_get_item", "GlobalVar": "_global_var", "ExternFunc": "_extern",
        "OpRef": "_op_ref", "GraphCall": "_graph_call",
    }.items()
})  # fmt: skip
