"""pad_einsum: a contraction on a domain rounded up to whole tiles."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.schedule.buffers import (
    accesses_to,
    copy_nest,
    fresh_name,
    nest_of,
    require_home,
    trivial_loops,
    with_regions,
)
from blockwright.schedule.checks import require_alone
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.primitive.reindex import outermost
from blockwright.schedule.record import Primitive, Returns
from blockwright.schedule.state import State, Step


class PadEinsum(Primitive, frozen=True, eq=False):
    """Round the iterators of a contraction up to multiples, with padded copies around it.

    Args:
        block: a block under loops of its own whose accesses are plain iterators.
        padding: per iterator, what its extent becomes a multiple of; 1 leaves it.
        mode: what padded elements of the operands hold: "zero", or "clamp" for the nearest
            element that exists (no branch when reading; only for spatial iterators, whose padded
            results are never read).

    Requires: one written buffer, allocated in the program; reduction iterators are padded only in
    mode "zero" and only for sums.
    Returns: the blocks that copy operands, then the one that copies the result back, for those
    that padding concerns.

    Before::

        @T.prim_func
        def main(a: T.handle, B: T.Buffer((64, 32), "float32"), d: T.handle):
            n = T.int32()
            A = T.match_buffer(a, (n, 64), "float32")
            D = T.match_buffer(d, (n, 32), "float32")
            C = T.alloc_buffer((n, 32), "float32")
            for i, j, k in T.grid(n, 32, 64):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
            for i, j in T.grid(n, 32):
                with T.block("D"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = C[vi, vj] + 1.0

    Steps::

        sch.pad_einsum(sch.get_block("C"), [8, 1, 1], mode="clamp")

    After::

        @T.prim_func
        def main(a: T.handle, B: T.Buffer((64, 32), "float32"), d: T.handle):
            n = T.int32()
            A = T.match_buffer(a, (n, 64), "float32")
            D = T.match_buffer(d, (n, 32), "float32")
            C = T.alloc_buffer((n, 32), "float32")
            A_pad = T.alloc_buffer(((n + 7) // 8 * 8, 64), "float32")
            C_pad = T.alloc_buffer(((n + 7) // 8 * 8, 32), "float32")
            for ax0, ax1 in T.grid((n + 7) // 8 * 8, 64):
                with T.block("A_pad"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A_pad[v0, v1] = A[T.min(v0, n - 1), v1]
            for i, j, k in T.grid((n + 7) // 8 * 8, 32, 64):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C_pad[vi, vj] = T.float32(0)
                    C_pad[vi, vj] = C_pad[vi, vj] + A_pad[vi, vk] * B[vk, vj]
            for ax0, ax1 in T.grid(n, 32):
                with T.block("C_pad"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    C[v0, v1] = C_pad[v0, v1]
            for i, j in T.grid(n, 32):
                with T.block("D"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = C[vi, vj] + 1.0
    """

    method: ClassVar[str] = "pad_einsum"
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV
    padding: tuple[int, ...]
    mode: str = "zero"

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        loops = trivial_loops(state, block, self.method)
        self._check(state, block)
        analyzer = state.analyzer(block)
        padded: dict[ir.Var, tuple[ir.Expr, ir.Expr]] = {}
        for it, unit in zip(block.iter_vars, self.padding, strict=True):
            old = it.dom.extent
            new = analyzer.simplify(ir.ceildiv(old, unit) * unit)
            if not analyzer.prove_equal(old, new):
                padded[it.var] = (old, new)
        if not padded:
            return Step(state.func)
        return _Padding(state, block, loops, padded, self.mode, analyzer).step()

    def _check(self, state: State, block: ir.Block) -> None:
        if len(self.padding) != len(block.iter_vars) or any(p < 1 for p in self.padding):
            state.fail(
                f"padding needs one number of at least 1 for each of the "
                f"{len(block.iter_vars)} iterators",
                code="BW326",
                guilty=[block],
            )
        if self.mode not in ("zero", "clamp"):
            state.fail(f"mode must be 'zero' or 'clamp', got {self.mode!r}", code="BW326")
        if len(block.writes) != 1:
            state.fail("the block must write one buffer", code="BW326", guilty=[block])
        for it, unit in zip(block.iter_vars, self.padding, strict=True):
            if it.iter_type is ir.IterType.SPATIAL or unit == 1:
                continue
            if self.mode == "clamp" or not _is_product_sum(block):
                state.fail(f"reduction iterator {it.var.name} cannot be padded: the padded terms "
                           "would count", code="BW326", guilty=[block],
                           help='pad sums of products with mode="zero"')  # fmt: skip


def _is_product_sum(block: ir.Block) -> bool:
    """`C = C + a * b`: a zero operand adds nothing (as long as the other one is finite)."""
    store = block.body
    return (
        isinstance(store, ir.BufferStore)
        and isinstance(store.value, ir.Add)
        and isinstance(store.value.b, ir.Mul)
    )


class _Padding:
    """Builds padded copies of the operands, the padded block and the copy of the result."""

    def __init__(
        self, state: State, block: ir.Block, loops: list[ir.For],
        padded: dict[ir.Var, tuple[ir.Expr, ir.Expr]], mode: str, analyzer: Analyzer,
    ) -> None:  # fmt: skip
        self.state, self.block, self.loops = state, block, loops
        self.padded, self.mode, self.analyzer = padded, mode, analyzer
        self.scope = state.scope(block)
        self.edit = Edit(state)
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}
        self.made: list[ir.Block] = []

    def step(self) -> Step:
        state, block = self.state, self.block
        output = block.writes[0].buffer
        require_home(state, block, output)
        outer = outermost(state, block, self.scope)
        require_alone(state, block, output, outer)
        for region in block.reads:
            if region.buffer is not output:
                self._operand(region.buffer, outer)
        back = self._result(output)
        new = self._padded_block()
        self.edit.forward[block] = new
        nest: ir.Stmt = self.state.realize(block).replace(block=new)
        variables = {loop.loop_var: loop for loop in self.loops}
        value_of = dict(zip((it.var for it in block.iter_vars), self.loops, strict=True))
        extent = {value_of[v].loop_var: e for v, (_, e) in self.padded.items()}
        for loop in sorted(variables.values(), key=lambda n: -state.tree.order[n]):
            size = extent.get(loop.loop_var, loop.extent)
            nest = loop.replace(body=nest, extent=size)
        self.edit.replace(nest_of(state, block, self.loops), nest)
        if back is not None:
            self.edit.insert_after(outer, back)
        self.edit.refresh_signatures()
        return self.edit.finish(*self.made)

    def _positions(self, buffer: ir.Buffer) -> list[tuple[ir.Expr, ir.Expr] | None]:
        """Per dimension of a buffer, the (old, new) extent when a padded iterator indexes it."""
        found = accesses_to(self.block.body, buffer)
        for access in found:
            for index in access.indices:
                if isinstance(index, ir.Var):
                    continue
                if any(ir.uses_var(index, v) for v in self.padded):
                    self.state.fail(f"{buffer.name} is not indexed by plain iterators",
                                    code="BW326", guilty=[access],
                                    help="reindex it first")  # fmt: skip
        indices = found[0].indices
        return [self.padded.get(i) if isinstance(i, ir.Var) else None for i in indices]

    def _grown(self, buffer: ir.Buffer, sizes: list[tuple[ir.Expr, ir.Expr] | None]) -> ir.Buffer:
        shape = tuple(
            d if size is None else size[1] for d, size in zip(buffer.shape, sizes, strict=True)
        )
        name = fresh_name(self.state, f"{buffer.name}_pad")
        fresh = ir.Buffer(name, buffer.dtype, shape)
        self.buffers[buffer] = fresh
        self.edit.allocate(self.scope, fresh)
        return fresh

    def _operand(self, buffer: ir.Buffer, outer: ir.Stmt) -> None:
        sizes = self._positions(buffer)
        if all(size is None for size in sizes):
            return
        fresh = self._grown(buffer, sizes)

        def value(v: object) -> ir.Expr:
            indices: list[ir.Expr] = list(v)  # pyright: ignore[reportArgumentType]
            inside: list[ir.Expr] = []
            for k, size in enumerate(sizes):
                if size is not None:
                    inside.append(indices[k] < size[0])
                    if self.mode == "clamp":
                        indices[k] = ir.minimum(indices[k], size[0] - 1)
            load = ir.BufferLoad(buffer, tuple(indices))
            if self.mode == "clamp":
                return load
            return ir.if_then_else(ir.all_of(inside), load, ir.const(0, buffer.dtype))

        domain = [ir.Range(ir.const(0, d.dtype), d) for d in fresh.shape]
        nest, made = copy_nest(fresh.name, fresh, lambda v: v, value, domain, self.analyzer)
        self.made.append(made)
        self.edit.insert_before(outer, nest)

    def _result(self, output: ir.Buffer) -> ir.Stmt | None:
        sizes = self._positions(output)
        if all(size is None for size in sizes):
            return None
        fresh = self._grown(output, sizes)
        domain = [ir.Range(ir.const(0, d.dtype), d) for d in output.shape]
        nest, made = copy_nest(
            fresh.name, output, lambda v: v, lambda v: ir.BufferLoad(fresh, tuple(v)), domain,
            self.analyzer,
        )  # fmt: skip
        self.made.append(made)
        return nest

    def _padded_block(self) -> ir.Block:
        iters = tuple(
            it.replace(dom=ir.Range(it.dom.min, self.padded[it.var][1]))
            if it.var in self.padded
            else it
            for it in self.block.iter_vars
        )
        body = self.edit.substitute(self.block.body, self.buffers)
        init = self.block.init
        init = None if init is None else self.edit.substitute(init, self.buffers)
        return with_regions(
            self.block.replace(iter_vars=iters, body=body, init=init), self.analyzer
        )
