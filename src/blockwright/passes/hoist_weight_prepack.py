"""LiftConstantPrologue: hoist packing of constant weights out of kernels, to compile time.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_tir(
            cls.kernel,
            (x, R.const([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], "float32")),
            R.Tensor((2,), "float32"),
        )
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def kernel(
        x: T.Buffer((4,), "float32"), w: T.Buffer((2, 4), "float32"), y: T.Buffer((2,), "float32")
    ):
        packed = T.alloc_buffer((4, 2), "float32")
        for i, j in T.grid(4, 2):
            with T.block("packed"):
                vi, vj = T.axis.remap("SS", [i, j])
                packed[vi, vj] = w[vj, vi]
        for i, k in T.grid(2, 4):
            with T.block("y"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vk] * packed[vk, vi]

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y_w1 = R.call_tir(
            cls.kernel_pack,
            (R.const([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], "float32"),),
            R.Tensor((4, 2), "float32"),
        )
        y = R.call_tir(cls.kernel, (x, y_w1), R.Tensor((2,), "float32"))
        return y

    @T.prim_func(private=True, index_dtype="int64")
    def kernel(x: T.Buffer((4,), "float32"), w_handle: T.handle, y: T.Buffer((2,), "float32")):
        packed = T.match_buffer(w_handle, (4, 2), "float32")
        for i, k in T.grid(2, 4):
            with T.block("y"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vk] * packed[vk, vi]

    @T.prim_func(private=True, index_dtype="int64")
    def kernel_pack(w: T.Buffer((2, 4), "float32"), packed: T.Buffer((4, 2), "float32")):
        T.func_attr({"tir.noalias": True, "op": "pack"})
        for i, j in T.grid(4, 2):
            with T.block("pack1"):
                vi, vj = T.axis.remap("SS", [i, j])
                packed[vi, vj] = w[vj, vi]

The schedule that creates the nest (`cache_read` followed by `transform_layout`) remains the only
place that chooses a layout. Constant folding then evaluates the packing once, natively.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.analysis import may_return
from blockwright.analysis.facts import symbols_of
from blockwright.analysis.sole_blocks import effects
from blockwright.graph.tir_calls import buffer_info
from blockwright.interp.memories import Memories
from blockwright.ir.attributes import NOALIAS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.rewrite import (
    call_tir,
    constant_positions,
    flat_function,
    graph_functions,
    tir_args,
    tir_callee,
    tir_symbols,
)


class Pack(msgspec.Struct, frozen=True, eq=False):
    """A function that packs a constant: `func(source, packed)`."""

    func: ir.PrimFunc
    packed: ir.Buffer


class PackSplit(msgspec.Struct, frozen=True, eq=False):
    """Packing of one parameter of a kernel: the packed buffers replace the parameter."""

    position: int
    packs: tuple[Pack, ...]


def _static(buffer: ir.Buffer) -> bool:
    return all(isinstance(d, ir.IntImm) for d in buffer.shape)


class Touched(msgspec.Struct, frozen=True):
    """Buffers that a statement reads and may write, with views and pointers resolved.

    `acts`: it also does something that must happen in every call, such as a foreign call.
    """

    reads: frozenset[ir.Buffer]
    writes: frozenset[ir.Buffer]
    acts: bool

    @property
    def all(self) -> frozenset[ir.Buffer]:
        return self.reads | self.writes


Uses = dict[ir.Stmt, Touched]


def _touched(stmt: ir.Stmt, memories: Memories) -> Touched:
    reads = {load.buffer for load in ir.collect(stmt, ir.BufferLoad)}
    writes = {buffer for buffer, written in memories.touched(stmt).items() if written}
    writes |= {region.buffer for block in ir.blocks(stmt) for region in block.writes}
    actions = effects(stmt)
    for call in actions:
        writes.update(memories.passed(call))
    found = [{m for b in buffers for m in memories.of(b)} for buffers in (reads, writes)]
    return Touched(*map(frozenset, found), acts=bool(actions))


def split_prologue(func: ir.PrimFunc, constant: set[int]) -> tuple[ir.PrimFunc, list[PackSplit]]:
    """Remove the nests that only pack a constant parameter from the kernel."""
    root = func.root
    if may_return(root.body):
        return func, []
    stmts = list(root.body.seq) if isinstance(root.body, ir.SeqStmt) else [root.body]
    memories = Memories(func)
    uses = {stmt: _touched(stmt, memories) for stmt in stmts}
    splits: list[PackSplit] = []
    for position in sorted(constant):
        source = func.buffers[position]
        chains = _chains(func, stmts, uses, source)
        packs = tuple(
            Pack(_pack_function(func, chain, uses, source, packed), packed)
            for chain, packed in chains
        )
        if packs:
            splits.append(PackSplit(position, packs))
            moved = {stmt for chain, _ in chains for stmt in chain}
            stmts = [s for s in stmts if s not in moved]
    return (_without(func, stmts, splits), splits) if splits else (func, [])


Chain = tuple[list[ir.Stmt], ir.Buffer]
"""Nests, each of which reads only the result of the one before, and the result of the last."""


def _chains(func: ir.PrimFunc, stmts: list[ir.Stmt], uses: Uses, source: ir.Buffer) -> list[Chain]:
    """The chains of nests that read a parameter; none if another statement accesses it."""
    chains: list[Chain] = []
    for first in (s for s in stmts if source in uses[s].all):
        chain = _chain(func, stmts, uses, source, first)
        if not chain[0]:
            return []
        chains.append(chain)
    return chains


def _chain(
    func: ir.PrimFunc, stmts: list[ir.Stmt], uses: Uses, source: ir.Buffer, first: ir.Stmt
) -> Chain:
    """Longest chain of nests that begins with `first` and packs `source`.

    Each nest after the first is the only statement that accesses the result of the one before, and
    no nest depends on sizes of other parameters or does anything but compute its result.
    """
    chain: list[ir.Stmt] = []
    users, sizes = [first], set(symbols_of(func))
    while _static(source) and len(users) == 1 and not ir.uses_var(users[0], sizes):
        own, others = uses[users[0]], [uses[s] for s in stmts if s is not users[0]]
        if own.acts:
            break
        elsewhere = frozenset(func.buffers).union(*(used.all for used in others))
        result = own.writes & elsewhere
        if own.reads - own.writes != frozenset({source}) or len(result) != 1:
            break
        (target,) = result
        if all(target is not b for b in func.root.alloc_buffers) or not _static(target):
            break
        if any(target in used.writes for used in others):
            break
        chain.append(users[0])
        source = target
        users = [s for s in stmts if source in uses[s].all and s not in chain]
    return chain, source


def _pack_function(
    func: ir.PrimFunc, chain: list[ir.Stmt], uses: Uses, source: ir.Buffer, target: ir.Buffer
) -> ir.PrimFunc:
    between = {b for stmt in chain for b in uses[stmt].writes if b is not target}
    # Canonical block names: kernels with equal packing share its program and the packed weight.
    body = _Neutral()(ir.seq(chain))
    packed = target.replace(scope="global")
    if packed is not target:
        body = ir.substitute(body, {target: packed})
    allocated = [b for b in func.root.alloc_buffers if b in between]
    attrs = {"global_symbol": f"{func.name}_pack", NOALIAS: True, "op": "pack"}
    attrs |= ir.kernel_attrs(func)
    return ir.prim_func(body, (source, packed), allocated=allocated, attrs=attrs)


class _Neutral(ir.Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        self.blocks += 1
        name = f"pack{self.blocks}"
        return self.descend(node).replace(name=name)


def _without(func: ir.PrimFunc, stmts: list[ir.Stmt], splits: list[PackSplit]) -> ir.PrimFunc:
    packed = {split.position: [p.packed for p in split.packs] for split in splits}
    moved = {buffer for buffers in packed.values() for buffer in buffers}
    root = func.root
    used = {buffer for stmt in stmts for buffer in ir.collect(stmt, ir.Buffer)} - moved
    slim = root.replace(
        body=ir.seq(stmts), alloc_buffers=tuple(b for b in root.alloc_buffers if b in used)
    )
    bound: dict[ir.Var, list[tuple[ir.Var, ir.Buffer]]] = {
        handle: [
            (handle if k == 0 else ir.Var(f"{one.name}_handle", handle.dtype), one)
            for k, one in enumerate(packed.get(i, [buffer]))
        ]
        for i, (handle, buffer) in enumerate(func.buffer_map)
    }
    params = [
        new
        for old in func.params
        for new in ([handle for handle, _ in bound[old]] if old in bound else [old])
    ]
    pairs = tuple(pair for result in bound.values() for pair in result)
    realize = func.body.replace(block=slim)
    return func.replace(params=tuple(params), buffer_map=pairs, body=realize)


@graph_pass
def hoist_weight_prepack(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Split kernels whose packed parameters are constants in every call."""
    constant = constant_positions(module)
    table = ProgramTable(module)
    lifted: Lifted = {}
    for name, positions in constant.items():
        func = module[name]
        slim, splits = split_prologue(func, positions)
        if splits:
            table.replace(name, slim)
            lifted[name] = {
                s.position: [(table.add(f"{name}_pack", p.func), p.packed) for p in s.packs]
                for s in splits
            }
    for name, function in graph_functions(module):
        table.functions[name] = _rewrite(function, lifted)
    return module.replace(functions=table.functions)


Lifted = dict[str, dict[int, list[tuple[str, ir.Buffer]]]]
"""Kernel → position of a parameter → the functions that pack it, each with its result."""


def _rewrite(function: ir.GraphFunction, lifted: Lifted) -> ir.GraphFunction:
    bindings: list[ir.Binding] = []
    for binding in function.bindings:
        name = tir_callee(binding.value) if isinstance(binding, ir.VarBinding) else None
        if name in lifted and isinstance(binding, ir.VarBinding):
            args: list[ir.GraphExpr] = []
            for position, arg in enumerate(tir_args(binding.value)):
                packs = lifted[name].get(position)
                if packs is None:
                    args.append(arg)
                    continue
                for k, (pack, packed) in enumerate(packs):
                    info = buffer_info(packed)
                    suffix = f"{position}_{k}" if k else f"{position}"
                    var = ir.GraphVar(f"{binding.var.name}_w{suffix}", True, info=info)
                    bindings.append(ir.VarBinding(var, call_tir(pack, [arg], [info])))
                    args.append(var)
            out = binding.value.out_info if isinstance(binding.value, ir.GraphCall) else ()
            value = call_tir(name, args, out, tir_symbols(binding.value))
            binding = ir.VarBinding(binding.var, value)
        bindings.append(binding)
    return flat_function(function, bindings)
