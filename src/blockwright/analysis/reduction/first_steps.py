"""Whether reductions initialize every element that they visit.

`init` runs with the first instance of a reduction, and without one only if a domain is empty. If
loops or a predicate skip all instances, or the first one, of a non-empty domain, the results keep
their old values::

    for i, k in T.grid(8, n):  # n may be 0
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.reduce(16, k)
            with T.init():
                C[vi] = 0

Checked by schedule steps that store initial values elsewhere, or that rely on written results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from blockwright import ir
from blockwright.analysis.access.stable_values import is_steady, with_loads_named
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts


def takes_first_step(
    realize: ir.BlockRealize, loops: Sequence[ir.For], facts: Callable[[ir.Stmt], Analyzer]
) -> bool:
    """Whether a reduction provably runs its first instance whenever all its domains are non-empty.

    Args:
        realize: the block in its context.
        loops: the loops above it, outermost first.
        facts: returns the facts at a statement.
    """
    pairs = realize.bindings
    if any(ir.is_const_int(it.dom.extent, 0) for it, _ in pairs):
        return True
    reduced = [(it, value) for it, value in pairs if it.iter_type is ir.IterType.REDUCE]
    driving = [f for f in loops if any(ir.uses_var(value, f.loop_var) for _, value in reduced)]
    outermost = driving[0] if driving else realize
    known = facts(outermost).copy()
    inner = loops[loops.index(driving[0]) :] if driving else ()
    here = {it.var: value for it, value in pairs}
    sizes = [it.dom.extent for it, _ in pairs]
    sizes += [ir.substitute(size, here) for size in sizes if not is_steady(size)]
    # A loaded size is loop-invariant if nothing in the loops writes to its buffer.
    predicate, *named = with_loads_named(
        [realize.predicate, *sizes, *(e for f in inner for e in (f.min, f.extent))],
        {f.loop_var for f in inner},
        outermost,
    )
    for extent in named[: len(sizes)]:
        _learn_positive(known, extent)
    bounds = named[len(sizes) :]
    first: dict[ir.Var, ir.Expr] = {}
    for loop, start, size in zip(inner, bounds[::2], bounds[1::2], strict=True):
        low, extent = ir.substitute(start, first), ir.substitute(size, first)
        if loop not in driving:
            known.bind(loop.loop_var, ir.Range(low, extent))
        elif known.prove(_positive(extent)):
            first[loop.loop_var] = ir.cast_to(low, loop.loop_var.type)
        else:
            return False
    steps = [(value, it.dom.min) for it, value in reduced]
    return begins_at(steps, first, known) and holds_at([predicate], first, known)


def begins_at(
    steps: Iterable[tuple[ir.Expr, ir.Expr]], first: Mapping[ir.Var, ir.Expr], known: Analyzer
) -> bool:
    """Whether reduction iterators have their minimum in the first iteration of their loops.

    Args:
        steps: pairs of the value bound to an iterator and its minimum.
        first: the first value of each loop variable.
    """
    return all(
        known.prove_equal(*ir.match_types(ir.substitute(value, first), low)) for value, low in steps
    )


def holds_at(
    conditions: Iterable[ir.Expr], first: Mapping[ir.Var, ir.Expr], known: Analyzer
) -> bool:
    """Whether the parts of conditions that depend on loops hold in their first iteration."""
    return all(
        known.prove(ir.substitute(part, first))
        for condition in conditions
        for part in conjuncts(condition)
        if ir.uses_var(part, first.keys())
    )


def _learn_positive(known: Analyzer, extent: ir.Expr) -> None:
    """Learn that an extent is positive, and with it its factors."""
    known.learn(_positive(extent))
    if isinstance(extent, ir.Mul):
        for part, other in ((extent.a, extent.b), (extent.b, extent.a)):
            if known.prove(ir.compare(ir.GE, other, ir.const(0, other.dtype))):
                _learn_positive(known, part)


def _positive(extent: ir.Expr) -> ir.Expr:
    return ir.compare(ir.GT, extent, ir.const(0, extent.dtype))
