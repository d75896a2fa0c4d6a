"""Where `break` and `continue` may stand: in a serial loop, with no block in between.

A block that leaves a loop around it would decide whether instances of others run, and its signature
does not say so.
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
    """Jumps in a loop whose other iterations may have run, or not."""
    text = f"in loop {var.name}, whose iterations are concurrent"
    return WrongJump(text, "make the loop serial, or guard the statements with `if`")


def out_of_block(block: ir.Block) -> WrongJump:
    """Jumps out of a block, which would decide whether instances of others run."""
    help = "move the jump beside the block, or guard the statements of the block with `if`"
    return WrongJump(f"leaves block {block.name}", help)
