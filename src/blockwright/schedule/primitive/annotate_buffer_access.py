"""annotate_buffer_access: set the access region of a buffer in a block's signature."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import block_access_regions, clip_region
from blockwright.arith import Analyzer, covers
from blockwright.ir.annotations import EXPLICIT_READ
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.explicit_regions import stated_by_user
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import NewRanges, Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer, region_of
from blockwright.schedule.rewrite.copy_nest import with_index_type


class AnnotateBufferAccess(Primitive, frozen=True, eq=False):
    """Set the region of a buffer in a block's signature explicitly.

    The annotation "explicit_read_region" preserves a read region: a step that changes the body and
    recomputes the signature widens the computed region by it, and a copy made by `cache_read`
    inherits it. It is dropped when the block no longer reads the buffer. Until then the layout of
    the buffer cannot change (BW366). A region that omits accesses, or claims writes that do not
    happen, can make later steps change the meaning of the program; the method of the same name in
    the `unsafe` namespace accepts such a region.

    Args:
        block: the block.
        buffer_index: position of the region, or the buffer's name.
        buf_type: "read" or "write".
        gen_new_ranges: function from the block's iterators to one entry per dimension: an index, or
            a pair of start and end. In the flat form of a trace each dimension is
            `..., start, end`.

    Requires:
    - the function has one parameter per iterator and returns one entry per dimension (BW304);
    - read: the region covers everything the body reads (BW366);
    - write: the region equals the region the body may write (BW366).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(14):
                with T.block("B"):
                    vi = T.axis.spatial(14, i)
                    B[vi] = A[vi] + A[vi + 2]

    Steps::

        sch.annotate_buffer_access(sch.get_block("B"), 0, "read", lambda i: ((i, i + 5),))

    After::

        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(14):
                with T.block("B"):
                    vi = T.axis.spatial(14, i)
                    T.reads(A[vi:vi + 5])
                    T.writes(B[vi])
                    T.block_attr({"explicit_read_region": ["A"]})
                    B[vi] = A[vi] + A[vi + 2]
    """

    method: ClassVar[str] = "annotate_buffer_access"

    block: BlockRV
    buffer_index: int | str
    buf_type: str
    gen_new_ranges: NewRanges

    def apply(self, state: StepState) -> StepResult:
        block, region = self.new_region(state)
        result = block_access_regions(block, state.signature_facts(block))
        stated = result[self.buf_type == "write"]
        if not any(r.buffer is region.buffer for r in stated):
            state.fail(
                f"the body of block {block.name} does not {self.buf_type} "
                f"{region.buffer.name}; only its signature does",
                code="BW366",
                guilty=[block],
                help="use unsafe.annotate_buffer_access, which does not check the ranges",
            )
        real = region_of(stated, region.buffer)
        known = state.signature_facts(block)
        for it in block.iter_vars:
            known.bind(it.var, it.dom)
        if not _holds(region, real, known):
            state.fail(
                f"block {block.name} {self.buf_type}s more of {region.buffer.name} than the "
                "ranges cover",
                code="BW366",
                guilty=[real, block],
                help="widen them, or use unsafe.annotate_buffer_access, which does not check them",
            )
        if self.buf_type == "write" and not _holds(real, region, known):
            state.fail(
                f"the ranges claim elements of {region.buffer.name} that block {block.name} "
                "does not write",
                code="BW366",
                guilty=[real, block],
                help="narrow them, or use unsafe.annotate_buffer_access, which does not check them",
            )
        return with_region(state, block, region, self.buf_type)

    def new_region(self, state: StepState) -> tuple[ir.Block, ir.BufferRegion]:
        """Return the block and its new region."""
        block = state.block(self.block)
        state.realize(block)
        if self.buf_type not in ("read", "write"):
            state.fail(
                f"buf_type must be 'read' or 'write', got {self.buf_type!r}",
                code="BW304",
                guilty=[block],
                help='use "read" or "write"',
            )
        buffer = accessed_buffer(state, block, self.buffer_index, self.buf_type)
        given = self.gen_new_ranges
        dims = len(given.final) // 2
        if len(given.initial) != len(block.iter_vars) or dims != buffer.ndim:
            state.fail(
                f"gen_new_ranges takes {len(given.initial)} iterators and returns {dims} "
                f"ranges; block {block.name} has {len(block.iter_vars)} iterators, "
                f"{buffer.name} {buffer.ndim} dimensions",
                code="BW304",
                guilty=[block],
                help="take one parameter per iterator; return a (begin, end) pair "
                "or an index per dimension",
            )
        dtype = ir.widest_type([it.var for it in block.iter_vars])
        mapping = with_index_type(given, dtype)
        known = state.signature_facts(block)
        for it in block.iter_vars:
            known.bind(it.var, it.dom)
        ends = mapping.apply([it.var for it in block.iter_vars], known)
        ranges = tuple(
            ir.Range(start, known.simplify(ir.sub(*ir.match_types(end, start))))
            for start, end in zip(ends[::2], ends[1::2], strict=True)
        )
        return block, ir.BufferRegion(buffer, ranges)


def _holds(outer: ir.BufferRegion, inner: ir.BufferRegion, known: Analyzer) -> bool:
    """Whether `outer` contains `inner`, or the part of `inner` inside the buffer."""
    wanted = (inner.region, clip_region(inner, known).region)
    return any(covers(outer.region, box, known) for box in wanted)


def with_region(
    state: StepState, block: ir.Block, region: ir.BufferRegion, kind: str
) -> StepResult:
    """Return the step that replaces the region of the same buffer in a block's signature."""

    def replaced(regions: tuple[ir.BufferRegion, ...]) -> tuple[ir.BufferRegion, ...]:
        return tuple(region if r.buffer is region.buffer else r for r in regions)

    if kind == "read":
        names = dict.fromkeys((*stated_by_user(block), region.buffer.name))
        notes = {**block.annotations, EXPLICIT_READ: tuple(names)}
        new = block.replace(reads=replaced(block.reads), annotations=notes)
    else:
        new = block.replace(writes=replaced(block.writes))
    edit = Edit(state)
    edit.replace_block(block, new)
    edit.refresh_signatures()
    return edit.finish()
