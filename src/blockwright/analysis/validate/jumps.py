"""Rules for `break` and `continue`: they leave a serial loop that is in the same block.

A block that leaves an enclosing loop would decide whether other block instances run, which its
signature does not express.
"""

from __future__ import annotations

import msgspec

from blockwright import ir


class WrongJump(msgspec.Struct, frozen=True):
    """Why `break` and `continue` are wrong in some place, and what to do instead."""

    text: str
    help: str | None = None


NO_LOOP = WrongJump("outside of a loop")


def out_of_concurrent(var: ir.Var) -> WrongJump:
    """A jump out of a loop whose iterations run in any order."""
    text = f"in loop {var.name}, whose iterations are concurrent"
    return WrongJump(text, "make the loop serial, or guard the statements with `if`")


def out_of_block(block: ir.Block) -> WrongJump:
    """A jump out of a block."""
    help = "move the jump out of the block, or guard the statements of the block with `if`"
    return WrongJump(f"leaves block {block.name}", help)
