"""pad_einsum: a contraction on a domain rounded up to whole tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.schedule.buffers import (
    accesses_to,
    copy_nest,
    fresh_name,
    nest_of,
    require_home,
    require_no_readback,
    trivial_loops,
    with_regions,
)
from blockwright.schedule.checks import require_alone, require_filled
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.record import Primitive, Returns
from blockwright.schedule.reduction import reduction_of
from blockwright.schedule.state import State, Step


class PadEinsum(Primitive, frozen=True, eq=False):
    """Round the iterators of a contraction up to multiples, with padded copies around it.

    Args:
        block: a block under loops of its own whose accesses are plain iterators.
        padding: per iterator, what its extent becomes a multiple of; 1 leaves it.
        mode: what padded elements of the operands hold: "zero", or "clamp" for the nearest
            element that exists (no branch when reading; only for spatial iterators, whose padded
            results are never read).

    Requires:
    - each iterator is run by a plain loop of its own, and there is no predicate (BW322);
    - the block is one element-wise update that fills one buffer, allocated in the program
      (BW321): plain iterators index it, one per dimension and running through it, padded spatial
      ones among them; nothing read is written (BW323, BW326);
    - padded iterators are used as whole indices and nowhere else: a condition or a value such as
      `i * A[i]` would see points that do not exist (BW326);
    - a reduction iterator is padded in mode "zero" only, and its padded terms add nothing: the
      block is a sum of products of loads, and each factor is indexed by the iterator (for
      integers one factor is enough; a float that is not padded may be infinite, and zero times
      infinity is no number) (BW326);
    - in mode "zero" the block divides no integers by what it reads (BW326).

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
        self._check_padded(state, block, set(padded))
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
        store = block.body
        if len(block.writes) != 1 or not isinstance(store, ir.BufferStore) or block.match_buffers:
            state.fail(f"{block.name} is more than one update of one buffer", code="BW326",
                       guilty=[block])  # fmt: skip
        require_no_readback(state, block, store.buffer)
        if self.mode == "zero" and any(_may_trap(n) for n in ir.walk(store.value)):
            state.fail("an integer is divided by what is read, which would be zero in the padding",
                       code="BW326", guilty=[block], help='use mode="clamp"')  # fmt: skip

    def _check_padded(self, state: State, block: ir.Block, padded: set[ir.Var]) -> None:
        """Padded iterators are plain indices only; padded terms are neutral; results separate."""
        store = block.body
        assert isinstance(store, ir.BufferStore)
        for it in block.iter_vars:
            if it.var not in padded:
                continue
            if _beside_indices(block, it.var):
                state.fail(f"iterator {it.var.name} is used other than as a whole index",
                           code="BW326", guilty=[block],
                           help="reindex or compute that part in a block of its own")  # fmt: skip
            if it.iter_type is ir.IterType.SPATIAL:
                if not any(index is it.var for index in store.indices):
                    state.fail(f"iterator {it.var.name} is no index of {store.buffer.name}: its "
                               "padded points would write existing elements", code="BW326",
                               guilty=[block])  # fmt: skip
            elif self.mode == "clamp" or not _adds_nothing(state, block, it.var):
                state.fail(f"reduction iterator {it.var.name} cannot be padded: the padded terms "
                           "would count", code="BW326", guilty=[block],
                           help='pad sums of products with mode="zero", in which every factor '
                           "is indexed by the iterator")  # fmt: skip


def _beside_indices(block: ir.Block, var: ir.Var) -> bool:
    """Whether an iterator occurs in a block other than as a whole index of an access."""
    plain = 0
    found = 0
    for part in (block.body, *(() if block.init is None else (block.init,))):
        found += sum(n is var for n in occurrences(part))
        plain += sum(i is var for a in accesses_in(part) for i in a.indices)
    return found != plain


def occurrences(root: ir.Node) -> Iterator[ir.Node]:
    """Every node below a node, as often as it occurs."""
    yield root
    for child in root.children():
        if not isinstance(child, ir.Buffer):
            yield from occurrences(child)


def accesses_in(root: ir.Node) -> Iterator[ir.BufferLoad | ir.BufferStore]:
    """Every load and store below a node, as often as it occurs."""
    for node in occurrences(root):
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)):
            yield node


def _adds_nothing(state: State, block: ir.Block, var: ir.Var) -> bool:
    """Whether zero operands where `var` is padded make a zero term of a sum."""
    reduction = reduction_of(state, block)
    if reduction.name != "sum" or not reduction.starts_neutral:
        return False  # from -0.0 a zero term would make 0.0
    (term,) = reduction.terms
    factors: list[ir.Expr] = []
    open_ones = [term]
    while open_ones:
        expr = open_ones.pop()
        if isinstance(expr, ir.Mul):
            open_ones += [expr.a, expr.b]
        elif isinstance(expr, ir.Cast):
            open_ones.append(expr.value)
        else:
            factors.append(expr)
    zero = [isinstance(f, ir.BufferLoad) and any(i is var for i in f.indices) for f in factors]
    exact = all(f.dtype.is_int for f in factors) and term.dtype.is_int
    return any(zero) if exact else all(zero)


def _may_trap(node: ir.Node) -> bool:
    """An integer division by something else than a constant."""
    divides = isinstance(node, (ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod))
    return divides and node.dtype.is_int and not ir.is_const_int(node.b)


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
        self._check_filled(output)
        outer = nest_of(state, block, self.loops)
        require_alone(state, block, output, outer)
        for region in (*block.reads, *block.writes):
            require_filled(state, self.scope, region.buffer)
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
        sizes: list[tuple[ir.Expr, ir.Expr] | None] = [None] * buffer.ndim
        for access in accesses_to(self.block.body, buffer):
            for dim, index in enumerate(access.indices):
                size = self.padded.get(index) if isinstance(index, ir.Var) else None
                if size is None:
                    continue
                old = sizes[dim]
                if old is not None and not self.analyzer.prove_equal(old[1], size[1]):
                    self.state.fail(f"{buffer.name} is indexed by iterators of different extents",
                                    code="BW326", guilty=[self.block],
                                    help="reindex it first")  # fmt: skip
                sizes[dim] = size
        return sizes

    def _check_filled(self, output: ir.Buffer) -> None:
        """The block writes every element of its result, each dimension by an iterator."""
        store = self.block.body
        assert isinstance(store, ir.BufferStore)
        extents = {it.var: it.dom.extent for it in self.block.iter_vars}
        seen: set[ir.Expr] = set()
        for index, size in zip(store.indices, output.shape, strict=True):
            extent = extents.get(index) if isinstance(index, ir.Var) else None
            whole = extent is not None and index not in seen
            if not whole or not self.analyzer.prove_equal(*ir.match_types(extent, size)):
                self.state.fail(f"{self.block.name} does not fill {output.name} with one iterator "
                                "per dimension", code="BW326", guilty=[self.block],
                                help="reindex it first")  # fmt: skip
            seen.add(index)

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

        def value(v: Sequence[ir.Expr]) -> ir.Expr:
            indices = list(v)
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
