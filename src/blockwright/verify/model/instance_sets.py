"""Frames: sets of instances with names for their coordinates, and when each instance runs.

A statement runs under loops. Its instances are the values of the block iterators around it (and of
loops inside the innermost block) wherever these tell all its runs apart; else loops are coordinates
too. Working on iterators instead of loops is what keeps queries small: a split, fused or reordered
nest has the instances that it had before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.affine import affine, condition
from blockwright.verify.budget import begin_step
from blockwright.verify.verdict import Mismatch, Unknown

Step = int | str
"""A place in written order, or the loop that runs there."""


class EnclosingLoop(msgspec.Struct, frozen=True, eq=False):
    """A loop above a statement.

    Attributes:
        name: its coordinate.
        kind: how iterations run.
        tag: the thread axis of a bound loop.
        node: the loop itself; None for lanes of a vector and elements of a parameter.
    """

    name: str
    kind: ir.ForKind
    tag: str
    node: ir.For | None = None


class Iterator(msgspec.Struct, frozen=True, eq=False):
    """A block iterator: its coordinate, its declared box, and what it is of the loops."""

    name: str
    low: str
    extent: str
    binding: str
    reduces: bool


class StatementPosition(msgspec.Struct, frozen=True, eq=False):
    """Where a statement stands.

    Attributes:
        loops: all loops above it, outermost first.
        iters: iterators of all blocks around it, outermost first.
        inner: the loops inside the innermost block, by name.
        conditions: what holds when it runs, on loops and iterators.
        path: places in written order and loops in turn, from the root.
        names: what each variable in sight is, in coordinates.
        values: variables bound to what is no index, and their values.
    """

    loops: tuple[EnclosingLoop, ...] = ()
    iters: tuple[Iterator, ...] = ()
    inner: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    path: tuple[Step, ...] = ()
    names: Mapping[ir.Var, str] = {}
    values: Mapping[ir.Var, ir.Expr] = {}

    def at(self, position: int) -> StatementPosition:
        """One of several statements there."""
        return msgspec.structs.replace(self, path=(*self.path, position))

    def given(self, text: str) -> StatementPosition:
        """The same place, where a condition is known to hold."""
        return msgspec.structs.replace(self, conditions=(*self.conditions, text))


class QuerySpace(msgspec.Struct, frozen=True, eq=False):
    """What all queries of one verdict share: isl's context and the symbolic sizes.

    Attributes:
        sizes: names of the parameters.
        known: what holds of them.
        maps, sets: what was read, by its text.
    """

    context: isl.Context
    sizes: tuple[str, ...]
    known: isl.Set
    maps: dict[str, isl.Map] = {}
    sets: dict[str, isl.Set] = {}

    def text(self, body: str) -> str:
        """A relation or set in isl's notation, with the parameters in front."""
        return f"[{', '.join(self.sizes)}] -> {{ {body} }}"

    def map(self, body: str) -> isl.Map:
        result = self.maps.get(body)
        if result is None:
            result = self.maps[body] = isl.Map(self.text(body), self.context)
        return result

    def set(self, body: str) -> isl.Set:
        result = self.sets.get(body)
        if result is None:
            result = self.sets[body] = isl.Set(self.text(body), self.context)
        return result


class InstanceSet:
    """Instances of a statement.

    Attributes:
        name: of the instances in isl.
        coordinates: their names, in order.
        path: as in `StatementPosition`.
        names: what each variable is in coordinates.
    """

    def __init__(self, space: QuerySpace, name: str, place: StatementPosition) -> None:
        self.space = space
        self.name = name
        self.place = place
        self.path = place.path
        self.names = place.names
        self.values = place.values
        self._times: dict[tuple[Step, ...], isl.Map] = {}
        begin_step(f"the instances of {name}")
        iters, loops = [it.name for it in place.iters], [loop.name for loop in place.loops]
        coordinates = [*iters, *place.inner]
        beta = self._beta(coordinates)
        bound = {*place.inner, *(it.binding for it in place.iters)}
        if not (set(loops) <= bound or beta.is_injective()):
            coordinates = [*iters, *loops]
            beta = self._beta(coordinates)
        self.coordinates = tuple(coordinates)
        self.beta = beta
        self.domain = self._domain(beta)

    def _beta(self, coordinates: list[str]) -> isl.Map:
        place = self.place
        equal = [f"{it.name} = {it.binding}" for it in place.iters]
        known = " and ".join([*equal, *place.conditions]) or "0 = 0"
        loops = ", ".join(loop.name for loop in place.loops)
        body = f"L[{loops}] -> {self.name}[{', '.join(coordinates)}] : {known}"
        return self.space.map(body).intersect_params(self.space.known)

    def _domain(self, beta: isl.Map) -> isl.Set:
        """The instances: the declared box itself where it is that, which has no divisions."""
        result = beta.range()
        if not self.place.iters:
            return result.coalesce()
        box = " and ".join(
            f"{it.low} <= {it.name} < {it.low} + {it.extent}" for it in self.place.iters
        )
        whole = self.space.set(f"{self.tuple} : {box}").intersect_params(self.space.known)
        if not result.is_subset(whole):
            outside = result.subtract(whole)
            raise Mismatch("an iterator has a value outside of its domain", least_sizes(outside))
        return whole if whole.is_subset(result) else result.coalesce()

    @property
    def tuple(self) -> str:
        """An instance in isl's notation."""
        return f"{self.name}[{', '.join(self.coordinates)}]"

    # ------------------------------------------------------------------ expressions
    def index(self, expr: ir.Expr) -> str | None:
        """An index expression in coordinates; None when it is no quasi-affine form."""
        return affine(expr, self.names)

    def condition(self, expr: ir.Expr) -> isl.Set | None:
        """The instances at which a condition holds; None when it is not about indices."""
        text = condition(expr, self.names)
        return None if text is None else self.space.set(f"{self.tuple} : {text}")

    def relation(self, texts: Iterable[str], target: str = "") -> isl.Map:
        """Each instance to a tuple of expressions in coordinates."""
        return self.space.map(f"{self.tuple} -> {target}[{', '.join(texts)}]")

    @cached_property
    def identity(self) -> isl.Map:
        """Each instance to itself."""
        return self.domain.identity()

    # ------------------------------------------------------------------ time
    def time(self, steps: tuple[Step, ...]) -> isl.Map:
        """When each instance runs: numbers in written order, compared one after the other."""
        result = self._times.get(steps)
        if result is None:
            result = self._times[steps] = self._time(steps)
        return result

    def _time(self, steps: tuple[Step, ...]) -> isl.Map:
        known = {it.binding: it.name for it in self.place.iters}
        known |= {name: name for name in self.coordinates}
        texts = [str(s) if isinstance(s, int) else known.get(s) for s in steps]
        if all(t is not None for t in texts):
            result = self.relation([t for t in texts if t is not None])
            return result.intersect_domain(self.domain)
        loops = ", ".join(loop.name for loop in self.place.loops)
        when = self.space.map(f"L[{loops}] -> [{', '.join(map(str, steps))}]")
        return self.loops_of.apply_range(when).intersect_domain(self.domain)

    @cached_property
    def loops_of(self) -> isl.Map:
        """Each instance to the loops that run it, by formulas: what isl derives from bounds alone
        stays with every relation made of it."""
        begin_step(f"the loops of each instance of {self.name}")
        result = self.beta.reverse().as_formulas()
        begin_step(f"accesses of {self.name}")
        return result


class Extended(InstanceSet):
    """Instances of another frame, each at every position of some axes (a read at positions that
    are not known: `x[rows[i], j]` for every row)."""

    def __init__(self, base: InstanceSet, name: str, extents: list[str]) -> None:
        self.space, self.name, self.place = base.space, name, base.place
        self.path, self.names, self.values = base.path, base.names, base.values
        self._times = {}
        self.base = base
        self.added = tuple(f"{name}_{k}" for k in range(len(extents)))
        self.coordinates = (*base.coordinates, *self.added)
        self.shrink = self.relation(base.coordinates, base.name)
        """Each instance to that of the other frame."""
        within = " and ".join(f"0 <= {g} < {n}" for g, n in zip(self.added, extents, strict=True))
        box = self.space.set(f"{self.tuple} : {within}")
        self.shrink = self.shrink.intersect_domain(box).intersect_range(base.domain)
        self.domain = self.shrink.domain()

    def _time(self, steps: tuple[Step, ...]) -> isl.Map:
        return self.shrink.apply_range(self.base.time(steps))


def least_sizes(where: isl.Set | isl.UnionSet) -> dict[str, int]:
    """The smallest sizes for which a set has elements, by the name of the parameter."""
    sizes = where.params()
    if sizes.is_empty():
        return {}
    point = sizes.lexmin().sample_point()
    return {name: point.coordinate(isl.Dim.PARAM, k) for k, name in enumerate(sizes.parameters())}


def size_text(expr: ir.Expr, names: Mapping[ir.Var, str]) -> str:
    """A size of a buffer as text."""
    text = affine(expr, names)
    if text is None:
        raise Unknown(f"the size {expr!r} is no linear form of symbolic sizes")
    return text
