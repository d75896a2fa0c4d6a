"""atomic_update: the update of a reduction becomes an atomic operation."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import atomic_misfit
from blockwright.analysis.atomics import PRIVATE_SCOPES
from blockwright.schedule.buffers import with_regions
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.record import Primitive
from blockwright.schedule.reduction import is_element, touches
from blockwright.schedule.state import State, Step


class AtomicUpdate(Primitive, frozen=True, eq=False):
    """Make the update of a reduction atomic, so that its loops may run in parallel.

    Args:
        block: the update, as `decompose_reduction` leaves it.

    Requires:
    - the block has no initial value of its own (BW372): of many threads, none is the first;
    - its one statement combines an element with something else by +, *, min, max, and, or (BW372);
    - the type has the operation, and other threads see the buffer (BW372).

    Float sums may then differ from run to run, as the order of their terms does; the step stands in
    the trace, and so the program has asked for it.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B_init"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = T.float32(0)
            for i, k in T.grid(16, 64):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    B[vi] = B[vi] + A[vi, vk]

    Steps::

        b = sch.get_block("B")
        sch.atomic_update(b)
        i, k = sch.get_loops(b)
        sch.parallel(k)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B_init"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = T.float32(0)
            for i in range(16):
                for k in T.parallel(64):
                    with T.block("B"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        T.reads(B[vi], A[vi, vk])
                        T.writes(B[vi])
                        T.atomic_add(B[vi], A[vi, vk])
    """

    method: ClassVar[str] = "atomic_update"

    block: BlockRV

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        state.realize(block)
        if block.init is not None:
            state.fail(f"block {block.name} sets the initial value itself", code="BW372",
                       guilty=[block], help="decompose_reduction first")  # fmt: skip
        call = _atomic(state, block)
        edit = Edit(state)
        new = with_regions(block.replace(body=ir.Evaluate(call)), state.analyzer(block))
        edit.replace_block(block, new)
        return edit.finish()


def _atomic(state: State, block: ir.Block) -> ir.Call:
    """The atomic operation that means the same as the block's store."""
    store = block.body
    combines = (ir.BinaryOp, ir.And, ir.Or)
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, combines):
        state.fail(f"block {block.name} is not one update of an element", code="BW372",
                   guilty=[block], help="write it as B[i] = B[i] + x")  # fmt: skip
    value, buffer = store.value, store.buffer
    pairs = [(value.a, value.b), (value.b, value.a)]
    term = next((x for own, x in pairs if is_element(own, store) and not touches(x, buffer)), None)
    name = ir.atomic_name(type(value))
    if term is None or name is None or store.predicate is not None:
        state.fail(f"the update of {buffer.name} in block {block.name} does not combine the "
                   "element with something else by +, *, min, max, and, or", code="BW372",
                   guilty=[block], help="write it as B[i] = B[i] + x")  # fmt: skip
    problem = atomic_misfit(name, buffer.dtype)
    if problem is not None:
        state.fail(problem, code="BW372", guilty=[block])
    if buffer.scope in PRIVATE_SCOPES:
        state.fail(f"{buffer.name} lies in {buffer.scope!r}, which no other thread sees",
                   code="BW372", guilty=[block], help="update it where all threads see it"
                   )  # fmt: skip
    place = ir.BufferLoad(buffer, store.indices)
    return ir.Call(name, (place, term), buffer.dtype)
