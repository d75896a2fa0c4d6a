"""get_block: look up a block by name."""

from __future__ import annotations

import difflib
from typing import ClassVar, Self

import msgspec

from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetBlock(Primitive, frozen=True, eq=False):
    """Return a handle for the block of this name.

    Args:
        name: the block's name; the implicit root block is "root".
        func_name: function of the module to search; default: the current function.

    Requires:
    - exactly one block has the name.
    """

    method: ClassVar[str] = "get_block"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    name: str
    func_name: str | None = None

    def function(self) -> str | None:
        return self.func_name

    def in_function(self, name: str) -> Self:
        return msgspec.structs.replace(self, func_name=name)

    def apply(self, state: StepState) -> StepResult:
        result = [b for b in state.tree.blocks if b.name == self.name]
        if not result:
            names = [b.name for b in state.tree.blocks if b is not state.func.root]
            known = ", ".join(sorted(set(names))) or "none"
            close = difflib.get_close_matches(self.name, names, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            outputs = [
                b.name
                for b in state.tree.blocks
                if b is not state.func.root and any(r.buffer.name == self.name for r in b.writes)
            ]
            if outputs:
                hint = f"buffer {self.name} is written by block {outputs[-1]!r}; "
            state.fail(
                f"no block is named {self.name!r}",
                code="BW302",
                help=f"{hint}blocks: {known}",
            )
        if len(result) > 1:
            state.fail(
                f"{len(result)} blocks are named {self.name!r}",
                code="BW303",
                guilty=result,
                help="select one of them with get_child_blocks, get_producers or get_consumers",
            )
        return StepResult(state.func, results=(result[0],))
