"""add_unit_loop: insert a loop of extent 1 around a block or loop."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class AddUnitLoop(Primitive, frozen=True, eq=False):
    """Insert a loop of extent 1 around a block or loop, for example as a target of `compute_at`.

    Args:
        block_or_loop: the block or loop to wrap.

    Requires:
    - it is not the root block.

    Before::

        @T.prim_func
        def main(A: T.Buffer((), "int32"), B: T.Buffer((), "int32")):
            with T.block("B"):
                B[()] = A[()] + 1

    Steps::

        sch.add_unit_loop(sch.get_block("B"))

    After::

        @T.prim_func
        def main(A: T.Buffer((), "int32"), B: T.Buffer((), "int32")):
            for u in T.serial(1):
                with T.block("B"):
                    B[()] = A[()] + 1
    """

    method: ClassVar[str] = "add_unit_loop"
    returns: ClassVar[Returns] = "loop"

    block_or_loop: BlockRV | LoopRV

    def apply(self, state: StepState) -> StepResult:
        node = state.stmt(self.block_or_loop)
        inside = state.realize(node) if isinstance(node, ir.Block) else node
        around = state.tree.loops_above(node)
        dtype = (
            inside.loop_var.type
            if isinstance(inside, ir.For)
            else (around[-1].loop_var.type if around else ir.dtype_of("int32"))
        )
        var = ir.Var("u", dtype)
        edit = Edit(state)
        edit.replace(inside, wrap_loops(inside, [(var, ir.const(1, dtype))]))
        return edit.finish(var)
