"""Help texts for rejected steps: alternatives with the names of loops and blocks filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.try_remedies import THEN, called, first_legal, legal


def loop_names(loops: Iterable[ir.For]) -> str:
    return ", ".join(f.loop_var.name for f in loops)


def one_loop(state: StepState, blocks: Sequence[ir.Block], last: str) -> str:
    """Steps that merge the outermost loops of blocks into `loop`, then apply `last`; empty if this
    is not legal."""
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
    """Help for a block that cannot be inlined into its readers: move one to the other instead."""
    readers = flow.consumers(block)
    result = ", ".join(r.buffer.name for r in block.writes)
    if not readers:
        return f"apply {state.step_name} to a block that writes each element once"
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
    ways = [f"{there} moves the reader to where its elements are complete"] if there else []
    if here:
        ways.append(f"{here} computes in each iteration what {reader} reads there")
    only = f"only a block that writes each element once can be inlined in place of {result}"
    if not ways:
        return f"{only}; keep block {block.name} in place, as it cannot share a loop with {reader}"
    return (
        f"{only}; {'; or '.join(ways)}; lowering then shrinks {result} to the footprint of an "
        "iteration"
    )


def undriven(realize: ir.BlockRealize, loops: Sequence[ir.For]) -> str:
    """Help: the loops that drive no iterator."""
    idle = [
        f.loop_var.name
        for f in loops
        if not any(ir.uses_var(v, f.loop_var) for v in realize.iter_values)
    ]
    if not idle:
        return "bind each iterator so that the loops reach every value of it once"
    return (
        f"no iterator of block {realize.block.name} follows loop {', '.join(idle)}, which "
        "repeats its terms: bind an iterator to it, or apply the step to loops inside it"
    )


def apart(flow: BlockScope, loop: ir.For, block: ir.Block, buffer: ir.Buffer) -> str:
    """Help: how to make iterations of a loop write different elements."""
    realize, name = flow.tree.realize(block), loop.loop_var.name
    if not any(ir.uses_var(v, loop.loop_var) for v in realize.iter_values):
        users = [u.name for u in flow.readers.get(buffer, ()) if u is not block]
        reader = (
            f", or move all readers of {buffer.name} ({', '.join(users)}) into the loop"
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
    return f"each iteration of loop {name} must write other elements in {block.name}: {other}"


def instead(state: StepState, block: ir.Block, loop: ir.For, word: str, atomic: bool) -> str:
    """Help for a loop that drives a reduction iterator and cannot become `word`: what can run
    concurrently instead."""
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
        ways += [f"{way}: iterations then combine by atomic updates"] if way else []
    return "; or ".join(ways) or f"keep loop {loop.loop_var.name} serial"


def _drives(state: StepState, block: ir.Block, loop: ir.For, kind: ir.IterType) -> bool:
    """Whether a loop drives an iterator of the given kind."""
    values = zip(block.iter_vars, state.tree.realize(block).iter_values, strict=True)
    return any(it.iter_type is kind and ir.uses_var(v, loop.loop_var) for it, v in values)


def unordered(flow: BlockScope, block: ir.Block) -> str:
    """Help for a block that is neither complete nor a reduction."""
    realize = flow.tree.realize(block)
    for region in block.writes:
        for rng, size in zip(region.region, region.buffer.shape, strict=True):
            around = isinstance(rng.min, ir.FloorMod) and ir.structural_equal(
                *ir.match_types(rng.min.b, size)
            )
            if around and not ir.is_const_int(realize.predicate):
                return (
                    f"{region.buffer.name} is a rolling buffer that carries {size} elements "
                    "between iterations: apply the step before rolling_buffer, to a loop outside "
                    "the rolled one (parallel strips, rolled inside)"
                )
    return (
        "apply the step to a block that computes each element once, or that reduces it from an "
        "initial value; other blocks cannot move, but split, fuse and unroll still apply to "
        "their loops"
    )


def terms(block: ir.Block) -> str:
    """Text: how often a reduction writes an element, if that is a constant."""
    count = 1
    for it in block.iter_vars:
        if it.iter_type is ir.IterType.REDUCE:
            count *= ir.const_int(it.dom.extent) or 0
    return f", which writes an element {count} times" if count > 1 else ""


def in_step(state: StepState, loops: Sequence[ir.For], mine: ir.For, theirs: ir.For) -> str:
    """Help: how to combine nests whose loops `mine` and `theirs` have different trip counts."""
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
                f"{near} does not need equal trip counts, as each iteration computes what "
                f"block {b.name} reads of {result}{once}"
            )
    cuts = [*_cut(state, loops, mine, theirs)]
    ways += [f"{way} merges parts of equal length" for way in legal(state, cuts)]
    if ways:
        return "; or ".join(ways)
    return (
        "no part of the longer loop can be merged with the shorter one; reorder loops with equal "
        "trip counts outwards and merge those, or keep the nests separate"
    )


def _cut(state: StepState, loops: Sequence[ir.For], mine: ir.For, theirs: ir.For) -> list[str]:
    """Remedies that make the trip counts of two loops to be merged equal."""
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
    """Help: how to split a loop that drives spatial and reduction iterators of a block."""
    name = loop.loop_var.name
    inner = 1
    for it in block.iter_vars:
        size = ir.const_int(it.dom.extent) or 0
        inner *= size if it.iter_type is ir.IterType.REDUCE else 1
    around = ", at a loop around all of them" if state.step_name == "decompose_reduction" else ""
    before = f"apply {state.step_name} before the loops are fused{around}"
    split = f"outer, inner = split({called(state, loop)}, [None, {inner}])"
    if not inner or not legal(state, [split]):
        return f"{before}, or split {name} where one kind of iterator begins"
    if state.step_name == "decompose_reduction":
        step = f'decompose_reduction("{block.name}", outer)'
    else:
        step = f"{state.step_name}(inner, 0)" if state.step_name == "rfactor" else ""
    way = first_legal(state, [THEN.join([split, step])]) if step else ""
    fused = first_legal(state, [THEN.join([way, "fuse(outer, inner)"])]) if way else ""
    again = "; fuse(outer, inner) afterwards restores one loop" if fused else ""
    return f"{before}; or {way}{again}" if way else f"{before}, or {split} first"
