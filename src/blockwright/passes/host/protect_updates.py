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

from blockwright import ir
from blockwright.graph.updates import overwritten_arguments
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.copies import copy_call
from blockwright.passes.functions.call_graph import callees
from blockwright.passes.host.liveness import is_view, live_ranges
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
    def __init__(
        self, function: ir.GraphFunction, module: ir.IRModule, public: bool, table: ProgramTable
    ) -> None:
        self.function, self.public, self.table = function, public, table
        self.plan = live_ranges(function, module)
        self.later = self._later_uses()
        named = [b for b in function.bindings if isinstance(b, (ir.VarBinding, ir.MatchCast))]
        self.bound = {*function.params, *(b.var for b in named)}
        self.views = {b.var for b in named if is_view(b.value, module)}
        self.renamed = Replace({})

    def _later_uses(self) -> list[set[ir.GraphVar]]:
        """For each binding, the variables that later bindings or the result use."""
        needed = set(used_vars(self.function.body.body))
        result: list[set[ir.GraphVar]] = []
        for binding in reversed(self.function.bindings):
            result.append(set(needed))
            needed.update(used_vars(_value(binding)))
        return result[::-1]

    def run(self) -> ir.GraphFunction:
        bindings: list[ir.Binding] = []
        for position, binding in enumerate(self.function.bindings):
            value = self._apart(_value(self.renamed(binding)), bindings)
            for index in overwritten_arguments(value).values():
                target = tir_args(value)[index]
                if self._is_kept(target):
                    value = _with_argument(value, index, self._copied(target, bindings))
                    continue
                for old in self._read_later(binding, target, position):
                    self.renamed.values[old] = self._copied(old, bindings)
            bindings.append(binding.replace(value=value))
        return flat_function(self.function, bindings, self.renamed(self.function.body.body))

    def _apart(self, value: ir.GraphExpr, bindings: list[ir.Binding]) -> ir.GraphExpr:
        """Copy other arguments of a call that use the memory of one that it overwrites."""
        overwritten = sorted(overwritten_arguments(value).values())
        for number, index in enumerate(overwritten):
            root = self.plan.root(tir_args(value)[index])
            for place, arg in enumerate(tir_args(value)):
                first = place in overwritten[: number + 1]
                if not first and isinstance(root, ir.GraphVar) and self.plan.root(arg) is root:
                    value = _with_argument(value, place, self._copied(arg, bindings))
        return value

    def _is_kept(self, target: ir.GraphExpr) -> bool:
        """Whether the memory of a value must not be overwritten: a constant, a view of a parameter.

        Raises: GraphError BW425 for a parameter of a function that is called inside the module.
        """
        root = self.plan.root(target)
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
        while isinstance(value, ir.GraphVar) and value in self.plan.alias:
            if value in self.views:
                return True
            value = self.plan.alias[value]
        return False

    def _read_later(
        self, binding: ir.Binding, target: ir.GraphExpr, position: int
    ) -> list[ir.GraphVar]:
        """Earlier values in the memory that a binding overwrites that are read after it."""
        assert isinstance(binding, ir.VarBinding)
        root, behind = self.plan.root(target), self.function.bindings[position:]
        new = {getattr(b, "var", None) for b in behind}
        return [
            var
            for var in self.later[position]
            if var not in new and any(r is root for r in self._roots(var))
        ]

    def _roots(self, var: ir.GraphVar) -> list[ir.GraphExpr]:
        return [self.plan.root(leaf) for leaf in leaves(var, self.plan.fields)]

    def _copied(self, value: ir.GraphExpr, bindings: list[ir.Binding]) -> ir.GraphVar:
        name = value.name if isinstance(value, ir.GraphVar) else "constant"
        if isinstance(value, ir.GraphVar) and value in self.plan.fields:  # a tuple
            parts = [
                self._part(value, k, f, bindings) for k, f in enumerate(self.plan.fields[value])
            ]
            fields = tuple(self._copied(part, bindings) for part in parts)
            whole = ir.TupleExpr(fields, info=value.info)
            var = ir.GraphVar(f"{name}_copy", True, info=value.info)
            bindings.append(ir.VarBinding(var, whole))
            return var
        info = value.tensor_info
        var = ir.GraphVar(f"{name}_copy", True, info=info)
        bindings.append(ir.VarBinding(var, copy_call(value, info, self.table.add)))
        return var

    def _part(
        self, whole: ir.GraphVar, index: int, field: ir.GraphExpr, bindings: list[ir.Binding]
    ) -> ir.GraphExpr:
        """A field of a tuple, bound to a name if a call returns the tuple."""
        if not isinstance(field, ir.GraphVar) or field in self.bound:
            return field
        var = ir.GraphVar(field.name, True, info=field.info)
        bindings.append(ir.VarBinding(var, ir.TupleGetItem(whole, index, info=field.info)))
        return var


def _with_argument(value: ir.GraphExpr, index: int, arg: ir.GraphExpr) -> ir.GraphExpr:
    assert isinstance(value, ir.GraphCall)
    packed = value.args[1]
    assert isinstance(packed, ir.TupleExpr)
    fields = tuple(arg if k == index else f for k, f in enumerate(packed.fields))
    return value.replace(args=(value.args[0], packed.replace(fields=fields), *value.args[2:]))
