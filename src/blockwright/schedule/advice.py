"""What to do instead of a refused step, with the names of loops and blocks filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.schedule.state import State
from blockwright.schedule.trial import THEN, called, calls, first_legal, legal


def loop_names(loops: Iterable[ir.For]) -> str:
    return ", ".join(f.loop_var.name for f in loops)


def one_loop(state: State, blocks: Sequence[ir.Block], last: str) -> str:
    """How blocks that share no loop come to share the outermost one, as `loop`, and what is legal
    then; empty where nothing is."""
    tops = [f for f in (next(iter(state.tree.loops_above(b)), None) for b in blocks) if f]
    if len(tops) < len(blocks) or len(set(tops)) < len(tops):
        return ""
    tops.sort(key=lambda f: state.tree.order[f])
    sizes = [ir.const_int(f.extent) or 0 for f in tops]
    short = min(sizes)
    steps: list[str] = []
    parts: list[str] = []
    for top, size in zip(tops, sizes, strict=True):
        name = called(state, top)
        if not short or size % short or size == short:
            parts.append(name)
            continue
        part = f"outer_{len(parts)}" if len(tops) > 2 else "outer"
        inner = part.replace("outer", "inner")
        steps.append(f"{part}, {inner} = split({name}, [{short}, {size // short}])")
        parts.append(part)
    return first_legal(state, [THEN.join([*steps, f"loop = merge({', '.join(parts)})", last])])


def beside(state: State, flow: Scope, block: ir.Block) -> str:
    """What brings a block together with its readers that cannot be put into them."""
    readers = flow.consumers(block)
    made = ", ".join(r.buffer.name for r in block.writes)
    if not readers:
        return f"take {state.step_name} on a block that writes each element once"
    reader = readers[0].name
    there = first_legal(state, (f'reverse_compute_at("{reader}", {called(state, f)})'
                                for f in reversed(state.tree.loops_above(block))))  # fmt: skip
    here = first_legal(state, (f'compute_at("{block.name}", {called(state, f)})'
                               for f in reversed(state.tree.loops_above(readers[0]))))  # fmt: skip
    ways = [f"{there} takes the reader to where its elements are finished"] if there else []
    if here:
        ways.append(f"{here} computes in each iteration what {reader} reads there")
    only = f"only a block that writes each element once has an expression in place of {made}"
    if not ways:
        return f"{only}; keep block {block.name} where it is, as no loop takes it and {reader} both"
    return f"{only}; {'; or '.join(ways)}; lowering then keeps of {made} what an iteration touches"


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
