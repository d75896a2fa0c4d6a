"""offset_operand: add a constant to one operand of an integer product, and correct the sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.legality.checks import require_filled
from blockwright.schedule.legality.own_loops import nest_of, trivial_loops
from blockwright.schedule.legality.reduction import reduction_of
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name
from blockwright.support import IRError


class OffsetOperand(Primitive, frozen=True, eq=False):
    """Add a constant to one operand of a sum of integer products, and subtract its share after.

        sum of A * B over k  =  sum of (A + offset) * B over k  -  sum of offset * B over k

    A copy of the operand, shifted into another type, makes instructions usable that take operands
    of that type only: with an offset of 128, an int8 operand becomes uint8. Sums of integers wrap,
    so the result is exact.

    Args:
        block: a sum of products of two converted elements, such as a matrix product, under loops of
            its own.
        read: the operand: position among the block's read regions, or the buffer's name.
        offset: the constant.
        dtype: integer type of the shifted operand.

    Requires:
    - the type holds every value of the operand plus the offset (BW304);
    - each iterator is driven by a plain loop of its own, without a predicate (BW322);
    - the block is an integer sum, starting at 0, of products of two converted loads, one of them of
      the operand (BW326);
    - each spatial iterator of more than one element is an index of the result (BW326);
    - all of the operand is written before (BW324).

    Returns: the block that shifts the operand, the block of the correction's sums, and the block
    that subtracts them.

    Before::

        @T.prim_func
        def main(A: T.Buffer((8, 16), "int8"), B: T.Buffer((4, 16), "int8"), c: T.handle):
            C = T.match_buffer(c, (8, 4), "int32")
            for i, j, k in T.grid(8, 4, 16):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = 0
                    C[vi, vj] = C[vi, vj] + T.int32(A[vi, vk]) * T.int32(B[vj, vk])

    Steps::

        sch.offset_operand(sch.get_block("C"), "A", 128, "uint8")

    After::

        @T.prim_func
        def main(A: T.Buffer((8, 16), "int8"), B: T.Buffer((4, 16), "int8"), c: T.handle):
            C = T.match_buffer(c, (8, 4), "int32")
            A_offset = T.alloc_buffer((8, 16), "uint8")
            C_correction = T.alloc_buffer((4,), "int32")
            C_offset = T.alloc_buffer((8, 4), "int32")
            for ax0, ax1 in T.grid(8, 16):
                with T.block("A_offset"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A_offset[v0, v1] = T.uint8(T.int32(A[v0, v1]) + 128)
            for ax0, ax1 in T.grid(4, 16):
                with T.block("C_correction"):
                    vj, vk = T.axis.remap("SR", [ax0, ax1])
                    with T.init():
                        C_correction[vj] = 0
                    C_correction[vj] = C_correction[vj] + T.int32(B[vj, vk]) * 128
            for i, j, k in T.grid(8, 4, 16):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C_offset[vi, vj] = 0
                    C_offset[vi, vj] = C_offset[vi, vj] + T.int32(A_offset[vi, vk]) * T.int32(
                        B[vj, vk]
                    )
            for ax0, ax1 in T.grid(8, 4):
                with T.block("C_difference"):
                    vi, vj = T.axis.remap("SS", [ax0, ax1])
                    C[vi, vj] = C_offset[vi, vj] - C_correction[vj]
    """

    method: ClassVar[str] = "offset_operand"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV
    read: int | str
    offset: int
    dtype: str

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        operand = accessed_buffer(state, block, self.read, "read")
        shifted = self._type(state, operand.dtype)
        loops = trivial_loops(state, block, self.method)
        product = _product(state, block, operand)
        scope = state.scope(block)
        for region in block.reads:
            require_filled(state, scope, region.buffer)
        return _Rewrite(state, block, loops, product, self.offset, shifted).step()

    def _type(self, state: StepState, old: ir.DType) -> ir.DType:
        try:
            new = ir.dtype_of(self.dtype)
        except IRError:
            new = None
        fits = (
            new is not None
            and new.is_scalar
            and new.is_int
            and old.is_int
            and -(1 << 63) <= self.offset < 1 << 63
            and new.min_value <= old.min_value + self.offset
            and old.max_value + self.offset <= new.max_value
        )
        if new is None or not fits:
            state.fail(
                f"{self.dtype} does not hold every value of {old.name} plus {self.offset}",
                code="BW304",
                help='for example offset=128 and dtype="uint8" for an int8 operand',
            )
        return new


class _Product(NamedTuple):
    """The factors of the term: the converted operand that is shifted, and the other one."""

    operand: ir.BufferLoad
    other: ir.Expr
    output: ir.BufferLoad


def _product(state: StepState, block: ir.Block, operand: ir.Buffer) -> _Product:
    reduction = reduction_of(state, block)
    term = reduction.terms[0]
    total = reduction.elements[0]
    factors = [term.a, term.b] if isinstance(term, ir.Mul) else []
    loads = [f.value if isinstance(f, ir.Cast) else f for f in factors]
    sides = [k for k, x in enumerate(loads) if isinstance(x, ir.BufferLoad) and x.buffer is operand]
    plain = all(isinstance(x, ir.BufferLoad) for x in loads) and len(reduction.terms) == 1
    if not (
        plain
        and len(sides) == 1
        and reduction.name == "sum"
        and reduction.starts_neutral
        and total.dtype.is_int
    ):
        state.fail(
            f"{block.name} is not an integer sum, starting at 0, of products of an element of "
            f"{operand.name} and another element",
            code="BW326",
            guilty=[block],
            help="apply the step to a matrix product or convolution of integers",
        )
    spatial = [
        it.var
        for it in block.iter_vars
        if it.iter_type is ir.IterType.SPATIAL and not ir.is_const_int(it.dom.extent, 1)
    ]
    missing = [v.name for v in spatial if not any(index is v for index in total.indices)]
    if missing:
        state.fail(
            f"iterator {missing[0]} is not an index of {total.buffer.name}",
            code="BW326",
            guilty=[block],
            help=f'reindex("{block.name}", "{total.buffer.name}") first: the result has one index '
            "per iterator",
        )
    (side,) = sides
    load = loads[side]
    assert isinstance(load, ir.BufferLoad)
    return _Product(load, factors[1 - side], total)


class _Rewrite:
    """Builds the shifted copy, the sums of the correction, the new product and the difference."""

    def __init__(
        self,
        state: StepState,
        block: ir.Block,
        loops: list[ir.For],
        product: _Product,
        offset: int,
        shifted: ir.DType,
    ) -> None:
        self.state, self.block, self.loops, self.product = state, block, loops, product
        self.offset, self.shifted = offset, shifted
        self.edit = Edit(state)
        self.scope = state.scope(block)
        self.known = state.analyzer(self.scope.body)
        self.total = product.output.dtype

    def step(self) -> StepResult:
        outer = nest_of(self.state, self.block, self.loops)
        output = self.product.output.buffer
        copy_of, copied = self._shifted_operand()
        sums, correction, summed = self._correction()
        partial = self._fresh(f"{output.name}_offset", output.shape, self.total)
        self.edit.insert_before(outer, copy_of)
        self.edit.insert_before(outer, correction)
        self._replace_product(copied.writes[0].buffer, partial)
        back, difference = self._difference(partial, sums)
        self.edit.insert_after(outer, back)
        self.edit.refresh_signatures()
        return self.edit.finish(copied, summed, difference)

    def _fresh(self, name: str, shape: tuple[ir.Expr, ...], dtype: ir.DType) -> ir.Buffer:
        buffer = ir.Buffer(fresh_name(self.state, name), dtype, shape)
        self.edit.allocate(self.scope, buffer)
        return buffer

    def _shifted_operand(self) -> tuple[ir.Stmt, ir.Block]:
        operand = self.product.operand.buffer
        fresh = self._fresh(f"{operand.name}_offset", operand.shape, self.shifted)
        wide = ir.dtype_of("int32" if self.shifted.bits < 32 else "int64")

        def value(at: Sequence[ir.Expr]) -> ir.Expr:
            load = ir.cast_to(ir.BufferLoad(operand, tuple(at)), wide)
            return ir.cast_to(load + ir.cast_to(ir.const(self.offset, "int64"), wide), self.shifted)

        domain = [ir.Range(ir.const(0, d.dtype), d) for d in operand.shape]
        return copy_nest(fresh.name, fresh, lambda v: v, value, domain, self.known)

    def _correction(self) -> tuple[ir.BufferLoad, ir.Stmt, ir.Block]:
        """The sums of `offset * B`, one per value of the spatial iterators of B.

        Returns the element that belongs to an instance of the product, the nest and its block.
        """
        other = self.product.other
        used = set(ir.free_vars(other))
        own = [
            it
            for it in self.block.iter_vars
            if it.iter_type is not ir.IterType.SPATIAL or it.var in used
        ]
        kept = [it for it in own if it.iter_type is ir.IterType.SPATIAL]
        shape = tuple(it.dom.min + it.dom.extent for it in kept)
        name = f"{self.product.output.buffer.name}_correction"
        sums = self._fresh(name, tuple(self.known.simplify(d) for d in shape), self.total)
        fresh = {it.var: ir.Var(it.var.name, it.var.dtype) for it in own}
        iters = tuple(it.replace(var=fresh[it.var]) for it in own)
        at = tuple(fresh[it.var] for it in kept)
        term = ir.substitute(other, fresh) * ir.cast_to(ir.const(self.offset, "int64"), self.total)
        block = with_signature(
            ir.Block(
                sums.name,
                iters,
                (),
                (),
                ir.BufferStore(sums, ir.BufferLoad(sums, at) + term, at),
                init=ir.BufferStore(sums, ir.const(0, self.total), at),
            ),
            self.state.signature_facts(self.block),
        )
        element = ir.BufferLoad(sums, tuple(it.var for it in kept))
        return element, self._nest(block, own), block

    def _nest(self, block: ir.Block, iters: list[ir.IterVar]) -> ir.Stmt:
        """Serial loops around a block over the domains of some of the product's iterators."""
        loops = [ir.Var(f"ax{k}", it.var.dtype) for k, it in enumerate(iters)]
        bindings = tuple(
            self.known.simplify(it.dom.min + loop) for it, loop in zip(iters, loops, strict=True)
        )
        nest: ir.Stmt = ir.BlockRealize(bindings, ir.const(True, "bool"), block)
        for loop, it in reversed(list(zip(loops, iters, strict=True))):
            nest = ir.For(loop, ir.const(0, loop.dtype), it.dom.extent, ir.ForKind.SERIAL, nest)
        return nest

    def _replace_product(self, shifted: ir.Buffer, partial: ir.Buffer) -> None:
        output, block = self.product.output, self.block
        left = ir.cast_to(ir.BufferLoad(shifted, self.product.operand.indices), self.total)
        total = ir.BufferLoad(partial, output.indices)
        body = ir.BufferStore(partial, total + left * self.product.other, output.indices)
        init = ir.BufferStore(partial, ir.const(0, self.total), output.indices)
        new = with_signature(block.replace(body=body, init=init), self.state.signature_facts(block))
        self.edit.replace_block(block, new)

    def _difference(self, partial: ir.Buffer, sums: ir.BufferLoad) -> tuple[ir.Stmt, ir.Block]:
        output = self.product.output
        own = [it for it in self.block.iter_vars if it.iter_type is ir.IterType.SPATIAL]
        fresh = {it.var: ir.Var(it.var.name, it.var.dtype) for it in own}
        at = tuple(ir.substitute(index, fresh) for index in output.indices)
        value = ir.BufferLoad(partial, at) - ir.substitute(sums, fresh)
        name = fresh_name(self.state, f"{self.block.name}_difference")
        block = ir.Block(
            name,
            tuple(it.replace(var=fresh[it.var]) for it in own),
            (),
            (),
            ir.BufferStore(output.buffer, value, at),
        )
        block = with_signature(block, self.state.signature_facts(self.block))
        return self._nest(block, own), block
