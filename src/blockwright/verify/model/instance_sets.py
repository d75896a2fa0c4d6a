"""Instance sets ("frames"): statement instances with named coordinates, and their schedule.

The instances of a statement are identified by the values of the enclosing block iterators (and of
loops inside the innermost block) if these distinguish all its executions; otherwise loops become
coordinates too. Using iterators instead of loops keeps queries small: splitting, fusing or
reordering a nest leaves its instances unchanged.
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
"""An element of a path: a position in program order, or the loop at that position."""


class EnclosingLoop(msgspec.Struct, frozen=True, eq=False):
    """A loop around a statement.

    Attributes:
        name: its coordinate.
        kind: its loop kind.
        tag: the thread axis of a bound loop.
        node: the loop itself; None for vector lanes and elements of a parameter.
    """

    name: str
    kind: ir.ForKind
    tag: str
    node: ir.For | None = None


class Iterator(msgspec.Struct, frozen=True, eq=False):
    """A block iterator: its coordinate, its declared domain, and its binding to the loops."""

    name: str
    low: str
    extent: str
    binding: str
    reduces: bool


class StatementPosition(msgspec.Struct, frozen=True, eq=False):
    """The position of a statement in the program.

    Attributes:
        loops: all loops around it, outermost first.
        iters: iterators of all blocks around it, outermost first.
        inner: names of the loops inside the innermost block.
        conditions: conditions on loops and iterators under which it runs.
        path: positions in program order and loops, alternating, from the root.
        names: each variable in scope, expressed in coordinates.
        values: variables bound to values that are not indices, and those values.
    """

    loops: tuple[EnclosingLoop, ...] = ()
    iters: tuple[Iterator, ...] = ()
    inner: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    path: tuple[Step, ...] = ()
    names: Mapping[ir.Var, str] = {}
    values: Mapping[ir.Var, ir.Expr] = {}

    def at(self, position: int) -> StatementPosition:
        """The position of one of several statements in sequence."""
        return msgspec.structs.replace(self, path=(*self.path, position))

    def given(self, text: str) -> StatementPosition:
        """The same position under an additional condition."""
        return msgspec.structs.replace(self, conditions=(*self.conditions, text))


class QuerySpace(msgspec.Struct, frozen=True, eq=False):
    """State shared by all queries of one verdict: isl's context and the symbolic sizes.

    Attributes:
        sizes: names of the parameters.
        known: constraints on the sizes.
        maps, sets: cache of parsed relations and sets, by text.
    """

    context: isl.Context
    sizes: tuple[str, ...]
    known: isl.Set
    maps: dict[str, isl.Map] = {}
    sets: dict[str, isl.Set] = {}

    def text(self, body: str) -> str:
        """A relation or set in isl's notation, prefixed with the parameters."""
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
        name: isl name of the instances.
        coordinates: names of the coordinates, in order.
        path: as in `StatementPosition`.
        names: each variable in scope, expressed in coordinates.
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
        """The instances; the declared domain itself if equal, because it has no divisions."""
        result = beta.range()
        if not self.place.iters:
            return result.coalesce()
        box = " and ".join(
            f"{it.low} <= {it.name} < {it.low} + {it.extent}" for it in self.place.iters
        )
        whole = self.space.set(f"{self.tuple} : {box}").intersect_params(self.space.known)
        if not result.is_subset(whole):
            outside = result.subtract(whole)
            raise Mismatch("an iterator has a value outside of its domain", min_sizes(outside))
        return whole if whole.is_subset(result) else result.coalesce()

    @property
    def tuple(self) -> str:
        """An instance in isl's notation."""
        return f"{self.name}[{', '.join(self.coordinates)}]"

    # ------------------------------------------------------------------ expressions
    def index(self, expr: ir.Expr) -> str | None:
        """An index expression in coordinates; None if it is not quasi-affine."""
        return affine(expr, self.names)

    def condition(self, expr: ir.Expr) -> isl.Set | None:
        """The instances at which a condition holds; None if it is not a condition on indices."""
        text = condition(expr, self.names)
        return None if text is None else self.space.set(f"{self.tuple} : {text}")

    def relation(self, texts: Iterable[str], target: str = "") -> isl.Map:
        """Map each instance to a tuple of expressions in coordinates."""
        return self.space.map(f"{self.tuple} -> {target}[{', '.join(texts)}]")

    @cached_property
    def identity(self) -> isl.Map:
        """Map each instance to itself."""
        return self.domain.identity()

    # ------------------------------------------------------------------ time
    def time(self, steps: tuple[Step, ...]) -> isl.Map:
        """When each instance runs: a timestamp, compared lexicographically."""
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
        """Map each instance to the loop values that run it, in explicit formulas.

        A map that isl has to derive from bounds alone complicates every relation built from it.
        """
        begin_step(f"the loops of each instance of {self.name}")
        result = self.beta.reverse().as_formulas()
        begin_step(f"accesses of {self.name}")
        return result


class Extended(InstanceSet):
    """Instances of another frame, each paired with every position along some axes.

    Used for reads at unknown positions: `x[rows[i], j]` for every row.
    """

    def __init__(self, base: InstanceSet, name: str, extents: list[str]) -> None:
        self.space, self.name, self.place = base.space, name, base.place
        self.path, self.names, self.values = base.path, base.names, base.values
        self._times = {}
        self.base = base
        self.added = tuple(f"{name}_{k}" for k in range(len(extents)))
        self.coordinates = (*base.coordinates, *self.added)
        self.shrink = self.relation(base.coordinates, base.name)
        """Each instance to its instance in the base frame."""
        within = " and ".join(f"0 <= {g} < {n}" for g, n in zip(self.added, extents, strict=True))
        box = self.space.set(f"{self.tuple} : {within}")
        self.shrink = self.shrink.intersect_domain(box).intersect_range(base.domain)
        self.domain = self.shrink.domain()

    def _time(self, steps: tuple[Step, ...]) -> isl.Map:
        return self.shrink.apply_range(self.base.time(steps))


def min_sizes(where: isl.Set | isl.UnionSet) -> dict[str, int]:
    """The smallest sizes for which a set is not empty, by parameter name."""
    sizes = where.params()
    if sizes.is_empty():
        return {}
    point = sizes.lexmin().sample_point()
    return {name: point.coordinate(isl.Dim.PARAM, k) for k, name in enumerate(sizes.parameters())}


def size_text(expr: ir.Expr, names: Mapping[ir.Var, str]) -> str:
    """The size of a buffer dimension as text."""
    text = affine(expr, names)
    if text is None:
        raise Unknown(f"the size {expr!r} is not linear in the symbolic sizes")
    return text
