"""Iterators for loop variables that a block uses implicitly: domains, names, and uses."""

from __future__ import annotations

from collections.abc import Container, Mapping

from blockwright import ir
from blockwright.arith import Analyzer, eval_set
from blockwright.ir import Buffer, IterType, Range, Var
from blockwright.support import ScriptError


def widest(domain: Range, loops: Mapping[Var, Range]) -> Range:
    """The hull of a loop's range over all iterations of the loops that its bounds depend on."""
    if not ir.uses_var(domain, set(loops)):
        return domain
    analyzer = Analyzer()
    low = eval_set(domain.min, loops, analyzer).min
    high = eval_set(ir.add(domain.min, domain.extent), loops, analyzer).max
    if low is None or high is None:
        raise ScriptError(
            "the range of a loop around this block depends on another loop in a way "
            "that has no bounds",
            code="BW107",
            help="declare an iterator of the block: v = T.axis.opaque(extent, i)",
        )
    return Range(low, analyzer.simplify(ir.sub(high, low)))


def loop_name(name: str) -> str:
    """The name of the loop for an iterator: `vi` → `i`, `i` → `i_0`."""
    return name[1:] if len(name) > 1 and name[0] == "v" and name[1].isalpha() else f"{name}_0"


def outer_buffers(block: ir.Block) -> set[Buffer]:
    """The buffers that a block uses but does not define."""
    used, own = set[Buffer](), set[Buffer]()
    stack: list[ir.Node] = [block]
    while stack:
        node = stack.pop()
        if isinstance(node, Buffer):
            used.add(node)
            continue
        if isinstance(node, ir.Block):
            own.update(node.alloc_buffers)
        elif isinstance(node, (ir.MatchBufferRegion, ir.Allocate, ir.DeclBuffer)):
            own.add(node.buffer)
        stack += node.children()
    return used - own


def uses_beside(root: ir.Node, var: Var, buffers: Container[ir.Node]) -> bool:
    """Whether a variable occurs outside the given buffers."""
    stack: list[ir.Node] = [root]
    while stack:
        node = stack.pop()
        if node is var:
            return True
        if node not in buffers:
            stack += node.children()
    return False


def kind_of_added(block: ir.Block, var: Var) -> IterType:
    """The kind of an iterator that stands for a loop variable in a block.

    It is spatial if different values store different elements: all stores to a buffer from outside
    the block have the variable as the index of one dimension, no view moves with it, and there are
    no other effects.
    """
    if block.init is not None or any(map(_acts, ir.walk(block.body))):
        return IterType.OPAQUE
    views = [match for inner in ir.blocks(block) for match in inner.match_buffers]
    if any(ir.uses_var(rng.min, var) for match in views for rng in match.source.region):
        return IterType.OPAQUE
    own = {b for inner in ir.blocks(block) for b in inner.alloc_buffers}
    places: dict[ir.Buffer, set[int]] = {}
    for store in ir.collect(block.body, ir.BufferStore):
        if store.buffer not in own:
            here = {k for k, index in enumerate(store.indices) if index is var}
            places[store.buffer] = places.get(store.buffer, here) & here
    return IterType.SPATIAL if places and all(places.values()) else IterType.OPAQUE


def _acts(node: ir.Node) -> bool:
    """Whether a node has an effect other than a store, or gives memory a second name."""
    if isinstance(node, ir.Call):
        return ir.op_has_effect(node.op)
    return isinstance(node, (ir.AssertStmt, ir.DeclBuffer))
