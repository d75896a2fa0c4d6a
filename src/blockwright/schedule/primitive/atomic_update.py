"""atomic_update: turn the update of a reduction into an atomic operation."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import NoReduction, atomic_mismatch, find_update
from blockwright.analysis.validate.atomics import takes_atomics
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.try_remedies import THEN, called, first_legal


class AtomicUpdate(Primitive, frozen=True, eq=False):
    """Make the update of a reduction atomic, so that its loops may run in parallel.

    Args:
        block: the update block that `decompose_reduction` produces.

    Requires:
    - the block has no initial value (BW338), because no thread is the first to run;
    - its only statement combines an element with another value by +, *, min, max, and, or (BW338);
    - the operation is supported for the element type, and the storage scope of the buffer is
      visible to other threads (BW338).

    Floating-point sums may then differ from run to run, because the order of their terms does. The
    step is recorded in the trace, so the program opts in to this explicitly.

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

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        state.realize(block)
        if block.init is not None:
            state.fail(
                f"block {block.name} sets the initial value itself",
                code="BW338",
                guilty=[block],
                help=f"decompose_reduction({block.name}, loop) at "
                f"{_loops(state, block)} first; then make the remaining update "
                "atomic",
            )
        call = _atomic(state, block)
        edit = Edit(state)
        known = state.signature_facts(block)
        new = with_signature(block.replace(body=ir.Evaluate(call)), known)
        edit.replace_block(block, new)
        return edit.finish()


_OPERATIONS = {
    "sum": "atomic_add",
    "prod": "atomic_mul",
    "min": "atomic_min",
    "max": "atomic_max",
    "any": "atomic_or",
    "all": "atomic_and",
}
"""Builtin reducer → the equivalent atomic operation."""


def _atomic(state: StepState, block: ir.Block) -> ir.Call:
    """Return the atomic operation equivalent to the block's store."""
    result = find_update(block)
    store = block.body
    if isinstance(result, NoReduction) or not isinstance(store, ir.BufferStore):
        why = result.why if isinstance(result, NoReduction) else "it is more than one store"
        state.fail(
            f"block {block.name} is not one update of an element: {why}",
            code="BW338",
            guilty=[block, *ir.collect(block.body, ir.BufferStore)],
            help=_otherwise(state, block),
        )
    if decides := state.flow_at(block).decides_itself(block):
        state.fail(
            f"block {block.name} is not one update of an element: {decides}",
            code="BW338",
            guilty=[state.tree.realize(block)],
            help=_otherwise(state, block),
        )
    buffer, name = store.buffer, _OPERATIONS.get(result.name)
    if name is None:
        state.fail(
            f"the update of {buffer.name} in block {block.name} does not combine the "
            "element with another value by +, *, min, max, and, or",
            code="BW338",
            guilty=[block],
            help=_otherwise(state, block),
        )
    problem = atomic_mismatch(name, buffer.dtype)
    if problem is not None:
        state.fail(
            problem,
            code="BW338",
            guilty=[block],
            help="accumulate in a buffer of a type with this operation, or rfactor the reduction",
        )
    if not takes_atomics(buffer.scope):
        state.fail(
            f"{buffer.name} is in scope {buffer.scope!r}, which is private to a thread",
            code="BW338",
            guilty=[block],
            help=f'set_scope("{block.name}", "{buffer.name}", "global") or "shared" first, '
            "which all threads share",
        )
    return ir.Call(name, (result.elements[0], result.terms[0]), buffer.dtype)


def _loops(state: StepState, block: ir.Block) -> str:
    names = [f.loop_var.name for f in state.tree.loops_above(block)]
    return f"one of its loops ({', '.join(names)})" if names else "a loop around it"


def _otherwise(state: StepState, block: ir.Block) -> str:
    """Suggest how to parallelize a reduction whose update cannot be atomic."""
    stores = ir.collect(block.body, ir.BufferStore)
    form = "each store in a block of its own" if len(stores) > 1 else "it as B[i] = B[i] + x"
    realize = state.tree.realize(block)
    loops = [
        f
        for f in state.tree.loops_above(block)
        if any(
            it.iter_type is ir.IterType.REDUCE and ir.uses_var(v, f.loop_var)
            for it, v in zip(block.iter_vars, realize.iter_values, strict=True)
        )
    ]
    instead = "the partial results need no atomic update, and the loop over them may be parallel"
    for loop in loops:
        factored = f"rfactor({called(state, loop)}, 0)"
        back = [
            f'merge_reduction("{b.name}", "{block.name}")'
            for b in state.flow_at(block).blocks
            if block.init is None
        ]
        way = first_legal(state, [*(f"{first}{THEN}{factored}" for first in back), factored])
        if way:
            return f"{way}: {instead}; or write {form}, where elements do not depend on one another"
    return f"write {form}, where the elements do not depend on one another"
