"""What to do instead of a refused step, with the names of loops and blocks filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.try_remedies import THEN, called, first_legal, legal


def loop_names(loops: Iterable[ir.For]) -> str:
    return ", ".join(f.loop_var.name for f in loops)


def one_loop(state: StepState, blocks: Sequence[ir.Block], last: str) -> str:
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


def beside(state: StepState, flow: BlockScope, block: ir.Block) -> str:
    """What brings a block together with its readers that cannot be put into them."""
    readers = flow.consumers(block)
    result = ", ".join(r.buffer.name for r in block.writes)
    if not readers:
        return f"take {state.step_name} on a block that writes each element once"
    reader = readers[0].name
    there = first_legal(
        state,
        (
            f'reverse_compute_at("{reader}", {called(state, f)})'
            for f in reversed(state.tree.loops_above(block))
        ),
    )
    here = first_legal(
        state,
        (
            f'compute_at("{block.name}", {called(state, f)})'
            for f in reversed(state.tree.loops_above(readers[0]))
        ),
    )
    ways = [f"{there} takes the reader to where its elements are finished"] if there else []
    if here:
        ways.append(f"{here} computes in each iteration what {reader} reads there")
    only = f"only a block that writes each element once has an expression in place of {result}"
    if not ways:
        return f"{only}; keep block {block.name} where it is, as no loop takes it and {reader} both"
    return (
        f"{only}; {'; or '.join(ways)}; lowering then keeps of {result} what an iteration touches"
    )


def undriven(realize: ir.BlockRealize, loops: Sequence[ir.For]) -> str:
    """Which loops drive no iterator."""
    idle = [
        f.loop_var.name
        for f in loops
        if not any(ir.uses_var(v, f.loop_var) for v in realize.iter_values)
    ]
    if not idle:
        return "bind each iterator so that the loops reach every value of it once"
    return (
        f"no iterator of block {realize.block.name} follows loop {', '.join(idle)}, which "
        "repeats its terms: bind an iterator to it, or take the step on loops inside of it"
    )


def apart(flow: BlockScope, loop: ir.For, block: ir.Block, buffer: ir.Buffer) -> str:
    """What keeps iterations of a loop from writing one element."""
    realize, name = flow.tree.realize(block), loop.loop_var.name
    if not any(ir.uses_var(v, loop.loop_var) for v in realize.iter_values):
        users = [u.name for u in flow.readers.get(buffer, ()) if u is not block]
        reader = (
            f", or let the loop hold all readers of {buffer.name} ({', '.join(users)})"
            if users
            else ""
        )
        return (
            f"no iterator of block {block.name} follows loop {name}, so every iteration does "
            f"the same: keep the block out of the loop{reader}"
        )
    above = [
        f.loop_var.name
        for f in flow.tree.loops_above(block)
        if f is not loop and flow.separates(f, block)
    ]
    other = (
        f"choose a loop that does ({', '.join(above)})"
        if above
        else f"bind the indices of {buffer.name} to splits and fusions of the loops"
    )
    return f"loop {name} must move what block {block.name} writes to other elements: {other}"


def instead(state: StepState, block: ir.Block, loop: ir.For, word: str, atomic: bool) -> str:
    """What may run at once in place of a loop that drives a reduction iterator, which was to become
    what `word` says."""
    step = state.step_name
    others = [
        f
        for f in state.tree.loops_above(block)
        if _drives(state, block, f, ir.IterType.SPATIAL)
        and not _drives(state, block, f, ir.IterType.REDUCE)
    ]
    if step in ("parallel", "vectorize"):
        steps = {f"{step}({called(state, f)})": f for f in others}
        others = [steps[way] for way in legal(state, steps)] or others
    ways = [f"choose a spatial loop ({loop_names(others)})"] if others else []
    name = called(state, loop)
    partial = f"rfactor({name}, 0)"
    more = ""
    if step == "bind":
        more = f', "{word.removeprefix("bound to ")}"'
    place = state.tree.loops_above(block).index(loop)
    at_once = f"part = {partial}{THEN}{step}(get_loops(part)[{place}]{more})"
    partial = first_legal(state, [at_once, partial]) or ("" if state.taken else partial)
    if partial:
        ways.append(f"{partial}, whose partial results are independent")
    if atomic:
        sums = (
            f for f in state.tree.loops_above(block) if _drives(state, block, f, ir.IterType.REDUCE)
        )
        again = f"{THEN}parallel({name})" if step == "parallel" else ""
        if step == "bind":
            again = f"{THEN}bind({name}{more})"
        last = f'atomic_update("{block.name}"){again}'
        parted = (
            f'decompose_reduction("{block.name}", {called(state, f)}){THEN}{last}' for f in sums
        )
        way = first_legal(state, parted if block.init is not None else [last])
        ways += [f"{way}: iterations then meet in an atomic update"] if way else []
    return "; or ".join(ways) or f"keep loop {loop.loop_var.name} serial"


def _drives(state: StepState, block: ir.Block, loop: ir.For, kind: ir.IterType) -> bool:
    """Whether a loop drives an iterator of a kind."""
    values = zip(block.iter_vars, state.tree.realize(block).iter_values, strict=True)
    return any(it.iter_type is kind and ir.uses_var(v, loop.loop_var) for it, v in values)


def unordered(flow: BlockScope, block: ir.Block) -> str:
    """What to do about a block that is neither complete nor a reduction."""
    realize = flow.tree.realize(block)
    for region in block.writes:
        for rng, size in zip(region.region, region.buffer.shape, strict=True):
            around = isinstance(rng.min, ir.FloorMod) and ir.structural_equal(
                *ir.match_types(rng.min.b, size)
            )
            if around and not ir.is_const_int(realize.predicate):
                return (
                    f"{region.buffer.name} keeps {size} at a time of what iterations hand on, as "
                    "rolling_buffer leaves it: take the step before rolling_buffer, where the loop "
                    "lies outside of the one that rolls (parallel strips, rolled inside)"
                )
    return (
        "take the step on a block that computes each element once, or that updates it in reduction "
        "iterators from an initial value; other blocks stay where they are, and split, fuse and "
        "unroll still apply to their loops"
    )


def terms(block: ir.Block) -> str:
    """How often a reduction writes an element, where that is a number."""
    count = 1
    for it in block.iter_vars:
        if it.iter_type is ir.IterType.REDUCE:
            count *= ir.const_int(it.dom.extent) or 0
    return f", which writes an element {count} times" if count > 1 else ""


def in_step(state: StepState, loops: Sequence[ir.For], mine: ir.For, theirs: ir.For) -> str:
    """What brings nests together whose loops `mine` and `theirs` run differently often."""
    ways: list[str] = []
    pairs = [
        (a, b)
        for a in state.tree.child_blocks(mine)
        for b in state.tree.child_blocks(theirs)
        if {r.buffer for r in a.writes} & {r.buffer for r in b.reads}
    ]
    for a, b in pairs[:1]:
        result = ", ".join(r.buffer.name for r in a.writes)
        near = first_legal(state, [f'compute_at("{a.name}", {called(state, theirs)})'])
        if near:
            rolled = first_legal(state, [f'{near}{THEN}rolling_buffer("{a.name}", 0)'])
            once = f"; {rolled} computes each element once" if rolled else ""
            ways.append(
                f"{near} needs no loops of one length, as each iteration computes what "
                f"block {b.name} reads of {result}{once}"
            )
    cuts = [*_cut(state, loops, mine, theirs)]
    ways += [f"{way} merges parts of one length" for way in legal(state, cuts)]
    if ways:
        return "; or ".join(ways)
    return (
        "no piece of the longer loop merges with the shorter one as they are; reorder loops that "
        "run equally often outwards and merge those, or keep the nests apart"
    )


def _cut(state: StepState, loops: Sequence[ir.For], mine: ir.For, theirs: ir.For) -> list[str]:
    """Ways to give two of the loops to be merged one length."""
    short, long = sorted((mine, theirs), key=lambda f: ir.const_int(f.extent) or 0)
    low, high = ir.const_int(short.extent), ir.const_int(long.extent)
    if low is None or high is None or not 0 < low < high or long not in set(loops):
        return []
    name = called(state, long)
    ways: list[str] = []
    for way, parts, sizes in (
        ("split", "outer, inner", [low, high // low]),
        ("loop_partition", "first, rest", [low, high - low]),
    ):
        if way == "split" and high % low:
            continue
        head = parts.split(",", maxsplit=1)[0]
        merged = ", ".join(head if f is long else called(state, f) for f in loops)
        ways.append(f"{parts} = {way}({name}, {sizes}){THEN}merge({merged})")
    return ways


def parted(state: StepState, block: ir.Block, loop: ir.For) -> str:
    """What takes a loop apart that runs through spatial and reduction iterators of a block."""
    name = loop.loop_var.name
    inner = 1
    for it in block.iter_vars:
        size = ir.const_int(it.dom.extent) or 0
        inner *= size if it.iter_type is ir.IterType.REDUCE else 1
    around = ", at a loop around all of them" if state.step_name == "decompose_reduction" else ""
    before = f"take {state.step_name} before the loops are fused{around}"
    split = f"outer, inner = split({called(state, loop)}, [None, {inner}])"
    if not inner or not legal(state, [split]):
        return f"{before}, or split {name} where one kind of iterator begins"
    if state.step_name == "decompose_reduction":
        step = f'decompose_reduction("{block.name}", outer)'
    else:
        step = f"{state.step_name}(inner, 0)" if state.step_name == "rfactor" else ""
    way = first_legal(state, [THEN.join([split, step])]) if step else ""
    fused = first_legal(state, [THEN.join([way, "fuse(outer, inner)"])]) if way else ""
    again = "; fuse(outer, inner) afterwards makes one loop again" if fused else ""
    return f"{before}; or {way}{again}" if way else f"{before}, or {split} first"
