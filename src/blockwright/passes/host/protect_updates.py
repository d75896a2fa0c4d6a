"""ProtectUpdates: copy a value before it is overwritten in place, if its old content is needed.

Before::

    @R.function
    def main():
        y = R.call_tir_inplace(
            cls.shift,
            (R.const([1.0, 2.0], "float32"),),
            inplace_indices=0,
            out_sinfo=R.Tensor((2,), "float32"),
        )
        return y

    @T.prim_func(private=True)
    def shift(x: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.block("x"):
                v = T.axis.spatial(2, i)
                x[v] = x[v] + T.float32(1)

After::

    @R.function
    def main():
        mine = R.call_tir(
            cls.copy, (R.const([1.0, 2.0], "float32"),), R.Tensor((2,), "float32")
        )
        y = R.call_tir_inplace(
            cls.shift,
            (mine,),
            inplace_indices=0,
            out_sinfo=R.Tensor((2,), "float32"),
        )
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def copy(source: T.Buffer((2,), "float32"), out: T.Buffer((2,), "float32")):
        T.func_attr({"tir.noalias": True})
        for i in range(2):
            with T.block("out"):
                v = T.axis.spatial(2, i)
                out[v] = source[v]

`call_tir_inplace` is a function of values like any other operator; overwriting an argument is an
optimization, valid if no one reads the argument afterwards, under any name. A parameter of a public
function is overwritten for the caller to see; a constant never is, nor is a parameter through a
view: the result of `reshape` is a value of its own. Arguments of a call do not share memory that it
overwrites: of a value that is passed twice, the second is a copy. Branches and recursive functions
may not overwrite their parameters (BW425): their callers could not see it.

A program that is called in place gets a name of its own, because passes change programs by what all
their calls have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.graph.call_graph import callees
from blockwright.graph.updates import overwritten_arguments
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.copies import copy_call
from blockwright.passes.host.liveness import Liveness, is_view, name_memory
from blockwright.passes.host.signature import leaves
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.rewrite import (
    Replace,
    flat_function,
    graph_functions,
    map_graph_functions,
    tir_args,
    tir_callee,
    unique_name,
    used_vars,
)
from blockwright.support import GraphError


@graph_pass
def own_inplace_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Give programs that are called in place a name that no `call_tir` mentions.

    Before::

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            a = R.call_tir(cls.exp, (x,), R.Tensor((4,), "float32"))
            b = R.call_tir_inplace(
                cls.exp, (x, a), inplace_indices=1, out_sinfo=R.Tensor((4,), "float32")
            )
            return b

        @T.prim_func(private=True)
        def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.block("y"):
                    v = T.axis.spatial(4, i)
                    y[v] = T.exp(x[v])

    After::

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            a = R.call_tir(cls.exp, (x,), R.Tensor((4,), "float32"))
            b = R.call_tir_inplace(
                cls.exp_inplace, (x, a), inplace_indices=1, out_sinfo=R.Tensor((4,), "float32")
            )
            return b

        @T.prim_func(private=True)
        def exp_inplace(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.block("y"):
                    v = T.axis.spatial(4, i)
                    y[v] = T.exp(x[v])
    """
    values = [
        binding.value
        for _, function in graph_functions(module)
        for binding in function.bindings
        if isinstance(binding, ir.VarBinding)
    ]
    called = {tir_callee(value) for value in values}
    shared = {name for value in values if (name := _inplace_callee(value)) in called and name}
    if not shared:
        return module
    functions, taken = dict(module.functions), set(module.functions)
    renamed: dict[str, str] = {}
    for name in sorted(shared):
        renamed[name] = unique_name(f"{name}_inplace", taken)
        func = module[name]
        attrs = {**func.attrs, "global_symbol": renamed[name]}
        functions[renamed[name]] = func.replace(attrs=attrs)

    def rename(_name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        return flat_function(function, [_renamed(b, renamed) for b in function.bindings])

    return map_graph_functions(module.replace(functions=functions), rename)


def _inplace_callee(value: ir.GraphExpr) -> str | None:
    if not overwritten_arguments(value):
        return None
    assert isinstance(value, ir.GraphCall)
    return getattr(value.args[0], "name", None)


def _renamed(binding: ir.Binding, names: dict[str, str]) -> ir.Binding:
    value = binding.value if isinstance(binding, ir.VarBinding) else None
    name = None if value is None else _inplace_callee(value)
    if name not in names or not isinstance(value, ir.GraphCall):
        return binding
    operands = (ir.GlobalVar(names[name]), *value.args[1:])
    return binding.replace(value=value.replace(args=operands))


@graph_pass
def protect_updates(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Copy what is overwritten and still needed, or must not be overwritten."""
    called = {name for _, f in graph_functions(module) for name in callees(f, module)}
    table = ProgramTable(module)
    for name, function in graph_functions(module):
        public = "global_symbol" in function.attrs and name not in called
        if any(overwritten_arguments(_value(b)) for b in function.bindings):
            protector = _Protector(function, module, public, table)
            table.functions[name] = protector.run()
    return module.replace(functions=table.functions)


def _value(binding: ir.Binding) -> ir.GraphExpr:
    assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
    return binding.value


class _Protector:
    """Rewrites one function.

    Attributes:
        known: which memory the values use, with the copies inserted so far.
        views: values that are views of others; bound: variables of the function so far.
        renamed: value whose memory was overwritten → the copy that holds it now.
        bindings: the result so far.
    """

    def __init__(
        self, function: ir.GraphFunction, module: ir.IRModule, public: bool, table: ProgramTable
    ) -> None:
        self.function, self.module, self.public, self.table = function, module, public, table
        self.known = Liveness()
        self.views: set[ir.GraphVar] = set()
        self.bound = set(function.params)
        self.renamed = Replace({})
        self.bindings: list[ir.Binding] = []

    def _later_uses(self) -> list[set[ir.GraphVar]]:
        """For each binding, the variables that later bindings or the result use."""
        needed = set(used_vars(self.function.body.body))
        result: list[set[ir.GraphVar]] = []
        for binding in reversed(self.function.bindings):
            result.append(set(needed))
            needed.update(used_vars(_value(binding)))
        return result[::-1]

    def run(self) -> ir.GraphFunction:
        for binding, later in zip(self.function.bindings, self._later_uses(), strict=True):
            value = self.renamed(_value(binding))
            if overwritten_arguments(value):
                value = self._protected(value, _value(binding), later)
            self._emit(binding.replace(value=value))
        return flat_function(self.function, self.bindings, self.renamed(self.function.body.body))

    def _emit(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        name_memory(self.known, binding, self.module)
        if is_view(binding.value, self.module):
            self.views.add(binding.var)
        self.bound.add(binding.var)
        self.bindings.append(binding)

    def _protected(
        self, value: ir.GraphExpr, written: ir.GraphExpr, later: set[ir.GraphVar]
    ) -> ir.GraphExpr:
        """A call that overwrites no memory whose content is needed, after copies of the latter.

        Arguments: `written` is the call as it stands in the function, and `later` what is read
        after it, also as it stands there.
        """
        args = list(tir_args(value))
        targets = sorted(overwritten_arguments(value).values())
        memory: set[ir.GraphExpr] = set()
        for place in targets:
            root = self.known.root(args[place])
            if self._is_kept(args[place]) or root in memory:
                args[place] = self._copied(args[place])
            else:
                memory.add(root)
        others = [k for k in range(len(args)) if k not in targets]
        read = {v for k in others for v in used_vars(tir_args(written)[k])}
        for var in self._in_order({*later, *read}):
            now = self.renamed(var)
            if self._uses(now, memory):
                self.renamed.values[var] = self._saved(now, memory)
        for place in others:
            args[place] = self.renamed(tir_args(written)[place])
        return _with_arguments(value, args)

    def _in_order(self, variables: set[ir.GraphVar]) -> list[ir.GraphVar]:
        """Those of the variables that are bound already, in the order of their bindings."""
        named = (b.var for b in self.function.bindings if isinstance(b, _NAMING))
        order = dict.fromkeys((*self.function.params, *named))
        return [v for v in order if v in variables and v in self.bound]

    def _uses(self, value: ir.GraphExpr, memory: set[ir.GraphExpr]) -> bool:
        parts = leaves(value, self.known.fields)
        return any(self.known.root(part) in memory for part in parts)

    def _is_kept(self, target: ir.GraphExpr) -> bool:
        """Whether the memory of a value must not be overwritten: a constant, a view of a parameter.

        Raises: GraphError BW425 for a parameter of a function that is called inside the module.
        """
        root = self.known.root(target)
        if root in self.function.params and self._is_viewed(target):
            return True
        if root in self.function.params and not self.public:
            name = getattr(root, "name", "a value")
            raise GraphError(
                f"{name} is overwritten in a branch or in a function that the module calls, where "
                "the memory of the caller is not known",
                code="BW425",
                help="call call_tir_inplace in the public function itself, or use call_tir, which "
                "writes to a separate result",
            )
        return not isinstance(root, ir.GraphVar)

    def _is_viewed(self, value: ir.GraphExpr) -> bool:
        """Whether a value is a view of the value whose memory it uses."""
        while isinstance(value, ir.GraphVar) and value in self.known.alias:
            if value in self.views:
                return True
            value = self.known.alias[value]
        return False

    def _saved(self, value: ir.GraphExpr, memory: set[ir.GraphExpr]) -> ir.GraphExpr:
        """A copy of the value outside this memory; of a tuple, only the fields in it are copied."""
        if not self._uses(value, memory):
            return value
        if isinstance(value, ir.TupleExpr):
            fields = tuple(self._saved(field, memory) for field in value.fields)
            return value.replace(fields=fields)
        if not isinstance(value, ir.GraphVar) or value not in self.known.fields:
            return self._copied(value)
        parts = [self._part(value, k, f) for k, f in enumerate(self.known.fields[value])]
        whole = self._saved(ir.TupleExpr(tuple(parts), info=value.info), memory)
        var = ir.GraphVar(f"{value.name}_copy", True, info=value.info)
        self._emit(ir.VarBinding(var, whole))
        return var

    def _copied(self, value: ir.GraphExpr) -> ir.GraphVar:
        name = value.name if isinstance(value, ir.GraphVar) else "constant"
        info = value.tensor_info
        var = ir.GraphVar(f"{name}_copy", True, info=info)
        self.bindings.append(ir.VarBinding(var, copy_call(value, info, self.table.add)))
        self.bound.add(var)  # `known` takes it for memory of its own
        return var

    def _part(self, whole: ir.GraphVar, index: int, field: ir.GraphExpr) -> ir.GraphExpr:
        """A field of a tuple, bound to a name if a call returns the tuple."""
        if not isinstance(field, ir.GraphVar) or field in self.bound:
            return field
        var = ir.GraphVar(field.name, True, info=field.info)
        self._emit(ir.VarBinding(var, ir.TupleGetItem(whole, index, info=field.info)))
        return var


_NAMING = (ir.VarBinding, ir.MatchCast)


def _with_arguments(value: ir.GraphExpr, args: Sequence[ir.GraphExpr]) -> ir.GraphExpr:
    assert isinstance(value, ir.GraphCall)
    packed = value.args[1]
    assert isinstance(packed, ir.TupleExpr)
    operands = (value.args[0], packed.replace(fields=tuple(args)), *value.args[2:])
    return value.replace(args=operands)
