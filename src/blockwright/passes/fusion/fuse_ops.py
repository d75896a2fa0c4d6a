"""FuseOps: group calls that one kernel should compute into subgraph functions.

Before::

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        a = R.call_tir(cls.mm, (x, w), R.Tensor((8, 8), "float32"))
        b = R.call_tir(cls.relu, (a,), R.Tensor((8, 8), "float32"))
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

After::

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        b = cls.fused_mm_relu(x, w)
        return b

    @R.function
    def fused_mm_relu(
        x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor((8, 8), "float32"):
        R.func_attr({"primitive": True})
        a = R.call_tir(cls.mm, (x, w), R.Tensor((8, 8), "float32"))
        b = R.call_tir(cls.relu, (a,), R.Tensor((8, 8), "float32"))
        return b

A group has at most one anchor, a contraction (some block sums products of two buffers) or a
reduction; it has two if a strategy joins them (see `_anchors_join`). What may join a group follows
from analysis of the programs, never from names:
  * epilogues: element-wise or broadcast consumers of the anchor's result, if it has no other
    consumer; also pure data movement that keeps the anchor's last axis contiguous;
  * prologues: pure data movement in front of any consumer (reading through an index map is free);
    for reductions, which load each row into cache once, any light producer; also for an operand
    that the anchor's strategy loads once per element: GEMM when it packs panels, and GEMV.
An operation that only relabels a group's result, such as a reshape, stays outside: it becomes a
view, which is free. All programs of a group have the same floating-point attributes
(`tir.fp_contract`, `tir.nnan`). Only values with a single consumer are fused, so no work is
duplicated and no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count

from blockwright import ir
from blockwright.analysis import Pattern, block_pattern
from blockwright.graph.updates import overwritten_at
from blockwright.ir.attributes import IS_VIEW
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.fusion.data_movement import is_joined, is_movement, keeps_last_axis
from blockwright.passes.rewrite import (
    flat_function,
    graph_functions,
    tir_args,
    tir_callee,
    tir_symbols,
    used_vars,
)
from blockwright.strategies import computes_operand, joined
from blockwright.target import Target, target_of

LIGHT = frozenset({"ElementWise", "Broadcast", "Injective"})
_EPILOGUE = frozenset({"ElementWise", "Broadcast"})
ANCHORS = frozenset({"CommReduce", "OutputEwiseFusible"})
_MAX_GROUP = 32  # beyond this, kernels grow without getting faster


class _Facts:
    """Properties of a program that fusion uses."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.kind = str(func.attrs.get("compute_pattern", "Opaque"))
        self.movement, self.view = is_movement(func), bool(func.attrs.get(IS_VIEW))
        self.contraction = has_contraction(func)
        self.common = ir.kernel_attrs(func)
        self.joins = is_joined(func)


class _Node:
    """One call_tir binding with the properties that fusion uses.

    Attributes:
        limit: position of the first binding that overwrites an operand: it is computed before.
    """

    def __init__(
        self,
        position: int,
        binding: ir.VarBinding,
        func: ir.PrimFunc,
        facts: _Facts,
        overwritten: Mapping[ir.GraphVar, int],
    ) -> None:
        self.position = position
        self.binding = binding
        self.var = binding.var
        self.func = func
        self.kind, self.movement, self.view = facts.kind, facts.movement, facts.view
        self.contraction, self.joins = facts.contraction, facts.joins
        self.common = facts.common
        self.args = [a for a in tir_args(binding.value) if isinstance(a, ir.GraphVar)]
        self.limit = min((overwritten[a] for a in self.args if a in overwritten), default=None)
        self.group = _Group(self)


class _Group:
    def __init__(self, node: _Node) -> None:
        self.nodes = [node]
        self.anchor: _Node | None = None if node.kind in LIGHT else node

    @property
    def sink(self) -> _Node:
        return max(self.nodes, key=lambda n: n.position)

    @property
    def only_movement(self) -> bool:
        return all(n.movement for n in self.nodes)


class _Fuser:
    """Groups the calls of one function; `target` decides which contractions may be joined."""

    def __init__(
        self,
        function: ir.GraphFunction,
        module: ir.IRModule,
        target: Target | None,
        disabled: Sequence[str],
    ) -> None:
        self.function = function
        self.target = target
        self.disabled = disabled
        self.nodes: dict[ir.GraphVar, _Node] = {}
        self.uses: dict[ir.GraphVar, int] = {}
        self.decisions: list[str] = []
        facts: dict[str, _Facts] = {}
        overwritten = overwritten_at(function)
        for position, binding in enumerate(function.bindings):
            for used in _operands(binding):
                self.uses[used] = self.uses.get(used, 0) + 1
            if isinstance(binding, ir.VarBinding):
                name = tir_callee(binding.value)
                if name is not None and not isinstance(binding.var.info, ir.TupleInfo):
                    func: ir.PrimFunc = module[name]
                    if not _takes_types(func, tir_symbols(binding.value)):
                        continue
                    known = facts.get(name) or facts.setdefault(name, _Facts(func))
                    self.nodes[binding.var] = _Node(position, binding, func, known, overwritten)
        for used in used_vars(function.body.body):
            self.uses[used] = self.uses.get(used, 0) + 1

    def run(self) -> None:
        for node in list(self.nodes.values()):
            if node.kind in _EPILOGUE or node.movement:
                self._join_as_epilogue(node)
        for node in list(self.nodes.values()):
            self._swallow_producers(node)
        for group in self.groups():
            self._leave_views(group)

    def _leave_views(self, group: _Group) -> None:
        """Remove views at the end of a group.

        Alone they are free; in the kernel they would hide the axes of the other nodes.
        """
        while len(group.nodes) > 1 and group.sink.view:
            sink = group.sink
            group.nodes.remove(sink)
            sink.group = _Group(sink)

    def _single_use(self, node: _Node) -> bool:
        return self.uses.get(node.var, 0) == 1

    def _join_as_epilogue(self, node: _Node) -> None:
        """Join the anchored group of one producer, the latest in program order that fits."""
        producers = [self.nodes[a] for a in node.args if a in self.nodes]
        for producer in sorted(producers, key=lambda n: -n.position):
            group = producer.group
            anchor = group.anchor
            if anchor is None or node.group is group or node.group.anchor is not None:
                continue
            if anchor.kind not in ANCHORS or group.sink is not producer:
                continue
            if node.common != producer.common:
                continue
            if self._single_use(producer) and self._epilogue_fits(node, producer):
                self._merge(group, node.group)
                return

    def _epilogue_fits(self, node: _Node, producer: _Node) -> bool:
        if node.movement:
            return keeps_last_axis(node.func)
        if any(n.movement for n in producer.group.nodes if n.position > _position(producer)):
            return False  # after data movement the axes no longer match those of the tile
        mine, theirs = node.var.info, producer.var.info
        assert isinstance(mine, ir.TensorInfo)
        assert isinstance(theirs, ir.TensorInfo)
        if mine.shape is None or theirs.shape is None or len(mine.shape) != len(theirs.shape):
            return False
        return all(ir.structural_equal(a, b) for a, b in zip(mine.shape, theirs.shape, strict=True))

    def _swallow_producers(self, node: _Node) -> None:
        """Merge the groups of light producers into the node's group, last argument first."""
        for arg in reversed(node.args):
            producer = self.nodes.get(arg)
            if producer is None or producer.group is node.group:
                continue
            if producer.group.sink is not producer or not self._single_use(producer):
                continue
            if node.common != producer.common:
                continue
            if producer.group.anchor is not None:
                fits = self._anchors_join(node, producer)
            else:
                fits = self._prologue_fits(node, producer)
            if fits:
                self._merge(node.group, producer.group)

    def _prologue_fits(self, node: _Node, producer: _Node) -> bool:
        if producer.group.only_movement:
            return True
        anchor = node.group.anchor
        if anchor is not None and anchor.contraction:
            if any(n.joins for n in producer.group.nodes):
                return False  # a concatenation is computed outside
            # An operand of the epilogue is computed in place.
            return node is not anchor or self._computed_while_loading(node, producer)
        return anchor is None or anchor.kind in ANCHORS

    def _computed_while_loading(self, anchor: _Node, producer: _Node) -> bool:
        """Whether the anchor's strategy computes the producer as it loads that operand."""
        if self.target is None:
            return False
        operand = _operand_of(anchor, producer)
        target = target_of(anchor.func, self.target)
        return computes_operand(anchor.func, operand, target, self.disabled)

    def _anchors_join(self, node: _Node, producer: _Node) -> bool:
        """Whether to compute a product together with the reduction whose result it reads."""
        anchor = producer.group.anchor
        if self.target is None or node is not node.group.anchor or anchor is None:
            return False
        behind = [n for n in producer.group.nodes if n.position > anchor.position]
        if not node.contraction or any(n.movement for n in behind):
            return False
        operand = _operand_of(node, producer)
        target = target_of(node.func, self.target)
        expected = joined(anchor.func, node.func, operand, target, self.disabled)
        if expected is None:
            return False
        one, two = expected
        how = "one pass" if one < two else "two passes"
        self.decisions.append(
            f"{anchor.var.name} and {node.var.name}: {how}; predicted {one * 1e6:.0f} µs in "
            f"one pass, {two * 1e6:.0f} µs in two"
        )
        return one < two

    def _merge(self, group: _Group, other: _Group) -> None:
        if len(group.nodes) + len(other.nodes) > _MAX_GROUP:
            return
        last = max(group.sink.position, other.sink.position)
        if any(n.limit is not None and n.limit < last for n in (*group.nodes, *other.nodes)):
            return
        for node in other.nodes:
            node.group = group
        group.nodes = sorted([*group.nodes, *other.nodes], key=lambda n: n.position)
        group.anchor = group.anchor or other.anchor

    def groups(self) -> list[_Group]:
        """Groups of more than one call."""
        unique = {id(n.group): n.group for n in self.nodes.values()}
        return [g for g in unique.values() if len(g.nodes) > 1]


def _takes_types(func: ir.PrimFunc, given: Sequence[ir.Expr]) -> bool:
    """Whether scalar arguments have the types of the parameters.

    Fusion substitutes them for the parameters, without the range check or conversion of a call.
    """
    handles = {handle for handle, _ in func.buffer_map}
    scalars = [p for p in func.params if p not in handles]
    return all(p.dtype is v.dtype for p, v in zip(scalars, given, strict=True))


def has_contraction(func: ir.PrimFunc) -> bool:
    """Whether some block sums products of two buffers."""
    return any(
        block_pattern(b) is Pattern.OutputEwiseFusible and len({r.buffer for r in b.reads}) > 1
        for b in ir.blocks(func.body)
        if b.init is not None
    )


def _operand_of(node: _Node, producer: _Node) -> int:
    """Index of the argument that the producer computes."""
    args = tir_args(node.binding.value)
    return next(k for k, arg in enumerate(args) if arg is producer.var)


def _position(producer: _Node) -> int:
    anchor = producer.group.anchor
    return anchor.position if anchor is not None else -1


def _operands(binding: ir.Binding) -> list[ir.GraphVar]:
    """Variables a binding reads, with repetition: x + x counts as two uses."""
    value = getattr(binding, "value", None)
    return used_vars(value) if isinstance(value, ir.Node) else []


@graph_pass
def fuse_ops(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Group fusible calls of every graph function into primitive functions."""
    target = ctx.target if ctx.target.kind == "cpu" else None
    disabled = tuple(ctx.options.get("disabled_strategies", ()))
    for name, function in graph_functions(module):
        if function.attrs.get("primitive"):
            continue
        fuser = _Fuser(function, module, target, disabled)
        fuser.run()
        ctx.decisions.setdefault("fuse_ops", []).extend(fuser.decisions)
        module = _extract(module, name, function, fuser.groups())
    return module


def _extract(
    module: ir.IRModule, name: str, function: ir.GraphFunction, groups: list[_Group]
) -> ir.IRModule:
    """Replace each group by a call of a new primitive function at its last binding."""
    functions = dict(module.functions)
    at_sink: dict[int, ir.Binding] = {}
    dropped: set[int] = set()
    for group in groups:
        fused_name = _unique(functions, group)
        fused, inputs = _primitive(fused_name, group, function)
        functions[fused_name] = fused
        sink = group.sink
        call = ir.GraphCall(ir.GlobalVar(fused_name), inputs, info=sink.var.info)
        at_sink[sink.position] = ir.VarBinding(sink.var, call)
        dropped |= {n.position for n in group.nodes}
    bindings = [
        at_sink.get(i, b)
        for i, b in enumerate(function.bindings)
        if i in at_sink or i not in dropped
    ]
    functions[name] = flat_function(function, bindings)
    return module.replace(functions=functions)


def _unique(functions: dict[str, ir.Node], group: _Group) -> str:
    """A unique name: `fused_` and the operators in order; long names omit data movement."""
    parts = [str(n.func.attrs.get("op", n.func.name)).split(".")[-1] for n in group.nodes]
    if len(parts) > 4:
        kept = [p for p, n in zip(parts, group.nodes, strict=True) if not n.movement]
        parts = (kept or parts)[:6]
    base = "fused_" + "_".join(parts)
    name, number = base, 1
    while name in functions:
        name, number = f"{base}_{number}", number + 1
    return name


def _primitive(
    name: str, group: _Group, caller: ir.GraphFunction
) -> tuple[ir.GraphFunction, tuple[ir.GraphExpr, ...]]:
    """The group as a function of its inputs, and the inputs in parameter order."""
    inside = {n.var for n in group.nodes}
    inputs: list[ir.GraphExpr] = []
    params: list[ir.GraphVar] = []
    mapping: dict[ir.Node, ir.Node] = {}
    known = {param.name for param in caller.params}
    for node in group.nodes:
        for arg in tir_args(node.binding.value):
            if arg in mapping or (isinstance(arg, ir.GraphVar) and arg in inside):
                continue
            # Kernel errors mention the names of inputs: keep those that users know.
            label = next(n for k in count(len(params)) if (n := f"p{k}") not in known)
            if isinstance(arg, ir.GraphVar) and arg in caller.params:
                label = arg.name
            known.add(label)
            param = ir.GraphVar(label, False, info=arg.info)
            params.append(param)
            inputs.append(arg)
            mapping[arg] = param
    symbols = _symbol_argument(group, params)
    bindings: list[ir.Binding] = []
    for node in group.nodes:
        value = node.binding.value.map_children(_Rename(mapping))
        bindings.append(ir.VarBinding(node.var, value))
    attrs = {k: v for k, v in caller.attrs.items() if k.startswith("tir_var_")}
    attrs |= {"global_symbol": name, "primitive": True}
    block = ir.BindingBlock(tuple(bindings), dataflow=True)
    result = group.sink.var
    body = ir.SeqExpr((block,), result, info=result.info)
    if symbols:
        shape = ir.ShapeExpr(tuple(symbols), info=ir.ShapeInfo(tuple(symbols), len(symbols)))
        label = next(n for n in chain(("s",), (f"s{k}" for k in count())) if n not in known)
        params.append(ir.GraphVar(label, False, info=shape.info))
        inputs.append(shape)
    return ir.GraphFunction(tuple(params), body, result.info, attrs), tuple(inputs)


def _symbol_argument(group: _Group, params: list[ir.GraphVar]) -> list[ir.Var]:
    """Symbols that the group uses and no parameter binds; passed as one shape parameter."""
    bound = {s for p in params for s in ir.symbolic_vars(p.info)}
    needed: dict[ir.Var, None] = {}
    for node in group.nodes:
        info = node.var.info
        dims = info.shape if isinstance(info, ir.TensorInfo) and info.shape is not None else ()
        for value in (*dims, *tir_symbols(node.binding.value)):
            needed.update((v, None) for v in ir.free_vars(value) if v not in bound)
    return list(needed)


class _Rename(ir.Mutator):
    """Replace values inside a call, including constants, but not in its annotations."""

    def __init__(self, mapping: dict[ir.Node, ir.Node]) -> None:
        super().__init__()
        self._memo.update(mapping)
