"""Transpose square tiles in registers: replace strided gathers by row loads and shuffles.

Before, with rows of A at a stride of S elements::

    for i in T.unroll(4):
        B[T.Ramp(b + i * R, 1, 4)] = A[T.Ramp(a + i, S, 4)]       # gathers

After::

    r0 = A[T.Ramp(a, 1, 4)]                                       # rows of A
    r1, r2, r3 = A[T.Ramp(a + S, 1, 4)], …
    u0 = T.shuffle([r0, r1], [0, 4, 2, 6])                        # transpose 2 x 2 blocks
    u1 = T.shuffle([r0, r1], [1, 5, 3, 7])
    u2, u3 = …                                                    # of r2 and r3
    t0 = T.shuffle([u0, u2], [0, 1, 4, 5])                        # then blocks of 2 x 2
    …
    B[T.Ramp(b, 1, 4)] = t0
    B[T.Ramp(b + R, 1, 4)] = t1
    …

The same elements are read, all before the first store; the stored buffer does not alias the loaded
one. An n × n tile takes n loads and n log2 n shuffles instead of n² loads by gathers.

An element of a tile may also be a group of g adjacent ones, which panels of dot products keep
together. Before::

    for i in T.unroll(4):
        for j in T.unroll(2):
            B[T.Ramp(b + i * R + j, 2, 4)] = A[T.Ramp(a + i * 2 + j, S, 4)]

After, a row is 4 groups of 2 elements, and a shuffle moves whole groups.

Rows are loaded before any element is stored, so loads under a guard of their own stay gathers. A
guard that all iterations share moves around the loop; the tile under it is transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.reduction.reducer_step import under_lets
from blockwright.arith import Analyzer, defined
from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    Allocate,
    Buffer,
    BufferLoad,
    BufferStore,
    Expr,
    For,
    ForKind,
    IfThenElse,
    Node,
    PrimFunc,
    Ramp,
    Shuffle,
    Stmt,
    Var,
    add,
    all_of,
    build,
    collect,
    const,
    const_int,
    is_const_int,
    mul,
    structural_equal,
    sub,
    substitute,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Analysed, Instantiate, Statements, reads_memory, sequence
from blockwright.target import GATHER_STRIDE

LARGEST = 16
"""Largest number of rows in a tile; more rows leave no registers for the transpose."""

_MOST_NAMED = 160
"""Limit on nested let variables per loop: two tiles of 16 rows fill the registers of any processor.
Further tiles are transposed into local buffers."""


@lowering_pass
def transpose_tiles(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Replace gathers in unrolled loops whose iterations gather adjacent elements."""
    return func.replace(body=_Tiles(function_analyzer(func), memory_roots(func))(func.body))


class _Tiles(Analysed, Statements):
    def __init__(self, analyzer: Analyzer, roots: dict[Buffer, Buffer]) -> None:
        super().__init__(analyzer)
        self.roots = roots

    def rewrite_For(self, node: For) -> Stmt:
        with self.inside(node.loop_var, node.dom):
            grouped = _of_groups(node, self.analyzer, self.roots)
            if grouped is not None:
                return grouped
            node = node.replace(body=self(node.body))
            guarded = _guarded(node, self.analyzer)
            if guarded is not None:
                condition, inside, outside = guarded
                result = _across(inside, self.analyzer, self.roots)
                if result:
                    turned = _turned(inside, result, self.analyzer)
                    return IfThenElse(condition, turned, outside)
            result = _across(node, self.analyzer, self.roots)
        return _turned(node, result, self.analyzer) if result else node


def _size(loop: For) -> int:
    """The number of rows of the tile that an unrolled loop may read; 0 if it reads none."""
    size = const_int(loop.extent)
    if loop.kind is not ForKind.UNROLLED or size is None or not 2 < size <= LARGEST:
        return 0
    return 0 if size & (size - 1) else size


def _of_groups(loop: For, analyzer: Analyzer, roots: dict[Buffer, Buffer]) -> Stmt | None:
    """The transposed copy of a tile of groups; None if the loop is not such a copy."""
    size, inner = _size(loop), loop.body
    if not size or not isinstance(inner, For) or inner.kind is not ForKind.UNROLLED:
        return None
    group, store = const_int(inner.extent), inner.body
    if group is None or not isinstance(store, BufferStore):
        return None
    to, load = store.indices[0], store.value
    if not isinstance(load, BufferLoad) or not isinstance(to, Ramp):
        return None
    if load.predicate is not None or store.predicate is not None or collect(store, E.Let):
        return None
    if roots.get(load.buffer, load.buffer) is roots.get(store.buffer, store.buffer):
        return None
    at = load.indices[0]
    if load.dtype.lanes != size or load.buffer.dtype.is_bool or not is_const_int(to.stride, group):
        return None
    steps = ((to, inner, 1), (at, inner, 1), (at, loop, group))
    if not all(_moves_by(step, index, over.loop_var, analyzer) for index, over, step in steps):
        return None
    first = substitute(store, {inner.loop_var: inner.min})
    assert isinstance(first, BufferStore)
    assert isinstance(first.value, BufferLoad)
    assert isinstance(first.indices[0], Ramp)
    lets: list[tuple[Var, Expr]] = []
    vectors = _columns(first.value, loop, lets, analyzer, group)
    place = first.indices[0]
    row = Ramp(place.base, const(1, place.base.dtype), size * group)
    stores: list[Stmt] = [
        BufferStore(
            store.buffer,
            vector,
            (substitute(row, {loop.loop_var: add(loop.min, const(step, loop.min.dtype))}),),
        )
        for step, vector in enumerate(vectors)
    ]
    return under_lets(lets, sequence(stores))


def _guarded(loop: For, analyzer: Analyzer) -> tuple[Expr, For, For] | None:
    """The guard of the stored value that all iterations share, the loop under it, and otherwise.

    None if there is no such guard. Rows that several iterations read can be loaded only where the
    guard of all of them holds: padding, for example, lies outside of the array.
    """
    store = loop.body
    if not _size(loop) or not isinstance(store, BufferStore):
        return None
    sides = _sides(store.value)
    if sides is None:
        return None
    condition, yes, no = sides
    parts = list(conjuncts(condition))
    own = [part for part in parts if uses_var(part, loop.loop_var) or reads_memory(part)]
    shared = [part for part in parts if all(part is not other for other in own)]
    outside = defined(all_of(shared), analyzer) if shared else None
    if condition.dtype.lanes > 1 or outside is None:
        return None
    value = build.if_then_else(all_of(own), yes, no) if own else yes
    otherwise = loop.replace(body=store.replace(value=no))
    inside = loop.replace(body=store.replace(value=value))
    return outside, inside, Instantiate({})(otherwise)


def _sides(value: Node) -> tuple[Expr, Expr, Expr] | None:
    """The condition of a value and its two sides, of which one is evaluated."""
    if not isinstance(value, E.Call) or value.op != "if_then_else":
        return None
    condition, yes, no = value.args
    return condition, yes, no


def _loads(value: Expr) -> list[BufferLoad]:
    """The loads that are evaluated whatever the conditions in the value are."""
    result: dict[BufferLoad, None] = {}
    stack: list[Node] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, BufferLoad):
            result[node] = None
        sides = _sides(node)
        stack += node.children()[::-1] if sides is None else sides[:1]
    return list(result)


def _across(loop: For, analyzer: Analyzer, roots: dict[Buffer, Buffer]) -> list[BufferLoad]:
    """The gathers of the loop that together read a square tile of adjacent elements."""
    size, store = _size(loop), loop.body
    if not size or not isinstance(store, BufferStore):
        return []
    if store.predicate is not None or collect(store, E.Let):
        return []
    written = roots.get(store.buffer, store.buffer)
    return [
        load
        for load in _loads(store.value)
        if roots.get(load.buffer, load.buffer) is not written
        and load.predicate is None
        and load.dtype.lanes == size
        and not load.buffer.dtype.is_bool
        and not _near(load.indices[0])
        and _moves_by(1, load.indices[0], loop.loop_var, analyzer)
    ]


def _near(index: Expr) -> bool:
    """Whether code generation emits loads and shuffles, as cheap as a transpose."""
    stride = const_int(index.stride) if isinstance(index, Ramp) else None
    return stride is not None and abs(stride) <= GATHER_STRIDE


def _moves_by(step: int, index: Expr, var: Var, analyzer: Analyzer) -> bool:
    """Whether an index of lanes moves by `step` with each iteration of a loop."""
    if not isinstance(index, Ramp) or uses_var(index.stride, var):
        return False
    after = substitute(index.base, {var: add(var, const(1, var.dtype))})
    return is_const_int(analyzer.simplify(sub(after, index.base)), step)


def _turned(loop: For, loads: Sequence[BufferLoad], analyzer: Analyzer) -> Stmt:
    lets: list[tuple[Var, Expr]] = []
    columns: dict[BufferLoad, Sequence[Expr]] = {}
    waiting: list[tuple[Buffer, Stmt]] = []
    for load in loads:
        same = next((one for one in columns if _same(one, load)), None)
        if same is not None:
            columns[load] = columns[same]
        elif len(lets) < _MOST_NAMED:
            columns[load] = _columns(load, loop, lets, analyzer)
        else:
            buffer, filled = _in_memory(load, loop, analyzer)
            waiting.append((buffer, filled))
            columns[load] = [_row(buffer, row) for row in range(load.dtype.lanes)]
    stores: list[Stmt] = []
    for step in range(const_int(loop.extent) or 0):
        place = add(loop.min, const(step, loop.min.dtype))
        values = {load: vectors[step] for load, vectors in columns.items()}
        stores.append(
            Instantiate({loop.loop_var: place, **values}, fresh_definitions=step > 0)(loop.body)
        )
    result = sequence([*(fill for _, fill in waiting), under_lets(lets, sequence(stores))])
    for buffer, _ in waiting:
        result = Allocate(buffer, result)
    return result


def _in_memory(load: BufferLoad, loop: For, analyzer: Analyzer) -> tuple[Buffer, Stmt]:
    """A local buffer for a transposed tile, and the statement that fills it."""
    size = load.dtype.lanes
    shape = (const(size * size, "int64"),)
    buffer = Buffer(f"{load.buffer.name}_turned", load.buffer.dtype, shape, scope="local")
    lets: list[tuple[Var, Expr]] = []
    vectors = _columns(load, loop, lets, analyzer)
    stores = [
        BufferStore(buffer, vector, _row(buffer, row).indices) for row, vector in enumerate(vectors)
    ]
    return buffer, under_lets(lets, sequence([*stores]))


def _row(buffer: Buffer, row: int) -> BufferLoad:
    size = math.isqrt(const_int(buffer.shape[0]) or 0)
    return BufferLoad(buffer, (Ramp(const(row * size, "int64"), const(1, "int64"), size),))


def _same(a: BufferLoad, b: BufferLoad) -> bool:
    return a.buffer is b.buffer and structural_equal(a.indices, b.indices)


def _columns(
    load: BufferLoad, loop: For, lets: list[tuple[Var, Expr]], analyzer: Analyzer, group: int = 1
) -> list[Var]:
    """The vectors loaded by each iteration, built from rows; steps are appended to `lets`.

    With groups, each lane of the load is the first element of a group.
    """

    def kept(value: Expr) -> Var:
        var = Var(f"{load.buffer.name}_{len(lets)}", value.dtype)
        lets.append((var, value))
        return var

    index = load.indices[0]
    assert isinstance(index, Ramp)
    size = index.lanes
    first = substitute(index.base, {loop.loop_var: loop.min})
    one = const(1, first.dtype)
    vectors: list[Var] = []
    for row in range(size):
        base = analyzer.simplify(add(first, mul(index.stride, row)))
        vectors.append(kept(load.replace(indices=(Ramp(base, one, size * group),))))
    block = 1
    while block < size:
        low = _of_elements([k if not k & block else size + k - block for k in range(size)], group)
        high = _of_elements([k + block if not k & block else size + k for k in range(size)], group)
        transposed = list(vectors)
        for row in range(size):
            if not row & block:
                pair = (vectors[row], vectors[row + block])
                transposed[row] = kept(Shuffle(pair, low))
                transposed[row + block] = kept(Shuffle(pair, high))
        vectors, block = transposed, 2 * block
    return vectors


def _of_elements(lanes: Sequence[int], group: int) -> tuple[int, ...]:
    """Positions of the elements of groups."""
    return tuple(lane * group + k for lane in lanes for k in range(group))
