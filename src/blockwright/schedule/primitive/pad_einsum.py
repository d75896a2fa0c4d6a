"""pad_einsum: pad the iteration domain of a contraction to multiples of the tile sizes."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_no_readback
from blockwright.schedule.legality.own_loops import nest_of, trivial_loops
from blockwright.schedule.legality.reduction import reduction_of
from blockwright.schedule.rewrite.einsum_padding import (
    EinsumPadding,
    accesses_in,
    occurrences,
    own_parts,
)


class PadEinsum(Primitive, frozen=True, eq=False):
    """Pad the iterator extents of a contraction to multiples, through padded copies of its buffers.

    Args:
        block: a block under loops of its own, such as a matrix product or a convolution.
        padding: per iterator, the number whose multiple its extent becomes; 1 for no padding.
        mode: the value of padded operand elements: "zero", or "clamp" for the nearest existing
            element (read without a branch, unless the operand may be empty: then 0).

    Requires:
    - each iterator is driven by a plain loop of its own, and there is no predicate (BW322);
    - the block is one element-wise update that writes all of one buffer: the indices are plain
      iterators, one per dimension, that run through it, including the padded spatial iterators.
      It reads no buffer that it writes (BW323, BW326);
    - padded iterators are used in indices only: a condition, or a value such as `i * A[i]`, would
      be evaluated at points that do not exist (BW326). Read indices may be expressions of them,
      such as `h + rh` of a convolution, that are nonnegative and have a known maximum (BW326);
    - in mode "zero", the padded terms of a reduction iterator must add nothing: the block is a sum
      of products of loads, and each factor is indexed by the iterator. For integers one such factor
      is enough; an unpadded float may be infinite, and zero times infinity is NaN (BW326). In mode
      "clamp", the block is a maximum or minimum, which a repeated element does not change, and the
      iterator occurs as a whole index only (BW326);
    - in mode "zero", the block does not divide integers by values it reads (BW326).

    Returns: the blocks that copy padded operands, then the block that copies the result back if
    it is padded.

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
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV
    padding: tuple[int, ...]
    mode: str = "zero"

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        loops = trivial_loops(state, block, self.method)
        self._check(state, block)
        # Facts that hold outside the nest, where buffers are allocated and the copies run.
        analyzer = state.analyzer(nest_of(state, block, loops))
        padded: dict[ir.Var, tuple[ir.Expr, ir.Expr]] = {}
        for it, unit in zip(block.iter_vars, self.padding, strict=True):
            old = it.dom.extent
            new = analyzer.simplify(ir.ceildiv(old, unit) * unit)
            if not analyzer.prove_equal(old, new):
                padded[it.var] = (old, new)
        if not padded:
            return StepResult(state.func)
        self._check_padded(state, block, set(padded))
        return EinsumPadding(state, block, loops, padded, self.mode, analyzer).step()

    def _check(self, state: StepState, block: ir.Block) -> None:
        if len(self.padding) != len(block.iter_vars) or any(p < 1 for p in self.padding):
            state.fail(
                f"padding needs one number of at least 1 for each of the "
                f"{len(block.iter_vars)} iterators",
                code="BW304",
                guilty=[block],
                help="pass for each iterator the multiple its extent is padded to, 1 "
                "for no padding, for example [16, 16, 1]",
            )
        if self.mode not in ("zero", "clamp"):
            state.fail(
                f"mode must be 'zero' or 'clamp', got {self.mode!r}",
                code="BW304",
                guilty=[block],
                help='"zero" pads with zeros, "clamp" repeats the last element',
            )
        store = block.body
        if len(block.writes) != 1 or not isinstance(store, ir.BufferStore) or block.match_buffers:
            state.fail(
                f"{block.name} is more than one update of one buffer",
                code="BW360",
                guilty=[block],
                help="apply the step before blocks are combined, to a block with "
                "one update such as a matrix product",
            )
        require_no_readback(state, block, store.buffer)
        computed = (store.value, *(() if block.init is None else (block.init,)))
        if self.mode == "zero" and any(_may_trap(n) for part in computed for n in ir.walk(part)):
            state.fail(
                "an integer is divided by a value that is read, which would be zero in the padding",
                code="BW326",
                guilty=[block],
                help='use mode="clamp"',
            )

    def _check_padded(self, state: StepState, block: ir.Block, padded: set[ir.Var]) -> None:
        """Check the uses of padded iterators.

        They occur in indices only, padded terms do not change a reduction, and padded results are
        separate elements.
        """
        store = block.body
        assert isinstance(store, ir.BufferStore)
        for it in block.iter_vars:
            if it.var not in padded:
                continue
            if _beside_indices(block, it.var):
                state.fail(
                    f"iterator {it.var.name} is used other than in an index",
                    code="BW326",
                    guilty=[block],
                    help="reindex the buffer, or compute that part in a separate block",
                )
            if it.iter_type is ir.IterType.SPATIAL:
                if not any(index is it.var for index in store.indices):
                    state.fail(
                        f"iterator {it.var.name} is not an index of {store.buffer.name}: its "
                        "padded points would write existing elements",
                        code="BW326",
                        guilty=[block],
                        help="pad only iterators that are plain indices of the "
                        "output, and pass 1 for this one",
                    )
                continue
            neutral = (
                _repeats(block, it.var)
                if self.mode == "clamp"
                else _adds_nothing(state, block, it.var)
            )
            if not neutral:
                state.fail(
                    f"reduction iterator {it.var.name} cannot be padded: the padded terms "
                    "would change the result",
                    code="BW326",
                    guilty=[block],
                    help='pad sums of products with mode="zero", in which every factor '
                    'is indexed by the iterator, and maxima with mode="clamp"',
                )


def _beside_indices(block: ir.Block, var: ir.Var) -> bool:
    """Whether an iterator is used other than as a whole store index or inside a load index."""
    inside = 0
    result = 0
    for part in (block.body, *(() if block.init is None else (block.init,))):
        result += sum(n is var for n in occurrences(part))
        for access in accesses_in(part):
            if isinstance(access, ir.BufferStore):
                inside += sum(i is var for i in access.indices)
            else:
                inside += sum(n is var for i in access.indices for n in own_parts(i))
    return result != inside


def _adds_nothing(state: StepState, block: ir.Block, var: ir.Var) -> bool:
    """Whether the block is a sum whose terms are zero at padded values of `var`."""
    reduction = reduction_of(state, block)
    if reduction.name != "sum" or not reduction.starts_neutral:
        return False  # adding a zero term would change -0.0 to 0.0
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


def _repeats(block: ir.Block, var: ir.Var) -> bool:
    """Whether repeating the last element at padded values of `var` does not change the result: the
    block is a maximum or minimum, and the iterator occurs as a whole index only."""
    store = block.body
    value = store.value if isinstance(store, ir.BufferStore) else None
    if not isinstance(value, (ir.Max, ir.Min)):
        return False
    assert isinstance(store, ir.BufferStore)
    sides = [isinstance(e, ir.BufferLoad) and e.buffer is store.buffer for e in (value.a, value.b)]
    own = sum(a.buffer is store.buffer for a in accesses_in(value))  # the term must not read it
    result = sum(n is var for n in occurrences(value))
    plain = sum(i is var for a in accesses_in(value) for i in a.indices)
    return sum(sides) == own == 1 and result == plain


def _may_trap(node: ir.Node) -> bool:
    """Whether a node is an integer division by a non-constant."""
    divides = isinstance(node, (ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod))
    return divides and node.dtype.is_int and not ir.is_const_int(node.b)
