"""cache_index: precompute the read indices of a block into lookup buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from blockwright import ir
from blockwright.analysis.sizes import nonnegative
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import rewritten_accesses, with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_scope_name
from blockwright.schedule.legality.kept_values import Unmarked, as_index, inside
from blockwright.schedule.legality.own_loops import outermost
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name, visible_outside


class CacheIndex(Primitive, frozen=True, eq=False):
    """Precompute the indices at which a block reads into buffers, and load them from there.

    Not precomputed: write indices; indices that are a plain iterator or a constant; indices that
    read memory or divide by a non-constant; and subexpressions whose value may overflow their type.

    Args:
        block: the block, without inner blocks.
        storage_scope: scope of the buffers.
        cse_thresh: 0 caches whole indices; n > 0 caches the largest subexpressions that occur more
            than n times.

    Requires:
    - the block has no inner blocks (BW362);
    - the threshold is not negative (BW304);
    - iterators that the indices use start at 0 (BW350).

    Returns: the blocks that fill the buffers; empty if no index is cached.

    Before::

        @T.prim_func
        def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((32, 32), "float32")):
            for i, j in T.grid(32, 32):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi // 4, (vi + vj) % 8]

    Steps::

        sch.cache_index(sch.get_block("B"), "global")

    After::

        @T.prim_func
        def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((32, 32), "float32")):
            index_var_0 = T.alloc_buffer((32,), "int32")
            index_var_1 = T.alloc_buffer((32, 32), "int32")
            for ax0 in range(32):
                with T.block("index_0"):
                    v0 = T.axis.spatial(32, ax0)
                    index_var_0[v0] = v0 // 4
            for ax0, ax1 in T.grid(32, 32):
                with T.block("index_1"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    index_var_1[v0, v1] = (v0 + v1) % 8
            for i, j in T.grid(32, 32):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[index_var_0[vi], index_var_1[vi, vj]]
    """

    method: ClassVar[str] = "cache_index"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV
    storage_scope: str
    cse_thresh: int = 0

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        state.realize(block)
        if self.cse_thresh < 0:
            state.fail(
                f"cse_thresh must not be negative, got {self.cse_thresh}",
                code="BW304",
                guilty=[block],
                help="0 caches whole indices, n > 0 subexpressions that occur more than n times",
            )
        if state.tree.child_blocks(block):
            state.fail(
                f"block {block.name} has inner blocks, to which the indices belong",
                code="BW362",
                guilty=[block],
                help="choose one of them: "
                + ", ".join(b.name for b in state.tree.child_blocks(block)),
            )
        sorts = ir.Sorts(ir.value_variables(state.func))
        exact = Unmarked(sorts, inside(state, state.tree.realize(block)))
        chosen = self._chosen(block, visible_outside(state, block), exact)
        scope = state.scope(block)
        edit = Edit(state)
        at = outermost(state, block, scope)
        created: list[ir.Block] = []
        result: list[tuple[ir.Expr, ir.Expr]] = []
        for number, expr in enumerate(chosen):
            lookup, fill = self._cached(state, edit, block, expr, number, at)
            result.append((expr, lookup))
            created.append(fill)
        if not created:
            return StepResult(state.func)
        new = _replaced(block, result, exact)
        edit.replace_block(block, with_signature(new, state.signature_facts(block)))
        edit.refresh_signatures()
        return edit.finish(*created)

    def _chosen(self, block: ir.Block, outside: set[ir.Var], exact: Unmarked) -> list[ir.Expr]:
        """Return the expressions to cache, without duplicates, in order of occurrence."""
        iters = {it.var for it in block.iter_vars}
        counts: list[tuple[ir.Expr, int]] = []
        for whole in _read_indices(block):
            parts = [whole] if self.cse_thresh == 0 else list(_parts(whole))
            for part in parts:
                if not _is_computed(part, iters, outside):
                    continue
                if part is not whole and not _is_stored_exactly(part, exact):
                    continue
                for k, (known, count) in enumerate(counts):
                    if ir.structural_equal(known, part):
                        counts[k] = (known, count + 1)
                        break
                else:
                    counts.append((part, 1))
        often = [e for e, count in counts if count > self.cse_thresh]
        if self.cse_thresh == 0:
            return often
        # Drop a subexpression that occurs only inside other chosen expressions.
        inner = [p for e in often for p in list(_parts(e))[1:]]
        count_of = {id(e): count for e, count in counts}
        return [
            e
            for e in often
            if not any(ir.structural_equal(e, p) for p in inner) or _outnumbers(e, often, count_of)
        ]

    def _cached(
        self, state: StepState, edit: Edit, block: ir.Block, expr: ir.Expr, number: int, at: ir.Stmt
    ) -> tuple[ir.Expr, ir.Block]:
        """Insert the block that computes an index; return the lookup expression and the block."""
        used = [it for it in block.iter_vars if ir.uses_var(expr, it.var)]
        for it in used:
            if not ir.is_const_int(it.dom.min, 0):
                state.fail(
                    f"iterator {it.var.name} of {block.name} does not start at 0",
                    code="BW350",
                    guilty=[it, block],
                    help="use transform_block_layout first, to iterators that start at 0",
                )
        name = fresh_name(state, f"index_var_{number}")
        around = state.analyzer(state.scope(block).body)
        shape = tuple(nonnegative(it.dom.extent, around) for it in used)
        buffer = ir.Buffer(name, expr.dtype, shape, scope=self.storage_scope)
        variables = [it.var for it in used]
        nest, result = copy_nest(
            fresh_name(state, f"index_{number}"),
            buffer,
            lambda v: v,
            lambda v: ir.substitute(expr, dict(zip(variables, v, strict=True))),
            [it.dom for it in used],
            around,
        )
        edit.allocate(state.scope(block), buffer)
        edit.insert_before(at, nest)
        return ir.BufferLoad(buffer, tuple(variables)), result


def _outnumbers(expr: ir.Expr, often: list[ir.Expr], count_of: dict[int, int]) -> bool:
    """Whether an expression also occurs outside the chosen expressions that contain it."""
    inside = 0
    for other in often:
        if other is not expr:
            holds = sum(ir.structural_equal(expr, p) for p in list(_parts(other))[1:])
            inside += holds * count_of[id(other)]
    return count_of[id(expr)] > inside


def _read_indices(block: ir.Block) -> Iterator[ir.Expr]:
    """Yield the indices of all loads in a block, with duplicates."""
    stack: list[ir.Node] = [block.body]
    while stack:
        node = stack.pop(0)
        if isinstance(node, ir.BufferLoad):
            yield from node.indices
        stack = [c for c in node.children() if not isinstance(c, ir.Buffer)] + stack


def _parts(expr: ir.Expr) -> Iterator[ir.Expr]:
    """Yield an expression and its subexpressions in preorder."""
    yield expr
    for child in expr.children():
        if isinstance(child, ir.Expr):
            yield from _parts(child)


def _is_computed(expr: ir.Expr, iters: set[ir.Var], outside: set[ir.Var]) -> bool:
    """Whether an index is worth caching and can be computed outside the block's body."""
    plain = isinstance(expr, (ir.Var, ir.IntImm)) or (
        isinstance(expr, ir.Cast) and isinstance(expr.value, (ir.Var, ir.IntImm))
    )
    if plain or not expr.dtype.is_int or not expr.dtype.is_scalar:
        return False
    used = set(ir.free_vars(expr))
    if not used & iters or used - iters - outside:
        return False
    divides = (ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod)
    for node in ir.walk(expr):
        unknown = isinstance(node, divides) and not (ir.const_int(node.b) or 0) > 0
        if unknown or isinstance(node, (ir.BufferLoad, ir.Call)):
            return False
    return True


def _is_stored_exactly(expr: ir.Expr, exact: Unmarked) -> bool:
    """Whether an index expression is stored without overflow in memory of its type.

    Whole indices always fit, because they are within a dimension.
    """
    return expr.dtype.bits == 64 or exact.fits(expr)


def _replaced(block: ir.Block, found: list[tuple[ir.Expr, ir.Expr]], exact: Unmarked) -> ir.Block:
    """Replace expressions in the load indices of a block with lookups."""
    parts = [(e, as_index(load, exact.sorts)) for e, load in found if _is_stored_exactly(e, exact)]

    def part(index: ir.Expr) -> ir.Expr:
        for expr, lookup in parts:
            if ir.structural_equal(index, expr):
                return lookup
        return index.map_children(lambda c: part(c) if isinstance(c, ir.Expr) else c)

    def looked_up(index: ir.Expr) -> ir.Expr:
        for expr, load in found:
            if ir.structural_equal(index, expr):
                return load
        return exact(part(index))

    def change(node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        if isinstance(node, ir.BufferStore):
            return node
        return node.replace(indices=tuple(looked_up(i) for i in node.indices))

    body = rewritten_accesses(block.body, change)
    return block.replace(body=body)
