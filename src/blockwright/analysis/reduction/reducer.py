"""Recognition of reductions in loop form: the reducer of a block and the terms it combines.

Before::

    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            V[vi] = T.float32("-inf")
            I[vi] = T.int64(9223372036854775807)
        taken: T.bool = …
        v: T.float32 = T.Select(taken, A[vi, vk], V[vi])
        p: T.int64 = T.Select(taken, vk, I[vi])
        V[vi] = v
        I[vi] = p

Found: `argmax` over the elements V[vi], I[vi], terms A[vi, vk], vk, initial values -inf, 2⁶³ - 1.

The body is interpreted as one simultaneous update: lets are expanded into the stores, and a load
after a store sees the stored value. The update is then matched against the reducer declared in the
block annotation "reducer", or else against the builtin ones: each operand of the combination must
be either the element itself or a term free of all updated elements. Operands of commutative
operations, and the two sides of the combination, may be in either order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import permutations
from weakref import WeakKeyDictionary

import msgspec

from blockwright import ir
from blockwright.analysis.reduction.reducer_laws import broken_law, is_idempotent_at, is_neutral
from blockwright.analysis.reduction.reducer_match import Captured, match_all
from blockwright.analysis.reduction.reducer_table import (
    BUILTIN,
    Combine,
    builtin_reducer,
    make_reducer,
)
from blockwright.analysis.reduction.simultaneous_update import NoMatch, Update, initial_values
from blockwright.analysis.reduction.why_not_reducer import why_no_builtin
from blockwright.ir.annotations import REDUCER
from blockwright.support import IRError


class Reduction(msgspec.Struct, frozen=True):
    """A recognized reduction, or an update. Tuples have one entry per component.

    Attributes:
        reducer: the combiner; its components in the order of `elements`.
        name: name of a builtin reducer; "" for a declared one.
        elements: the updated elements.
        terms: the terms combined into the elements.
        initial: initial values; empty for an update without init statement.
    """

    reducer: ir.CommReducer
    name: str
    elements: tuple[ir.BufferLoad, ...]
    terms: tuple[ir.Expr, ...]
    initial: tuple[ir.Expr, ...]

    @property
    def lanes(self) -> str:
        """The vector operation that combines lanes; "" if there is none."""
        return BUILTIN[self.name].lanes if self.name else ""

    @property
    def starts_neutral(self) -> bool:
        """Whether the initial values are the identity of the reducer."""
        return is_neutral(self.reducer, self.initial)

    @property
    def may_restart(self) -> bool:
        """Whether the initial value may be combined several times, as partial results require.

        Any initial value may be for a minimum; for a sum, an initial value of 1 would be counted
        again.
        """
        anywhere = bool(self.name) and BUILTIN[self.name].idempotent
        return anywhere or is_idempotent_at(self.reducer, self.initial)


_NO_STEP = "the update does not match the reducer that the block declares"
_NO_BUILTIN = {
    False: "the update is not a sum, product, minimum, maximum, any or all of the element and a "
    "term free of it",
    True: "the updates together are not an argmin or argmax of the elements and terms free of them",
}


class NoReduction(msgspec.Struct, frozen=True):
    """Why a block is not recognized as a reduction."""

    why: str


def find_reduction(block: ir.Block) -> Reduction | NoReduction:
    """The reduction computed by a block with an init statement."""
    if block.init is None:
        return NoReduction("it has no initial value")
    return _find(block)


def find_update(block: ir.Block) -> Reduction | NoReduction:
    """Like `find_reduction`, but the block may be initialized elsewhere."""
    return _find(block)


def _find(block: ir.Block) -> Reduction | NoReduction:
    try:
        return _recognise(block)
    except NoMatch as reason:
        return NoReduction(str(reason))


def _recognise(block: ir.Block) -> Reduction:
    update = Update(block)
    declared = declared_reducer(block)
    result = _matched(update, range(len(update.elements)), declared)
    if result is None and declared is None:
        result = _independent(update)
    if result is None:
        if declared is not None:
            raise NoMatch(_NO_STEP)
        raise NoMatch(f"{_NO_BUILTIN[len(update.elements) > 1]}: {why_no_builtin(*update.parts())}")
    name, reducer, order, terms = result
    elements = tuple(update.elements[k] for k in order)
    initial = () if block.init is None else initial_values(block.init, elements)
    reduced = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    if any(ir.uses_var(value, reduced) for value in initial):
        raise NoMatch("its initial value depends on a reduction iterator")
    return Reduction(reducer, name, elements, terms, initial)


def declared_reducer(block: ir.Block) -> ir.CommReducer | None:
    """The reducer declared by a block, or None; rejected if it violates the reducer laws."""
    declared = block.annotations.get(REDUCER)
    if declared is None:
        return None
    if not isinstance(declared, ir.CommReducer):
        raise NoMatch(f'its annotation "{REDUCER}" is not a comm_reducer')
    broken = law_broken_by(declared)
    if broken:
        raise NoMatch(f"the declared reducer is not commutative and associative: {broken}")
    return declared


def declare_reducer(combine: Combine, identity: Sequence[ir.Expr]) -> ir.CommReducer:
    """Create a custom reducer, checked on samples.

    Args:
        combine: f(x, y); for n components f(x0, …, y0, …), or f(x, y) with tuples of components.
        identity: the neutral element, one expression per component.

    Raises IRError BW228 with a counterexample if a law does not hold.
    """
    count = len(identity)
    names = _parameters(combine)
    if len(names) == 2 * count:
        reducer = make_reducer(combine, identity, names)
    else:
        reducer = make_reducer(lambda *v: combine(v[:count], v[count:]), identity)
    broken = law_broken_by(reducer)
    if broken:
        raise IRError(
            f"this is not a commutative reducer: {broken}",
            code="BW228",
            help="a reduction may run in any order and in parts, so the combiner must "
            "be commutative and associative, and the identity neutral; resolve ties "
            "and NaN by position, as the builtin argmax does",
        )
    return reducer


def _parameters(combine: Combine) -> list[str]:
    try:
        return list(signature(combine).parameters)
    except (TypeError, ValueError):
        return ["x", "y"]  # a builtin such as max has no signature


_known_laws: WeakKeyDictionary[ir.CommReducer, str] = WeakKeyDictionary()


def law_broken_by(reducer: ir.CommReducer) -> str:
    """`broken_law`, cached per reducer."""
    result = _known_laws.get(reducer)
    if result is None:
        result = _known_laws[reducer] = broken_law(reducer)
    return result


def builtin_name(reducer: ir.CommReducer) -> str:
    """The builtin reducer equivalent to a combiner, up to component order; "" if there is none."""
    count = len(reducer.lhs)
    rows = [name for name, row in BUILTIN.items() if row.arity == count]
    for order in permutations(range(count)) if rows else ():
        lhs, rhs = [reducer.lhs[k] for k in order], [reducer.rhs[k] for k in order]
        result = [reducer.result[k] for k in order]
        for name in rows:
            known = _builtin(name, [v.type for v in lhs])
            sides = () if known is None else ((known.lhs, known.rhs), (known.rhs, known.lhs))
            for left, right in sides:
                assert known is not None
                fixed: Captured = dict(zip((*left, *right), (*lhs, *rhs), strict=True))
                if next(match_all(known.result, result, fixed, ()), None) is not None:
                    return name
    return ""


def _builtin(name: str, dtypes: Sequence[ir.DType]) -> ir.CommReducer | None:
    """A builtin reducer over these types, or None if it is not defined for them."""
    if (name in ("any", "all")) is not dtypes[0].is_bool or dtypes[0].is_handle:
        return None
    if BUILTIN[name].arity == 2 and not dtypes[1].is_int:
        return None
    return builtin_reducer(name, dtypes)


# ----------------------------------------------------------------------------- finding the reducer
_Found = tuple[str, ir.CommReducer, tuple[int, ...], tuple[ir.Expr, ...]]


def _candidates(
    update: Update, members: Sequence[int], declared: ir.CommReducer | None
) -> Iterator[tuple[str, ir.CommReducer, tuple[int, ...]]]:
    """Reducers to try for some elements, each with an order of its components."""
    count = len(members)
    orders = list(permutations(members)) if count <= 4 else [tuple(members)]
    for order in orders:
        dtypes = tuple(update.old[k].type for k in order)
        if declared is not None:
            if dtypes == declared.dtypes:
                yield "", declared, order
            continue
        for name, row in BUILTIN.items():
            known = _builtin(name, dtypes) if row.arity == count else None
            if known is not None:
                yield name, known, order


def _matched(
    update: Update, members: Sequence[int], declared: ir.CommReducer | None
) -> _Found | None:
    """The reducer of some elements of the update, whose terms are free of all elements."""
    for name, reducer, order in _candidates(update, members, declared):
        old = [update.old[k] for k in order]
        values = [update.values[k] for k in order]
        for own, other in ((reducer.lhs, reducer.rhs), (reducer.rhs, reducer.lhs)):
            fixed: Captured = dict(zip(own, old, strict=True))
            for captured in match_all(reducer.result, values, fixed, update.old):
                if all(v in captured for v in other):
                    return name, reducer, order, tuple(captured[v] for v in other)
    return None


def _independent(update: Update) -> _Found | None:
    """Match several independent builtin reductions, such as the sum of terms and of their squares.

    Elements are grouped if the new value of one depends on the other. The laws hold for the tuple
    of all components because they hold for each group.
    """
    count = len(update.elements)
    if count < 2:
        return None
    groups = [
        {k, *(j for j in range(count) if ir.uses_var(update.values[k], update.old[j]))}
        for k in range(count)
    ]
    for k in range(count):
        joined = set[int]().union(*(g for g in groups if k in g))
        groups = [*(g for g in groups if k not in g), joined]
    parts = [_matched(update, sorted(group), None) for group in sorted(groups, key=min)]
    result = [part for part in parts if part is not None]
    if len(result) < len(parts) or len(result) < 2:
        return None
    reducer = _side_by_side([part[1] for part in result])
    order = tuple(k for part in result for k in part[2])
    return "", reducer, order, tuple(term for part in result for term in part[3])


def _side_by_side(parts: Sequence[ir.CommReducer]) -> ir.CommReducer:
    """One reducer with the components of all parts, each part with its own operands."""
    lhs: list[ir.Var] = []
    rhs: list[ir.Var] = []
    result: list[ir.Expr] = []
    for part in parts:
        start = len(lhs)
        lhs += [ir.Var(f"x{start + k}", v.type) for k, v in enumerate(part.lhs)]
        rhs += [ir.Var(f"y{start + k}", v.type) for k, v in enumerate(part.rhs)]
        operands = part.operands(lhs[start:], rhs[start:])
        result += [ir.substitute(value, operands) for value in part.result]
    identity = tuple(value for part in parts for value in part.identity)
    return ir.CommReducer(tuple(lhs), tuple(rhs), tuple(result), identity)
