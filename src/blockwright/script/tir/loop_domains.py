"""Loops around a block: their names, and the domains of iterators that stand for them."""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.arith import Analyzer, eval_set
from blockwright.ir import Range, Var
from blockwright.support import ScriptError


def widest(domain: Range, loops: Mapping[Var, Range]) -> Range:
    """The domain of a loop over all iterations of the loops that its ends depend on."""
    if not ir.uses_var(domain, set(loops)):
        return domain
    analyzer = Analyzer()
    low = eval_set(domain.min, loops, analyzer).min
    high = eval_set(ir.add(domain.min, domain.extent), loops, analyzer).max
    if low is None or high is None:
        raise ScriptError("the range of a loop around this block depends on another loop in a way "
                          "that has no bounds", code="BW107",
                          help="give the block an iterator of its own: "
                          "v = T.axis.opaque(extent, i)")  # fmt: skip
    return Range(low, analyzer.simplify(ir.sub(high, low)))


def loop_name(name: str) -> str:
    """The loop of iterator `vi` is `i`; of `i` it is `i_0`."""
    return name[1:] if len(name) > 1 and name[0] == "v" and name[1].isalpha() else f"{name}_0"
