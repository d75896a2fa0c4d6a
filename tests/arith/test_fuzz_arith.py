"""Random expressions, conditions and maps, checked point by point over small boxes.

Nothing unsound is tolerated. True conditions that stay unproved and bijections that stay undetected
are counted; the rates are printed and bounded. `BLOCKWRIGHT_FUZZ=1` runs more than 20,000 of them,
`BLOCKWRIGHT_FUZZ_SEED=k` others.
"""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest

from blockwright import ir
from blockwright.arith import (
    Analyzer,
    IntervalSet,
    bound_region,
    detect_iter_map,
    eval_set,
    inverse_map,
    iter_expr,
    subspace_divide,
)
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var
from fuzzing.points import Points

FULL = os.environ.get("BLOCKWRIGHT_FUZZ") == "1"
SEED = 1000 * int(os.environ.get("BLOCKWRIGHT_FUZZ_SEED", "0"))
CONDITIONS = 10_000 if FULL else 200
EXPRESSIONS = 6_000 if FULL else 120
MAPS = 6_000 if FULL else 120

pytestmark = pytest.mark.fuzz


class World:
    """Variables with domains, some of them symbolic, and all their points."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n, self.m = ir.var("n", "int64"), ir.var("m", "int64")
        self.i, self.j, self.k = (ir.var(c, "int64") for c in "ijk")
        low = rng.choice([0, 1, 1, 1, -2])
        self.symbols = {self.n: (low, low + rng.randint(2, 6)), self.m: (1, rng.randint(2, 4))}
        self.k_low, k_size = rng.choice([0, 0, -3, 2]), rng.randint(1, 9)
        i_size = rng.choice([3, 4, 8, 14])
        ends: list[Expr] = [self.n, self.m, ir.ceildiv(self.n, 4), self.n * self.m, const(5)]
        j_extent = rng.choice(ends)
        self.ranges = {
            self.i: Range(const(0), const(i_size)),
            self.j: Range(const(0), j_extent),
            self.k: Range(const(self.k_low), const(k_size)),
        }
        axes = [range(a, b + 1) for a, b in self.symbols.values()]
        axes += [range(i_size), range(28), range(self.k_low, self.k_low + k_size)]
        grid = np.meshgrid(*[np.array(a, dtype=np.int64) for a in axes], indexing="ij")
        names = (*self.symbols, self.i, self.j, self.k)
        values = {v: g.reshape(-1) for v, g in zip(names, grid, strict=True)}
        inside = values[self.j] < Points(values).eval(j_extent)
        self.values = {v: a[inside] for v, a in values.items()}

    def analyzer(self) -> Analyzer:
        analyzer = Analyzer()
        for var, (low, high) in self.symbols.items():
            analyzer.bind_bounds(var, low, high)
        for var, domain in self.ranges.items():
            analyzer.bind(var, domain)
        return analyzer

    @property
    def empty(self) -> bool:
        return len(self.values[self.i]) == 0

    def leaf(self) -> Expr:
        pick = self.rng.random()
        if pick < 0.25:
            return const(self.rng.choice([-3, -1, 0, 1, 2, 3, 4, 5, 7, 8, 12, 14, 16]))
        return self.rng.choice([self.i, self.j, self.k, self.n, self.m, self.i, self.j])

    def factor(self) -> Expr:
        choices = [const(c) for c in (2, 3, 4, 4, 6, 8, 14)]
        tiles = (self.n - 1) // self.m + 1  # a divisor of several terms
        return self.rng.choice([*choices, self.n, self.m, tiles])

    def divisibility(self) -> Expr:
        """A size divides another one, or a number."""
        whole = self.rng.choice([self.n, self.n * 2, const(12), const(8)])
        return ir.EQ(whole % self.m, const(0))

    def expr(self, depth: int) -> Expr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            return self.leaf()
        a = self.expr(depth - 1)
        pick = rng.random()
        if pick < 0.3:
            return a + self.expr(depth - 1)
        if pick < 0.42:
            return a - self.expr(depth - 1)
        if pick < 0.58:
            return a * self.factor()
        if pick < 0.74:
            return a // self.factor()
        if pick < 0.86:
            return a % self.factor()
        if pick < 0.92:
            return ir.minimum(a, self.expr(depth - 1))
        if pick < 0.97:
            return ir.maximum(a, self.expr(depth - 1))
        return ir.select(self.condition(0), a, self.expr(depth - 1))

    def condition(self, depth: int) -> Expr:
        rng = self.rng
        if depth and rng.random() < 0.3:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return rng.choice([ir.logical_and(a, b), ir.logical_or(a, b), ir.logical_not(a)])
        cls = rng.choice([ir.LT, ir.LE, ir.GE, ir.GT, ir.EQ, ir.NE, ir.LT, ir.LE])
        return ir.compare(cls, self.expr(rng.randint(0, 2)), self.expr(rng.randint(0, 2)))

    def likely_true(self) -> Expr:
        """A condition true more often than not: bounds, tilings, quotients and remainders."""
        rng = self.rng
        a, c = self.expr(rng.randint(1, 2)), self.factor()
        b = self.expr(1)
        forms = [
            a // c * c <= a,
            a < a // c * c + c,
            a % c < c,
            ir.minimum(a, b) <= a,
            ir.maximum(a, b) >= b,
            (a + c - 1) // c * c >= a,
            ir.EQ(a // c * c + a % c, a),
            ir.minimum(a, b) + ir.maximum(a, b) <= a + b,
            a // c <= ir.maximum(a, 0),
            self.i * c + a % c < self.ranges[self.i].extent * c,
            a // 2 // 3 <= a // 6,
            self.j * c + a % c < self.ranges[self.j].extent * c,
            ir.minimum(a, b) // 4 <= a // 4,
            (a + b) // 2 <= ir.maximum(a, b),
        ]
        return rng.choice(forms)


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def _fail(what: str, world: World, *items: object) -> None:
    shown = [expr_text(e) if isinstance(e, Expr) else repr(e) for e in items]
    domains = {v.name: (expr_text(r.min), expr_text(r.extent)) for v, r in world.ranges.items()}
    symbols = {v.name: b for v, b in world.symbols.items()}
    pytest.fail(f"{what}: {shown} with {domains}, {symbols}")


# ------------------------------------------------------------------------------ the checks
def test_conditions_proved_hold_and_most_true_ones_are_proved() -> None:
    rng = random.Random(SEED + 7)
    true_count = unproved = 0
    missed: list[str] = []
    for _ in range(CONDITIONS):
        world = World(rng)
        if world.empty:
            continue
        analyzer = world.analyzer()
        assumption = world.condition(1) if rng.random() < 0.3 else None
        if rng.random() < 0.15:
            assumption = world.divisibility()
        condition = world.likely_true() if rng.random() < 0.6 else world.condition(1)
        points = Points(world.values)
        holds = points.eval(condition).astype(bool)
        counts = points.valid.copy()
        if assumption is not None:
            extra = Points(world.values)
            known = extra.eval(assumption).astype(bool)
            counts &= known & extra.valid
            with analyzer.assume(assumption):
                proved = analyzer.prove(condition)
        else:
            proved = analyzer.prove(condition)
        truth = bool(holds[counts].all())
        if proved and not truth:
            _fail("proved but false", world, condition, assumption)
        if truth and counts.any():
            true_count += 1
            if not proved:
                unproved += 1
                context = "-" if assumption is None else expr_text(assumption)
                missed.append(f"{expr_text(condition)} given {context}")
    rate = unproved / max(true_count, 1)
    print(f"\nconditions: {CONDITIONS} asked, {true_count} true, {unproved} unproved = {rate:.1%}")
    if FULL:
        print("\n".join(missed[:60]))
    assert rate < 0.25


def test_simplified_expressions_and_bounds_agree_with_the_original() -> None:
    rng = random.Random(SEED + 11)
    for _ in range(EXPRESSIONS):
        world = World(rng)
        if world.empty:
            continue
        analyzer = world.analyzer()
        expr = world.expr(rng.randint(1, 4)) if rng.random() < 0.8 else world.condition(2)
        points = Points(world.values)
        before = points.eval(expr)
        simple = analyzer.simplify(expr)
        if analyzer.simplify(simple) is not simple:
            again = analyzer.simplify(simple)
            if analyzer.simplify(again) is not again:
                _fail("not stable", world, expr, simple, again)
        later = Points(world.values)
        after = later.eval(simple)
        ok = points.valid
        if not (before[ok] == after[ok]).all():
            _fail("simplified wrongly", world, expr, simple)
        if expr.dtype.is_bool or not ok.any():
            continue
        low, high = analyzer.const_bounds(expr)
        if (low is not None and before[ok].min() < low) or (
            high is not None and before[ok].max() > high
        ):
            _fail("bounds too tight", world, expr, (low, high))
        step, rest = analyzer.modular(expr)
        wrong = (before[ok] != rest) if step == 0 else (before[ok] % step != rest)
        if wrong.any():
            _fail("modular fact wrong", world, expr, (step, rest))
        _check_interval(world, analyzer, expr, before, ok)


def _check_interval(
    world: World, analyzer: Analyzer, expr: Expr, before: np.ndarray, ok: np.ndarray
) -> None:
    domains: dict[Var, IntervalSet | Range] = dict(world.ranges)
    found = eval_set(expr, domains, analyzer)
    for end, sign in ((found.min, 1), (found.max, -1)):
        if end is None:
            continue
        points = Points(world.values)
        bound = points.eval(end)
        counts = ok & points.valid
        if (sign * before[counts] < sign * bound[counts]).any():
            _fail("interval too small", world, expr, end)


def _vector(world: World, lanes: int, depth: int) -> Expr:
    rng = world.rng
    if depth == 0:
        if rng.random() < 0.6:
            return ir.Ramp(world.expr(1), rng.choice([const(1), const(4), world.factor()]), lanes)
        return ir.Broadcast(world.expr(1), lanes)
    a = _vector(world, lanes, depth - 1)
    b = _vector(world, lanes, depth - 1)
    c = ir.Broadcast(world.factor(), lanes)
    forms = [a + b, a - b, a * c, a // c, a % c, ir.minimum(a, b), ir.maximum(a, c)]
    return rng.choice(forms)


def _lane(node: Expr, lane: int) -> Expr:
    """The scalar expression of one lane."""
    if isinstance(node, ir.Ramp):
        return node.base + node.stride * lane
    if isinstance(node, ir.Broadcast):
        return node.value
    assert isinstance(node, (ir.BinaryOp, ir.CompareOp))
    return type(node)(_lane(node.a, lane), _lane(node.b, lane))


def test_vectors_keep_every_lane() -> None:
    rng = random.Random(SEED + 19)
    for _ in range(EXPRESSIONS // 4):
        world = World(rng)
        if world.empty:
            continue
        vector = _vector(world, 4, rng.randint(1, 2))
        if rng.random() < 0.3:
            vector = vector < ir.Broadcast(world.expr(1), 4)
        simple = world.analyzer().simplify(vector)
        assert simple.dtype is vector.dtype
        for lane in range(4):
            points, later = Points(world.values), Points(world.values)
            before, after = points.eval(_lane(vector, lane)), later.eval(_lane(simple, lane))
            if (before != after)[points.valid].any():
                _fail(f"lane {lane} changed", world, vector, simple)


def test_regions_cover_and_tiles_are_exact() -> None:
    """Boxes over some of the loops hold every touched element; without products they are tight."""
    rng = random.Random(SEED + 17)
    for _ in range(MAPS // 2):
        world = World(rng)
        if world.empty:
            continue
        analyzer = world.analyzer()
        index = world.expr(rng.randint(1, 3))
        predicate = world.condition(1) if rng.random() < 0.4 else None
        inner = dict(rng.sample(list(world.ranges.items()), rng.randint(1, 3)))
        points = Points(world.values)
        values = points.eval(index)
        counts = points.valid.copy()
        if predicate is not None:
            counts &= points.eval(predicate).astype(bool) & points.valid
        top = ir.maximum(index, -1000)  # a whole dimension to fall back on
        (box,) = bound_region(
            [Range(top, const(2))], inner, analyzer, predicate, shape=[const(10**6)]
        )
        later = Points(world.values)
        start, extent = later.eval(box.min), later.eval(box.extent)
        counts &= later.valid
        values = np.maximum(values, -1000)
        outside = (values < start) | (values + 2 > start + extent)
        if (outside & counts & (extent < 10**6)).any():
            _fail("region not covered", world, index, predicate, box.min, box.extent)


def _random_map(rng: random.Random) -> tuple[dict[Var, int], list[Expr]]:
    """Loops with extents, and indices made by splitting and fusing them, sometimes spoiled."""
    loops = {
        ir.var(f"l{p}", "int64"): rng.choice([1, 2, 3, 4, 6, 8]) for p in range(rng.randint(1, 3))
    }
    digits: list[tuple[Expr, int]] = list(loops.items())
    for _ in range(rng.randint(0, 4)):
        pick = rng.random()
        position = rng.randrange(len(digits))
        value, extent = digits[position]
        if pick < 0.5:
            divisors = [d for d in range(2, extent) if extent % d == 0] or [2, 3]
            d = rng.choice(divisors if rng.random() < 0.8 else [2, 3, 4])
            digits[position : position + 1] = [(value // d, -(-extent // d)), (value % d, d)]
        elif pick < 0.9 and len(digits) > 1:
            other = rng.randrange(len(digits))
            if other != position:
                low, low_extent = digits[other]
                scale = low_extent if rng.random() < 0.9 else low_extent + rng.choice([-1, 1])
                digits[position] = (value * scale + low, extent * low_extent)
                del digits[other]
        elif pick < 0.95:
            digits[position] = (value * 2, extent)
        else:
            del digits[position]
            if not digits:
                digits = [(value, extent)]
    rng.shuffle(digits)
    return loops, [d for d, _ in digits]


def test_iterator_maps_are_what_they_are_said_to_be() -> None:
    rng = random.Random(SEED + 13)
    bijections = undetected = 0
    for _ in range(MAPS):
        loops, indices = _random_map(rng)
        iters = {v: Range(const(0), const(e)) for v, e in loops.items()}
        corners = itertools.product(*(range(e) for e in loops.values()))
        table = np.array(list(corners), dtype=np.int64)
        points = Points({v: table[:, p] for p, v in enumerate(loops)})
        bound = None
        if rng.random() < 0.25:
            bound = ir.LT(rng.choice(indices), const(rng.randint(2, 20)))
            counts = points.eval(bound).astype(bool)
            points = Points({v: a[counts] for v, a in points.values.items()})
        if not len(points.valid):
            continue
        images = np.stack([points.eval(e) for e in indices], axis=1)
        distinct = np.unique(images, axis=0)
        spans = [int(c.max() - c.min()) + 1 for c in images.T]
        values = [len(np.unique(c)) for c in images.T]
        truth = {
            "independent": len(distinct) == int(np.prod(values)),
            "surjective": len(distinct) == int(np.prod(spans)),
        }
        truth["injective"] = truth["independent"] and len(distinct) == len(images)
        truth["bijective"] = truth["surjective"] and len(distinct) == len(images)
        for level, real in truth.items():
            result = detect_iter_map(indices, iters, bound, Analyzer(), level)  # type: ignore[arg-type]
            if result.ok and not real:
                pytest.fail(
                    f"{[expr_text(e) for e in indices]} is not {level} over "
                    f"{ {v.name: e for v, e in loops.items()} } given "
                    f"{None if bound is None else expr_text(bound)}"
                )
            for var in result.told_apart:  # equal points, equal values
                known = np.column_stack([images, points.values[var]])
                assert len(np.unique(known, axis=0)) == len(distinct), var.name
            for item, column in zip(result.indices, images.T, strict=bool(result.indices)):
                assert (points.eval(iter_expr(item)) == column).all()
            if level == "bijective" and real:
                bijections += 1
                undetected += not result.ok
                if FULL and not result.ok and undetected <= 40:
                    print(
                        [expr_text(e) for e in indices],
                        {v.name: e for v, e in loops.items()},
                        None if bound is None else expr_text(bound),
                        result.errors,
                    )
            if level == "bijective" and result.ok:
                _check_inverse(indices, iters, bound, points, images)
            if level == "surjective" and result.ok:
                _check_division(rng, indices, iters, bound, points, images)
    rate = undetected / max(bijections, 1)
    print(f"\nmaps: {MAPS} asked, {bijections} bijective, {undetected} undetected ({rate:.1%})")
    assert rate < 0.25


def _check_inverse(
    indices: list[Expr],
    iters: dict[Var, Range],
    bound: Expr | None,
    points: Points,
    images: np.ndarray,
) -> None:
    outputs = [ir.var(f"o{p}", "int64") for p in range(len(indices))]
    solved = inverse_map(indices, iters, outputs, Analyzer(), bound)
    back = Points(dict(zip(outputs, images.T, strict=True)))
    for var, value in solved.items():
        assert (back.eval(value) == points.values[var]).all(), (
            [expr_text(e) for e in indices],
            var.name,
            expr_text(value),
        )


def _check_division(
    rng: random.Random,
    indices: list[Expr],
    iters: dict[Var, Range],
    bound: Expr | None,
    points: Points,
    images: np.ndarray,
) -> None:
    """Outer and inner parts make up the binding and use the loops they may use."""
    inner = set(rng.sample(list(iters), rng.randint(0, len(iters))))
    found = subspace_divide(indices, iters, inner, bound, Analyzer())
    if found is None:
        return
    for pair, column in zip(found.pairs, images.T, strict=True):
        assert not ir.uses_var(pair.outer, inner)
        assert not ir.uses_var(pair.inner, set(iters) - inner)
        assert isinstance(pair.inner_extent, ir.IntImm)
        outer, low = points.eval(pair.outer), points.eval(pair.inner)
        assert (outer * pair.inner_extent.value + low == column).all()
        if bound is None:
            assert low.max() - low.min() < pair.inner_extent.value
