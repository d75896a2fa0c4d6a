"""Iterator maps whose digits are symbols: tiles of unknown size, checked for every size.

Nothing unsound is tolerated. How many of the bijections are found is printed and bounded.
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
    bound_region,
    detect_iter_map,
    inverse_map,
    iter_expr,
    subspace_divide,
)
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var
from fuzzing.points import Points

MAPS = 3_000 if os.environ.get("BLOCKWRIGHT_FUZZ") == "1" else 80
SEED = 1000 * int(os.environ.get("BLOCKWRIGHT_FUZZ_SEED", "0"))

pytestmark = pytest.mark.fuzz


def const(value: int) -> Expr:
    return ir.const(value, "int64")


T1, T2, N = (ir.var(name, "int64") for name in ("t1", "t2", "n"))
SIZES = {T1: (1, 4), T2: (1, 3), N: (1, 9)}


def analyzer() -> Analyzer:
    known = Analyzer()
    for var, (low, high) in SIZES.items():
        known.bind_bounds(var, low, high)
    return known


class Map:
    """Loops over tiles, and indices made of them by fusing and splitting again."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        extents: list[Expr] = [T1, T2, (N - 1) // T1 + 1, (N - 1) // (T1 * T2) + 1, N, const(2)]
        picked = [rng.choice(extents) for _ in range(rng.randint(1, 3))]
        self.loops = {ir.var(f"l{k}", "int64"): e for k, e in enumerate(picked)}
        self.digits: list[tuple[Expr, Expr]] = list(self.loops.items())
        for _ in range(rng.randint(1, 3)):
            self._step()

    def _step(self) -> None:
        rng, digits = self.rng, self.digits
        if len(digits) > 1 and rng.random() < 0.6:
            (high, a), (low, b) = digits.pop(0), digits.pop(0)
            digits.insert(rng.randint(0, len(digits)), (high * b + low, a * b))
        else:
            value, extent = digits.pop(rng.randrange(len(digits)))
            by = rng.choice([T1, T2, (N - 1) // T1 + 1, const(2), T1 * T2])
            digits += [(value // by, (extent - 1) // by + 1), (value % by, by)]
        if rng.random() < 0.08:
            digits.pop()
            digits += [] if digits else [(next(iter(self.loops)), const(1))]

    @property
    def indices(self) -> list[Expr]:
        return [value for value, _ in self.digits]

    @property
    def domains(self) -> dict[Var, Range]:
        return {v: Range(const(0), e) for v, e in self.loops.items()}

    def points(self, sizes: dict[Var, int]) -> Points:
        """All iterations for given sizes."""
        point = Points({v: np.array([n]) for v, n in sizes.items()})
        counts = [int(point.eval(e)[0]) for e in self.loops.values()]
        table = np.array(list(itertools.product(*(range(c) for c in counts))), dtype=np.int64)
        values = {v: table[:, k] for k, v in enumerate(self.loops)}
        return Points({**{v: np.full(len(table), n) for v, n in sizes.items()}, **values})

    def __repr__(self) -> str:
        loops = {v.name: expr_text(e) for v, e in self.loops.items()}
        return f"{[expr_text(e) for e in self.indices]} over {loops}"


def all_sizes() -> list[dict[Var, int]]:
    ranges = [range(low, high + 1) for low, high in SIZES.values()]
    return [dict(zip(SIZES, values, strict=True)) for values in itertools.product(*ranges)]


def test_symbolic_maps_are_what_they_are_said_to_be() -> None:
    rng = random.Random(SEED + 23)
    sizes = all_sizes()
    bijections = found = 0
    for _ in range(MAPS):
        case = Map(rng)
        results = {
            level: detect_iter_map(case.indices, case.domains, None, analyzer(), level)
            for level in ("surjective", "injective", "bijective")
        }
        one_to_one = True
        for chosen in rng.sample(sizes, 12):
            points = case.points(chosen)
            images = np.stack([points.eval(e) for e in case.indices], axis=1)
            distinct = np.unique(images, axis=0)
            spans = [int(c.max() - c.min()) + 1 for c in images.T]
            onto = len(distinct) == int(np.prod(spans))
            apart = len(distinct) == len(images)
            one_to_one &= onto and apart
            truth = {"surjective": onto, "injective": apart, "bijective": onto and apart}
            for level, real in truth.items():
                result = results[level]
                assert real or not result.ok, f"{case} is not {level} for {chosen}"
                for item, column in zip(result.indices, images.T, strict=bool(result.indices)):
                    assert (points.eval(iter_expr(item)) == column).all(), case
        bijections += one_to_one
        found += results["bijective"].ok
    print(f"\nsymbolic maps: {MAPS} asked, {bijections} bijective, {found} found")
    assert found >= 0.4 * bijections


def test_symbolic_maps_are_inverted_divided_and_covered() -> None:
    rng = random.Random(SEED + 29)
    sizes = all_sizes()
    inverted = divided = 0
    for _ in range(MAPS):
        case = Map(rng)
        outputs = [ir.var(f"o{k}", "int64") for k in range(len(case.indices))]
        solved: dict[Var, Expr] = {}
        if detect_iter_map(case.indices, case.domains, None, analyzer(), "bijective").ok:
            solved = dict(inverse_map(case.indices, case.domains, outputs, analyzer()))
            inverted += 1
        inner = set(rng.sample(list(case.loops), rng.randint(0, len(case.loops))))
        division = subspace_divide(case.indices, case.domains, inner, None, analyzer())
        divided += division is not None
        known = analyzer()
        for var, domain in case.domains.items():
            if var not in inner:
                known.bind(var, domain)
        running = {v: d for v, d in case.domains.items() if v in inner}
        boxes = bound_region(
            [Range(i, const(1)) for i in case.indices],
            running,
            known,
            shape=[const(10**6)] * len(outputs),
        )
        for chosen in rng.sample(sizes, 8):
            points = case.points(chosen)
            images = np.stack([points.eval(e) for e in case.indices], axis=1)
            back = Points(
                {
                    **{v: points.values[v] for v in SIZES},
                    **dict(zip(outputs, images.T, strict=True)),
                }
            )
            for var, value in solved.items():
                assert (back.eval(value) == points.values[var]).all(), (case, var.name)
            for box, column in zip(boxes, images.T, strict=True):
                low, extent = points.eval(box.min), points.eval(box.extent)
                whole = extent >= 10**6
                inside = (column >= low) & (column < low + extent)
                assert (inside | whole).all(), (case, expr_text(box.min), expr_text(box.extent))
            for pair, column in zip(
                () if division is None else division.pairs, images.T, strict=division is not None
            ):
                assert not ir.uses_var(pair.outer, inner), case
                assert not ir.uses_var(pair.inner, set(case.loops) - inner), case
                outer, low = points.eval(pair.outer), points.eval(pair.inner)
                assert (outer * points.eval(pair.inner_extent) + low == column).all(), case
                start = points.eval(pair.inner_start)
                assert ((low >= start) & (low < start + points.eval(pair.inner_extent))).all()
                first = points.eval(pair.outer_start)
                assert ((outer >= first) & (outer < first + points.eval(pair.outer_extent))).all()
    print(f"\nsymbolic maps: {MAPS} asked, {inverted} inverted, {divided} divided")
    assert inverted > 0
    assert divided > 0
