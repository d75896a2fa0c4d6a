"""Which operands of a tensor program its result may overwrite.

    for i, j: Y[i, j] = f(X[i, j], W[j])        Y may be in the memory of X, not of W
    for i, j: Y[i, j] = X[j, i]                 no: X[j, i] may be overwritten before it is read

An operand qualifies if every element of it is read only by the statement that stores the element of
the result at the same place, and each such statement runs at most once for an element. Then no
order of execution reads an overwritten element.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from blockwright import ir
from blockwright.analysis.dataflow.contexts import BlockContext, block_contexts
from blockwright.analysis.pattern import stores_apart
from blockwright.arith import Analyzer, detect_iter_map
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND


def overwritable_operands(func: ir.PrimFunc, result: ir.Buffer) -> tuple[ir.Buffer, ...]:
    """Parameters in whose memory a result may be computed, if nothing else needs them.

    Arguments: `func` has a root block, scheduled or not; `result` is a parameter that it writes.
    """
    candidates = [b for b in func.buffers if b is not result and _alike(b, result)]
    if not candidates or not all(map(_is_dense, (result, *candidates))):
        return ()
    writers = [c for c in block_contexts(func, ()) if isinstance(c.block.body, ir.BufferStore)]
    writers = [c for c in writers if _store(c).buffer is result]
    stores = sum(isinstance(n, ir.BufferStore) and n.buffer is result for n in ir.walk(func.body))
    if not writers or stores != len(writers) or not _stored_once(func, writers):
        return ()
    taken = _addressed(func)
    if result in taken or _loads(func.body, result):
        return ()
    return tuple(b for b in candidates if b not in taken and _read_where_stored(func, b, writers))


def _store(context: BlockContext) -> ir.BufferStore:
    assert isinstance(context.block.body, ir.BufferStore)
    return context.block.body


def _alike(a: ir.Buffer, b: ir.Buffer) -> bool:
    """Whether elements with equal indices have equal addresses in dense memory."""
    same = len(a.shape) == len(b.shape) and a.dtype.nbytes == b.dtype.nbytes
    return same and all(map(ir.structural_equal, a.shape, b.shape))


def _is_dense(buffer: ir.Buffer) -> bool:
    return not buffer.strides and buffer.offset is None


def _addressed(func: ir.PrimFunc) -> set[ir.Buffer]:
    """Buffers that are accessed through views and pointers."""
    result = {view.source.buffer for block in ir.blocks(func.body) for view in block.match_buffers}
    for node in ir.walk(func.body):
        if isinstance(node, ir.DeclBuffer) or (isinstance(node, ir.Call) and node.dtype.is_handle):
            result.update(ir.collect(node, ir.Buffer))
    return result


def _loads(node: ir.Node, buffer: ir.Buffer) -> int:
    return sum(isinstance(n, ir.BufferLoad) and n.buffer is buffer for n in ir.walk(node))


def _stored_once(func: ir.PrimFunc, writers: Sequence[BlockContext]) -> bool:
    """Whether no element is stored twice in a call."""
    analyzer = Analyzer()
    lower, upper = func.attrs.get(LOWER_BOUND, {}), func.attrs.get(UPPER_BOUND, {})
    for var in {v for b in func.buffers for dim in b.shape for v in ir.free_vars(dim)}:
        analyzer.bind_bounds(var, lower.get(var.name, 0), upper.get(var.name))
    apart = len(writers) > 1 and stores_apart([c.block for c in writers], analyzer)
    for position, context in enumerate(writers):
        if any(isinstance(stmt, ir.While) for stmt in context.around):
            return False
        if not apart and any(not _exclusive(context, other) for other in writers[:position]):
            return False
        spatial = all(it.iter_type is ir.IterType.SPATIAL for it in context.block.iter_vars)
        if context.block.init is not None or not spatial:
            return False
        domains = {level.var: level.dom for level in context.path}
        places = [context.resolved(index) for index in _store(context).indices]
        guard = ir.all_of(context.guards)
        if not any(
            detect_iter_map(places, domains, where, analyzer, "injective").ok
            for where in (None, guard)
        ):
            return False
    return True


def _exclusive(a: BlockContext, b: BlockContext) -> bool:
    """Whether only one of two blocks runs in a call: they are in different branches."""
    pairs = list(zip(a.around, b.around, strict=False))
    for (stmt, other), (branch, other_branch) in pairwise(pairs):
        if stmt is not other or isinstance(stmt, ir.For):
            return False
        if isinstance(stmt, ir.IfThenElse) and branch is not other_branch:
            return True
    return False


def _read_where_stored(
    func: ir.PrimFunc, operand: ir.Buffer, writers: Sequence[BlockContext]
) -> bool:
    """Whether the operand is read only where the element at the same place is stored."""
    found = 0
    for context in writers:
        store = _store(context)
        for node in ir.walk(store.value):
            if not isinstance(node, ir.BufferLoad) or node.buffer is not operand:
                continue
            if not all(map(ir.structural_equal, node.indices, store.indices)):
                return False
            found += 1
    return found > 0 and found == _loads(func.body, operand)
