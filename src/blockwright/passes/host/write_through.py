"""WriteThrough: compute what overwrites a parameter in the memory of that parameter.

Before::

    @R.function
    def main(cache: R.Tensor((8,), "float32"), row: R.Tensor((2,), "float32")):
        new = R.call_tir(cls.update, (cache, row), R.Tensor((8,), "float32"))
        done = R.call_tir_inplace(
            cls.overwrite,
            (cache, new),
            inplace_indices=0,
            out_sinfo=R.Tensor((8,), "float32"),
        )
        return done

    @T.prim_func(private=True)
    def update(
        cache: T.Buffer((8,), "float32"),
        row: T.Buffer((2,), "float32"),
        out: T.Buffer((8,), "float32"),
    ):
        for i in range(8):
            with T.block("old"):
                v = T.axis.spatial(8, i)
                out[v] = cache[v]
        for i in range(2):
            with T.block("row"):
                v = T.axis.spatial(2, i)
                out[v + 3] = row[v]

    @T.prim_func(private=True)
    def overwrite(cache: T.Buffer((8,), "float32"), new: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("cache"):
                v = T.axis.spatial(8, i)
                cache[v] = new[v]

After::

    @R.function
    def main(cache: R.Tensor((8,), "float32"), row: R.Tensor((2,), "float32")):
        done = R.call_tir_inplace(
            cls.update_inplace,
            (cache, row, cache),
            inplace_indices=(2,),
            out_sinfo=R.Tensor((8,), "float32"),
        )
        return done

    @T.prim_func(private=True)
    def update_inplace(
        cache: T.Buffer((8,), "float32"),
        row: T.Buffer((2,), "float32"),
        out: T.Buffer((8,), "float32"),
    ):
        for i in range(2):
            with T.block("row"):
                v = T.axis.spatial(2, i)
                out[v + 3] = row[v]

An update of a model's input is imported as a new value and a copy of it. The copy is left out if
nothing reads the old content from then on, and the program that computes the value

  * does not read the parameter; or
  * reads each element of it only to store the new one at the same place; or
  * reads it only to copy elements to their own places, which needs no copying then. Other stores to
    the result come after such a copy, or write other elements.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import BlockScope, Tree, sole_blocks, symbol_facts
from blockwright.analysis.in_place import overwritable_operands
from blockwright.analysis.pattern import stores_apart
from blockwright.arith import jointly_cover
from blockwright.graph.updates import overwritten_arguments
from blockwright.interp.memories import Memories
from blockwright.ir.attributes import WORKSPACES
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.fusion.fuse_tir import drop_unused
from blockwright.passes.host.in_place import marked
from blockwright.passes.host.liveness import Liveness, is_view, live_ranges
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.rewrite import (
    Replace,
    flat_function,
    graph_functions,
    tir_args,
    tir_callee,
    used_vars,
)


@graph_pass
def write_through(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Leave out copies of new values into parameters where the values can be computed there."""
    table = ProgramTable(module)
    for name, function in graph_functions(module):
        copies = [b for b in function.bindings if _copied(b, module) is not None]
        if copies:
            table.functions[name] = _rewritten(function, module, table)
    if table.functions == module.functions:
        return module
    return module.replace(functions=drop_unused(table.functions))


def _rewritten(
    function: ir.GraphFunction, module: ir.IRModule, table: ProgramTable
) -> ir.GraphFunction:
    live = live_ranges(function, module)
    at = {b.var: k for k, b in enumerate(function.bindings) if isinstance(b, ir.VarBinding)}
    moved: dict[int, ir.Binding] = {}
    dropped: set[int] = set()
    names = Replace({})
    for position, binding in enumerate(function.bindings):
        pair = _copied(binding, module)
        start = None if pair is None else at.get(pair[1])
        if pair is None or start is None or start in moved:
            continue
        param, new = pair
        if not _is_free(function, live, param, new, (start, position)):
            continue
        producer = function.bindings[start]
        assert isinstance(producer, ir.VarBinding)
        assert isinstance(binding, ir.VarBinding)
        call = _in_memory_of(producer, param, live, module, table)
        if call is not None:
            moved[start] = ir.VarBinding(binding.var, call)
            dropped.add(position)
            names.values[new] = binding.var
    bindings = [
        names(moved.get(k, b)) if k in moved else names(b)
        for k, b in enumerate(function.bindings)
        if k not in dropped
    ]
    return flat_function(function, bindings, names(function.body.body))


def _copied(binding: ir.Binding, module: ir.IRModule) -> tuple[ir.GraphVar, ir.GraphVar] | None:
    """The overwritten value and the one that is copied over it, if a binding does only that."""
    value = binding.value if isinstance(binding, ir.VarBinding) else None
    if not isinstance(value, ir.GraphCall) or overwritten_arguments(value) != {0: 0}:
        return None
    args, callee = tir_args(value), value.args[0]
    if len(args) != 2 or not all(isinstance(a, ir.GraphVar) for a in args):
        return None
    assert isinstance(callee, ir.GlobalVar)
    func = module[callee.name]
    assert isinstance(func, ir.PrimFunc)
    blocks = sole_blocks(func)
    if len(blocks) != 1 or len(func.buffers) != 2:
        return None
    target, source = func.buffers
    if not _moves(blocks[0], source, target) or not _writes_all(func, blocks[0], target):
        return None
    old, new = args
    assert isinstance(old, ir.GraphVar)
    assert isinstance(new, ir.GraphVar)
    return old, new


def _is_free(
    function: ir.GraphFunction,
    live: Liveness,
    param: ir.GraphVar,
    new: ir.GraphVar,
    span: tuple[int, int],
) -> bool:
    """Whether a parameter's old content is not needed after the new value is computed."""
    if param not in function.params or new in live.alias or new in live.results:
        return False
    start, end = span
    for position, binding in enumerate(function.bindings):
        if position <= start or position == end:
            continue
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        read = (root for var in used_vars(binding.value) for root in live.roots(var))
        if position < end and any(root is param for root in read):
            return False
        written = overwritten_arguments(binding.value).values()
        if any(live.root(tir_args(binding.value)[k]) is new for k in written):
            return False
    return True


def _in_memory_of(
    producer: ir.VarBinding,
    param: ir.GraphVar,
    live: Liveness,
    module: ir.IRModule,
    table: ProgramTable,
) -> ir.GraphCall | None:
    """The call that computes a value in the memory of a parameter; None if it cannot."""
    value, name = producer.value, tir_callee(producer.value)
    if name is None or not isinstance(value, ir.GraphCall) or overwritten_arguments(value):
        return None
    func = module[name]
    if len(value.out_info) != 1 or is_view(value, module) or func.attrs.get(WORKSPACES):
        return None
    args = tir_args(value)
    if not _alike(value.out_info[0], param.tensor_info):
        return None
    reads = [k for k, arg in enumerate(args) if live.root(arg) is param]
    if any(args[k] is not param for k in reads) or len(reads) > 1:
        return None
    own = _own_program(func, reads[0], len(args)) if reads else func
    if own is None:
        return None
    target = name if own is func else table.add(f"{name}_inplace", own)
    operands = (*args, param)
    infos = tuple(operand.tensor_info for operand in operands)
    return value.replace(
        op=ir.OpRef("call_tir_inplace"),
        args=(
            ir.GlobalVar(target),
            ir.TupleExpr(operands, info=ir.TupleInfo(infos)),
            *value.args[2:],
        ),
        attrs={"inplace_indices": (len(args),)},
    )


def _alike(info: ir.Info, other: ir.TensorInfo) -> bool:
    """Whether two values have equal sizes and types."""
    if not isinstance(info, ir.TensorInfo) or info.shape is None or other.shape is None:
        return False
    same = len(info.shape) == len(other.shape) and info.dtype is other.dtype
    return same and all(map(ir.structural_equal, info.shape, other.shape))


def _own_program(func: ir.PrimFunc, operand: int, result: int) -> ir.PrimFunc | None:
    """The program whose result may be in the memory of an operand; None if it may not."""
    read, written = func.buffers[operand], func.buffers[result]
    if not _mentions(func.body, read):
        return func
    if read in overwritable_operands(func, written):
        return marked(func, {str(result): operand})
    memories = Memories(func)
    writers = [b for b in sole_blocks(func) if memories.touched(b).get(written)]
    still = [b for b in writers if _moves(b, read, written)]
    if not still or len(still) == len(writers):
        return None
    if not _come_first(func, still, writers) and not stores_apart(writers, symbol_facts(func)):
        return None
    body = _Without(still)(func.body)
    kept = func.replace(body=body)
    return None if _mentions(kept.body, read) else kept


def _come_first(func: ir.PrimFunc, some: list[ir.Block], writers: list[ir.Block]) -> bool:
    """Whether some of the writers of a buffer have all run before the first of the others."""
    body = func.root.body
    stmts = body.seq if isinstance(body, ir.SeqStmt) else (body,)
    others = False
    for stmt in stmts:
        inside = ir.blocks(stmt)
        early = any(block in inside for block in some)
        others |= any(block in inside and block not in some for block in writers)
        if early and others:
            return False
    return True


def _mentions(node: ir.Node, buffer: ir.Buffer) -> bool:
    return any(n is buffer for n in ir.walk(node))


def _writes_all(func: ir.PrimFunc, block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether a block directly under the root writes every element of a buffer in every call."""
    flow, analyzer = BlockScope(Tree(func), func.root), symbol_facts(func)
    if block not in flow.writers.get(buffer, ()):
        return False
    filled = flow.filled([block], buffer, analyzer)
    return jointly_cover(filled, ir.full_region(buffer).region, analyzer)


def _moves(block: ir.Block, source: ir.Buffer, target: ir.Buffer) -> bool:
    """Whether a block only copies elements to the same places of another buffer."""
    store = block.body
    if block.init is not None or not isinstance(store, ir.BufferStore):
        return False
    load = store.value
    if not isinstance(load, ir.BufferLoad) or load.buffer is not source:
        return False
    if store.predicate is not None or load.predicate is not None:
        return False
    same = len(load.indices) == len(store.indices) and store.buffer is target
    return same and all(map(ir.structural_equal, load.indices, store.indices))


_NOTHING = ir.Evaluate(ir.const(0, "int32"))


class _Without(ir.Mutator):
    """Removes blocks, and the loops that are empty then."""

    def __init__(self, blocks: list[ir.Block]) -> None:
        super().__init__()
        self.blocks = blocks

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> ir.Stmt:
        return _NOTHING if any(node.block is b for b in self.blocks) else self.descend(node)

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        loop = self.descend(node)
        return _NOTHING if loop.body is _NOTHING else loop

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        kept = [stmt for part in node.seq if (stmt := self(part)) is not _NOTHING]
        return ir.seq(kept) if kept else _NOTHING
