"""Random changes of a module in one place, of all kinds of annotations and signatures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.graph import Deduced

Change = Callable[["_Mutation"], "ir.IRModule | None"]
_TYPES = ("float32", "float16", "float64", "int32", "int64", "int8", "bool", "bfloat16")


def mutant(module: ir.IRModule, seed: int) -> tuple[ir.IRModule, str]:
    """Change one or two places of a module; return it with a description of the changes."""
    chance = random.Random(seed)
    notes: list[str] = []
    wanted = 1 if chance.random() < 0.8 else 2
    for _ in range(50):
        name = chance.choice(
            [n for n, f in module.functions.items() if isinstance(f, ir.GraphFunction)]
        )
        change = chance.choice(_CHANGES)
        changed = change(_Mutation(module, name, chance))
        if changed is not None and changed is not module:
            module = changed
            notes.append(f"{change.__name__} in {name}")
            if len(notes) == wanted:
                break
    return module, ", ".join(notes)


class _Mutation:
    """One function of a module, with helpers for drawing changes."""

    def __init__(self, module: ir.IRModule, name: str, chance: random.Random) -> None:
        self.module, self.name, self.chance = module, name, chance
        self.function: ir.GraphFunction = module[name]
        self.deduced = Deduced(self.function, module).infos
        symbols = ir.collect(self.function, ir.Var)
        symbols += [s for p in self.function.params for s in ir.symbolic_vars(p.info)]
        self.symbols = list(dict.fromkeys(s for s in symbols if s.dtype.is_int))

    def with_function(self, function: ir.Node, name: str | None = None) -> ir.IRModule:
        functions = {**self.module.functions, name or self.name: function}
        return self.module.replace(functions=functions)

    def with_binding(self, old: ir.Binding, *new: ir.Binding) -> ir.IRModule:
        """Replace a binding by others, or by none."""
        blocks: list[ir.BindingBlock] = []
        for block in self.function.body.blocks:
            bindings: list[ir.Binding] = []
            for binding in block.bindings:
                bindings += new if binding is old else [binding]
            blocks.append(block.replace(bindings=tuple(bindings)))
        body = self.function.body.replace(blocks=tuple(blocks))
        return self.with_function(self.function.replace(body=body))

    def renamed(self, old: ir.GraphVar, new: ir.GraphVar) -> ir.IRModule:
        """Replace a variable everywhere."""
        return self.with_function(_Renamed(old, new)(self.function))

    def bindings(self, kind: type[Any] = ir.Binding) -> list[Any]:
        return [b for b in self.function.bindings if isinstance(b, kind)]

    def calls(self, *names: str) -> list[ir.VarBinding]:
        result: list[ir.VarBinding] = []
        for binding in self.bindings(ir.VarBinding):
            call = binding.value
            if isinstance(call, ir.GraphCall):
                name = call.op.name if isinstance(call.op, ir.OpRef) else ""
                if not names or name in names:
                    result.append(binding)
        return result

    def visible(self, before: ir.Binding) -> list[ir.GraphVar]:
        """Variables in scope at a binding."""
        result = list(self.function.params)
        for binding in self.function.bindings:
            if binding is before:
                break
            if isinstance(binding, (ir.VarBinding, ir.MatchCast)):
                result.append(binding.var)
        return result

    # ------------------------------------------------------------------------------- annotations
    def info(self, info: ir.Info | None) -> ir.Info | None:
        """Draw another annotation, similar to the given one."""
        draw = self.chance.random()
        if draw < 0.05:
            return None
        if draw < 0.08:
            return ir.ObjectInfo()
        if isinstance(info, ir.TensorInfo):
            return self.tensor(info)
        if isinstance(info, ir.TupleInfo):
            return self.tuple(info)
        if isinstance(info, ir.ShapeInfo):
            if info.values is None or draw < 0.2:
                return ir.ShapeInfo(None, self.chance.choice((-1, 0, 1, 2, 3)))
            return ir.ShapeInfo(self.dims(info.values))
        if isinstance(info, ir.CallableInfo):
            return self.callable(info)
        return info

    def callable(self, info: ir.CallableInfo) -> ir.Info:
        params = list(info.params or ())
        if not params or self.chance.random() < 0.5:
            return info.replace(ret=self.info(info.ret) or ir.ObjectInfo())
        index = self.chance.randrange(len(params))
        params[index] = self.info(params[index]) or ir.ObjectInfo()
        return info.replace(params=tuple(params))

    def tensor(self, info: ir.TensorInfo) -> ir.Info:
        draw = self.chance.random()
        if draw < 0.2:
            return info.replace(dtype=ir.dtype_of(self.chance.choice(_TYPES)))
        if draw < 0.25:
            return info.replace(dtype=None)
        if draw < 0.32:
            return ir.TensorInfo(None, info.dtype, info.rank)
        if draw < 0.37:
            return ir.TensorInfo(None, info.dtype, self.chance.choice((-1, 0, 1, 2, 3)))
        if draw < 0.4:
            return ir.TupleInfo((info,) * self.chance.choice((0, 1, 2)))
        if draw < 0.42:
            return ir.ShapeInfo(info.shape)
        if draw < 0.44:
            return info.replace(device=self.chance.choice(("cuda", "cpu")))
        return info if info.shape is None else info.replace(shape=self.dims(info.shape))

    def tuple(self, info: ir.TupleInfo) -> ir.Info:
        fields = list(info.fields)
        draw = self.chance.random()
        if draw < 0.15 and fields:
            fields.pop(self.chance.randrange(len(fields)))
        elif draw < 0.3 and fields:
            fields.append(self.chance.choice(fields))
        elif draw < 0.45:
            fields.reverse()
        elif fields:
            index = self.chance.randrange(len(fields))
            fields[index] = self.info(fields[index]) or ir.ObjectInfo()
        return ir.TupleInfo(tuple(fields))

    def dims(self, dims: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        changed = list(dims)
        draw = self.chance.random()
        if draw < 0.12:
            changed.insert(self.chance.randrange(len(changed) + 1), self.dim(None))
        elif draw < 0.24 and changed:
            changed.pop(self.chance.randrange(len(changed)))
        elif draw < 0.36:
            self.chance.shuffle(changed)
        elif changed:
            index = self.chance.randrange(len(changed))
            changed[index] = self.dim(changed[index])
        return tuple(changed)

    def dim(self, dim: ir.Expr | None) -> ir.Expr:
        draw = self.chance.random()
        kind = ir.dtype_of("int64") if dim is None else dim.dtype
        if self.symbols and draw < 0.3:
            return self.chance.choice(self.symbols)
        if draw < 0.36:
            return ir.Var(self.chance.choice(("n", "m", "fresh")), ir.dtype_of("int64"))
        if dim is None or draw < 0.5:
            large = 1 << (kind.bits - 2)
            return ir.const(self.chance.choice((0, 1, 2, 3, 4, 5, 6, 8, -1, large)), kind)
        one, two = ir.const(1, kind), ir.const(2, kind)
        forms = (
            lambda: ir.add(dim, one),
            lambda: ir.sub(dim, one),
            lambda: ir.mul(dim, two),
            lambda: ir.floordiv(dim, two),
            lambda: ir.sub(ir.add(dim, one), one),
            lambda: ir.floordiv(ir.mul(two, dim), two),
            lambda: ir.add(dim, dim),
        )
        return self.chance.choice(forms)()


class _Renamed(ir.Mutator):
    def __init__(self, old: ir.Node, new: ir.Node) -> None:
        super().__init__()
        self._memo[old] = new


# ------------------------------------------------------------------------------------- changes
def binding_annotation(m: _Mutation) -> ir.IRModule | None:
    result = m.bindings((ir.VarBinding, ir.MatchCast))  # type: ignore[arg-type]
    if not result:
        return None
    var = m.chance.choice(result).var
    return m.renamed(var, var.replace(info=m.info(m.deduced.get(var))))


def value_annotation(m: _Mutation) -> ir.IRModule | None:
    result = m.bindings(ir.VarBinding)
    if not result:
        return None
    binding = m.chance.choice(result)
    if isinstance(binding.value, ir.GraphVar):
        return None
    info = m.info(m.deduced.get(binding.var))
    return m.with_binding(binding, binding.replace(value=binding.value.replace(info=info)))


def dropped_annotations(m: _Mutation) -> ir.IRModule | None:
    function = m.function
    for binding in m.bindings(ir.VarBinding):
        if binding.var.info is not None and m.chance.random() < 0.7:
            function = _Renamed(binding.var, binding.var.replace(info=None))(function)
    return m.with_function(function)


def result_annotation(m: _Mutation) -> ir.IRModule | None:
    stated = m.function.ret_info
    if stated is None:
        stated = m.deduced.get(m.function.body.body)  # type: ignore[arg-type]
    return m.with_function(m.function.replace(ret_info=m.info(stated)))


def parameter_annotation(m: _Mutation) -> ir.IRModule | None:
    param = m.chance.choice(m.function.params)
    return m.renamed(param, param.replace(info=m.info(param.info)))


def stated_result(m: _Mutation) -> ir.IRModule | None:
    result = [b for b in m.calls() if b.value.out_info]  # type: ignore[attr-defined]
    if not result:
        return None
    binding: Any = m.chance.choice(result)
    infos = m.tuple(ir.TupleInfo(binding.value.out_info))
    assert isinstance(infos, ir.TupleInfo)
    value = binding.value.replace(out_info=infos.fields, info=None)
    return m.with_binding(binding, binding.replace(value=value))


def callee_signature(m: _Mutation) -> ir.IRModule | None:
    names = [n for n, f in m.module.functions.items() if isinstance(f, ir.PrimFunc)]
    if not names:
        return None
    name = m.chance.choice(names)
    func: ir.PrimFunc = m.module[name]
    buffer = m.chance.choice(func.buffers)
    info = m.tensor(ir.TensorInfo(buffer.shape, buffer.dtype))
    if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
        return None
    if len(info.shape) != len(buffer.shape):
        return None
    changed = buffer.replace(shape=info.shape, dtype=info.dtype)
    return m.with_function(_Renamed(buffer, changed)(func), name)


def callee_bounds(m: _Mutation) -> ir.IRModule | None:
    names = [n for n, f in m.module.functions.items() if isinstance(f, ir.PrimFunc)]
    name = m.chance.choice([*names, m.name])
    function = m.module[name]
    key = m.chance.choice(("tir_var_lower_bound", "tir_var_upper_bound"))
    bounds = {m.chance.choice("nmabk"): m.chance.choice((1, 2, 3, 5))}
    return m.with_function(function.replace(attrs={**function.attrs, key: bounds}), name)


def cast_pattern(m: _Mutation) -> ir.IRModule | None:
    result = m.bindings(ir.MatchCast)
    if not result:
        return None
    binding = m.chance.choice(result)
    pattern = m.info(binding.pattern) or ir.ObjectInfo()
    var = binding.var.replace(info=m.chance.choice((None, pattern, binding.var.info)))
    module = m.with_binding(binding, binding.replace(pattern=pattern))
    return _Mutation(module, m.name, m.chance).renamed(binding.var, var)


def new_cast(m: _Mutation) -> ir.IRModule | None:
    """Insert a cast of a value before a use of it."""
    result = m.calls()
    if not result:
        return None
    binding = m.chance.choice(result)
    known = [v for v in m.visible(binding) if isinstance(m.deduced.get(v), ir.Info)]
    if not known:
        return None
    value = m.chance.choice(known)
    info = m.deduced[value]
    pattern = (m.info(info) if m.chance.random() < 0.7 else info) or ir.ObjectInfo()
    var = ir.GraphVar("cast", True)
    changed = binding.replace(value=_Renamed(value, var)(binding.value))
    return m.with_binding(binding, ir.MatchCast(var, value, pattern), changed)


def arguments(m: _Mutation) -> ir.IRModule | None:
    result = m.calls()
    if not result:
        return None
    binding: Any = m.chance.choice(result)
    call: ir.GraphCall = binding.value
    args = list(call.args)
    tuples = [i for i, a in enumerate(args) if isinstance(a, ir.TupleExpr)]
    inside = tuples[0] if tuples and m.chance.random() < 0.8 else None
    whole: Any = args[inside] if inside is not None else None
    items: list[ir.GraphExpr] = list(whole.fields) if inside is not None else args
    draw, visible = m.chance.random(), m.visible(binding)
    if draw < 0.15 and items:
        items.pop(m.chance.randrange(len(items)))
    elif draw < 0.3 and items:
        items.append(m.chance.choice(items))
    elif draw < 0.5:
        m.chance.shuffle(items)
    elif items:
        items[m.chance.randrange(len(items))] = m.chance.choice(visible)
    if inside is not None:
        args[inside] = ir.TupleExpr(tuple(items))
    value = call.replace(args=tuple(args), info=m.chance.choice((None, call.info)))
    return m.with_binding(binding, binding.replace(value=value))


def called_function(m: _Mutation) -> ir.IRModule | None:
    result = m.calls("call_tir")
    if not result:
        return None
    binding: Any = m.chance.choice(result)
    target = ir.GlobalVar(m.chance.choice([*m.module.functions, "nobody"]))
    value = binding.value.replace(args=(target, *binding.value.args[1:]))
    return m.with_binding(binding, binding.replace(value=value))


def shape_value(m: _Mutation) -> ir.IRModule | None:
    result = [s for s in ir.collect(m.function, ir.ShapeExpr) if s.values]
    if not result:
        return None
    old = m.chance.choice(result)
    dims = m.dims(old.values)
    info = m.chance.choice((None, old.info, ir.ShapeInfo(dims)))
    return m.with_function(_Renamed(old, ir.ShapeExpr(dims, info=info))(m.function))


def tuple_field(m: _Mutation) -> ir.IRModule | None:
    result = ir.collect(m.function, ir.TupleGetItem)
    if not result:
        return None
    old = m.chance.choice(result)
    new = old.replace(index=m.chance.choice((-1, 0, 1, 2, 3)), info=None)
    return m.with_function(_Renamed(old, new)(m.function))


def result_value(m: _Mutation) -> ir.IRModule | None:
    visible = m.visible(ir.Binding())
    value: ir.GraphExpr = m.chance.choice(visible)
    if m.chance.random() < 0.4:
        value = ir.TupleExpr((value, m.chance.choice(visible)))
    return m.with_function(m.function.replace(body=m.function.body.replace(body=value)))


def alias(m: _Mutation) -> ir.IRModule | None:
    """Bind a value to a second variable with an annotation of its own."""
    result = m.calls()
    if not result:
        return None
    binding = m.chance.choice(result)
    value = m.chance.choice(m.visible(binding))
    var = ir.GraphVar("alias", True, info=m.info(m.deduced.get(value)))
    changed = binding.replace(value=_Renamed(value, var)(binding.value))
    return m.with_binding(binding, ir.VarBinding(var, value), changed)


def order(m: _Mutation) -> ir.IRModule | None:
    blocks = [b for b in m.function.body.blocks if len(b.bindings) > 1]
    if not blocks:
        return None
    block = m.chance.choice(blocks)
    bindings = list(block.bindings)
    place = m.chance.randrange(len(bindings) - 1)
    bindings[place], bindings[place + 1] = bindings[place + 1], bindings[place]
    return m.with_function(_Renamed(block, block.replace(bindings=tuple(bindings)))(m.function))


def constant_annotation(m: _Mutation) -> ir.IRModule | None:
    result = ir.collect(m.function, ir.Constant)
    if not result:
        return None
    old = m.chance.choice(result)
    return m.with_function(_Renamed(old, old.replace(info=m.info(old.info)))(m.function))


_CHANGES: tuple[Change, ...] = (
    binding_annotation, binding_annotation, value_annotation, dropped_annotations,
    result_annotation, parameter_annotation, stated_result, stated_result, callee_signature,
    callee_bounds, cast_pattern, new_cast, arguments, arguments, called_function, shape_value,
    tuple_field, result_value, alias, order, constant_annotation,
)  # fmt: skip
