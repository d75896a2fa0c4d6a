"""What to do instead of a refused step, with the names of loops and blocks filled in."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.schedule.state import State


def beside(state: State, flow: Scope, block: ir.Block) -> str:
    """What brings a block together with its readers that cannot be put into them."""
    readers = flow.consumers(block)
    made = ", ".join(r.buffer.name for r in block.writes)
    if not readers:
        return f"take {state.step_name} on a block that writes each element once"
    loops = [f.loop_var.name for f in state.tree.loops_above(readers[0])]
    loop = f"a loop of {readers[0].name} ({', '.join(loops)})" if loops else "a loop of its reader"
    own = f"at a loop of {block.name} outside of its reduction loops"
    return (
        f"only a block that writes each element once has an expression in place of {made}; "
        f"compute_at({block.name}, loop) at {loop} computes in each iteration what that one reads, "
        f"and lowering then keeps no more of {made} than that; or "
        f"reverse_compute_at({readers[0].name}, loop) {own} takes the reader there"
    )


def undriven(realize: ir.BlockRealize, loops: Sequence[ir.For]) -> str:
    """Which loops drive no iterator."""
    idle = [f.loop_var.name for f in loops
            if not any(ir.uses_var(v, f.loop_var) for v in realize.iter_values)]  # fmt: skip
    if not idle:
        return "bind each iterator so that the loops reach every value of it once"
    return (
        f"no iterator of block {realize.block.name} follows loop {', '.join(idle)}, which "
        "repeats its terms: bind an iterator to it, or take the step on loops inside of it"
    )


def apart(flow: Scope, loop: ir.For, block: ir.Block, buffer: ir.Buffer) -> str:
    """What keeps iterations of a loop from writing one element."""
    realize, name = flow.tree.realize(block), loop.loop_var.name
    if not any(ir.uses_var(v, loop.loop_var) for v in realize.iter_values):
        users = [u.name for u in flow.readers.get(buffer, ()) if u is not block]
        reader = f", or let the loop hold all readers of {buffer.name} ({', '.join(users)})" \
                 if users else ""  # fmt: skip
        return (
            f"no iterator of block {block.name} follows loop {name}, so every iteration does "
            f"the same: keep the block out of the loop{reader}"
        )
    above = [f.loop_var.name for f in flow.tree.loops_above(block)
             if f is not loop and flow.separates(f, block)]  # fmt: skip
    other = f"choose a loop that does ({', '.join(above)})" if above else "bind the indices of " \
            f"{buffer.name} to splits and fusions of the loops"  # fmt: skip
    return f"loop {name} must move what block {block.name} writes to other elements: {other}"


def instead(state: State, block: ir.Block) -> str:
    """Advice to take a loop that drives spatial iterators only, by name."""
    realize = state.tree.realize(block)
    pairs = list(zip(block.iter_vars, realize.iter_values, strict=True))

    def drives(loop: ir.For, kind: ir.IterType) -> bool:
        return any(it.iter_type is kind and ir.uses_var(v, loop.loop_var) for it, v in pairs)

    names = [f.loop_var.name for f in state.tree.loops_above(block)
             if drives(f, ir.IterType.SPATIAL) and not drives(f, ir.IterType.REDUCE)]  # fmt: skip
    return f"choose a spatial loop ({', '.join(names)}), " if names else "choose a spatial loop, "
