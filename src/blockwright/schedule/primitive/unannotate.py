"""unannotate: remove an annotation from a block or loop."""

from __future__ import annotations

from typing import ClassVar

from blockwright.ir.annotations import current_key
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive.annotate import with_annotations


class Unannotate(Primitive, frozen=True, eq=False):
    """Remove an annotation from a block or loop.

    Args:
        block_or_loop: the block or loop.
        ann_key: the key.

    Requires:
    - the block or loop has an annotation of this key (BW319).

    Before::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in T.serial(8, annotations={"note": 1}):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.unannotate(i, "note")

    After::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "unannotate"

    block_or_loop: BlockRV | LoopRV
    ann_key: str

    def apply(self, state: StepState) -> StepResult:
        node, key = state.stmt(self.block_or_loop), current_key(self.ann_key)
        if key not in node.annotations:
            known = ", ".join(node.annotations)
            state.fail(
                f"{key!r} is not annotated",
                code="BW319",
                guilty=[node],
                help=f"its annotations: {known}" if known else "it has no annotations to remove",
            )
        kept = {k: v for k, v in node.annotations.items() if k != key}
        return with_annotations(state, node, kept)
