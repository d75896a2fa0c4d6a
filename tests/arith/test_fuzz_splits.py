"""Iterator maps as schedules make them: axes fused and split by factors that leave a remainder.

Each step simplifies the indices, as `fuse` and `split` do, so that an index need not show which
digit of which fused loop it is. A case may be spoiled afterwards. What detection says is compared
with all iterations, for every size of a symbolic axis; how many bijections are found is bounded.
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
    IterMapResult,
    Level,
    detect_iter_map,
    inverse_map,
    iter_expr,
    subspace_divide,
)
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var
from fuzzing.points import Points

MAPS = 1_000 if os.environ.get("BLOCKWRIGHT_FUZZ") == "1" else 80
SEED = 1000 * int(os.environ.get("BLOCKWRIGHT_FUZZ_SEED", "0"))
N = ir.var("n", "int64")
SIZES = (1, 2, 3, 4, 7)
LEVELS: tuple[Level, ...] = ("independent", "surjective", "injective", "bijective")
FACTORS = (2, 3, 4, 5, 6, 8, 12, 16)

pytestmark = pytest.mark.fuzz


def analyzer() -> Analyzer:
    known = Analyzer()
    known.bind_bounds(N, 1, None)
    return known


class Nest:
    """Axes 0 to 3, the loops that run through them, and the conditions of uneven splits."""

    def __init__(self, rng: random.Random, symbolic: bool, mixed: bool) -> None:
        self.rng = rng
        picked: list[Expr] = [
            ir.const(rng.choice([2, 3, 4, 5, 7, 8]), "int64") for _ in range(rng.randint(1, 4))
        ]
        if symbolic:
            picked[rng.randrange(len(picked))] = N
        self.loops: dict[Var, Expr] = {}
        for k, extent in enumerate(picked):
            dtype = rng.choice(["int32", "int64"]) if mixed else "int64"
            self.loops[ir.var(f"l{k}", dtype)] = ir.cast_to(extent, dtype)
        self.indices: list[Expr] = list(self.loops)
        self.conditions: list[Expr] = []
        self.made = 0
        for _ in range(rng.randint(1, 5)):
            if self.made and rng.random() < 0.5:
                self.split(rng.choice(list(self.loops)), rng.choice(FACTORS))
            else:
                self.fuse()
        if rng.random() < 0.15:
            self.spoil()
        self.restricted = rng.random() < 0.2
        if self.restricted:
            self.restrict()

    def known(self) -> Analyzer:
        known = analyzer()
        for var, domain in self.domains.items():
            known.bind(var, domain)
        return known

    def replace(self, values: dict[Var, Expr], loops: dict[Var, Expr]) -> None:
        """Loops in place of others, the new ones where the first old one was."""
        result: dict[Var, Expr] = {}
        first = next(v for v in self.loops if v in values)
        for var, extent in self.loops.items():
            if var is first:
                result |= loops
            if var not in values:
                result[var] = extent
        self.loops = result
        known = self.known()
        self.indices = [known.simplify(ir.substitute(i, values)) for i in self.indices]
        self.conditions = [ir.substitute(c, values) for c in self.conditions]

    def var(self, dtype: str) -> Var:
        self.made += 1
        return ir.var(f"x{self.made}", dtype)

    def fuse(self) -> None:
        """Neighbours, two or all of them, become one loop."""
        names = list(self.loops)
        start = 0 if self.rng.random() < 0.5 else self.rng.randrange(len(names))
        chosen = names[start:] if self.rng.random() < 0.6 else names[start : start + 2]
        dtype = "int64" if any(v.type.bits == 64 for v in chosen) else "int32"
        fused, values, total = self.var(dtype), dict[Var, Expr](), ir.const(1, dtype)
        for var in reversed(chosen):
            size = ir.cast_to(self.loops[var], dtype)
            values[var] = ir.cast_to((fused // total) % size, var.type)
            total = total * size
        self.replace(values, {fused: analyzer().simplify(total)})

    def split(self, var: Var, factor: int) -> None:
        outer, inner = (self.var(str(var.type)) for _ in range(2))
        extent = self.loops[var]
        by = ir.const(factor, var.type)
        count = analyzer().simplify((extent + (factor - 1)) // by)
        value = outer * by + inner
        self.replace({var: value}, {outer: count, inner: by})
        bound = ir.LT(value, extent)
        if not self.known().prove(bound):
            self.conditions.append(bound)

    def spoil(self) -> None:
        """A change after which the map may be none any more."""
        rng = self.rng
        pick = rng.random()
        if pick < 0.3 and len(self.indices) > 1:
            self.indices.pop(rng.randrange(len(self.indices)))
        elif pick < 0.6 and self.conditions:
            k = rng.randrange(len(self.conditions))
            old = self.conditions[k]
            assert isinstance(old, ir.LT)
            self.conditions[k] = ir.LT(old.a, old.b + rng.choice([-3, -1, 1, 2]))
        elif pick < 0.8:
            var = rng.choice(list(self.loops))
            self.loops[var] = self.loops[var] + 1
        else:
            k = rng.randrange(len(self.indices))
            self.indices[k] = self.indices[k] + ir.cast_to(
                rng.choice(list(self.loops)), self.indices[k].dtype
            )

    def restrict(self) -> None:
        """A condition on a digit of an index: it bounds no fusion of loops."""
        index = self.rng.choice(self.indices)
        factor = self.rng.choice(FACTORS)
        self.conditions.append(ir.LT(index % factor, ir.const(factor - 1, index.dtype)))

    @property
    def domains(self) -> dict[Var, Range]:
        return {v: Range(ir.const(0, v.type), e) for v, e in self.loops.items()}

    @property
    def predicate(self) -> Expr | None:
        return ir.all_of(self.conditions) if self.conditions else None

    def points(self, n: int) -> Points | None:
        """The iterations that run; None when there are too many to look at, or none."""
        size = Points({N: np.array([n])})
        counts = [int(size.eval(e)[0]) for e in self.loops.values()]
        if np.prod(counts) > 30_000:
            return None
        table = np.array(list(itertools.product(*map(range, counts))), dtype=np.int64)
        values = {v: table[:, k] for k, v in enumerate(self.loops)}
        values[N] = np.full(len(table), n)
        if self.predicate is not None:
            runs = Points(values).eval(self.predicate).astype(bool)
            values = {v: a[runs] for v, a in values.items()}
        return Points(values) if len(values[N]) else None

    def __repr__(self) -> str:
        loops = {v.name: expr_text(e) for v, e in self.loops.items()}
        given = "" if self.predicate is None else f" given {expr_text(self.predicate)}"
        return f"{[expr_text(e) for e in self.indices]} over {loops}{given}"


def truth_of(images: np.ndarray, cut: bool) -> dict[Level, bool]:
    """What the levels promise of these points; a condition may `cut` them out of a box."""
    distinct = len(np.unique(images, axis=0))
    box = int(np.prod([len(np.unique(c)) for c in images.T]))
    span = int(np.prod([int(c.max() - c.min()) + 1 for c in images.T]))
    independent, apart = cut or distinct == box, distinct == len(images)
    return {
        "independent": independent,
        "surjective": distinct == span,
        "injective": independent and apart,
        "bijective": distinct == span and apart,
    }


@pytest.mark.parametrize("kind", ["constant", "symbolic", "mixed widths"])
def test_uneven_splits_of_fused_axes_are_what_they_are_said_to_be(kind: str) -> None:
    rng, picking = random.Random(SEED + len(kind)), random.Random(SEED)
    bijections = found = 0
    for _ in range(MAPS):
        case = Nest(rng, kind != "constant", kind == "mixed widths")
        results: dict[Level, IterMapResult] = {
            level: detect_iter_map(case.indices, case.domains, case.predicate, analyzer(), level)
            for level in LEVELS
        }
        tables = [case.points(n) for n in (SIZES if kind != "constant" else (1,))]
        runs = [points for points in tables if points is not None]
        one_to_one = bool(runs) and not case.restricted
        for points in runs:
            images = np.stack([points.eval(e) for e in case.indices], axis=1)
            truth = truth_of(images, cut=case.predicate is not None)
            one_to_one &= truth["bijective"]
            for level, result in results.items():
                assert truth[level] or not result.ok, f"{case} is not {level}"
                _check_result(case, result, points, images)
            if results["bijective"].ok:
                _check_inverse(case, points, images)
            if results["surjective"].ok:
                _check_division(picking, case, points, images)
        bijections += one_to_one
        found += one_to_one and results["bijective"].ok
    print(f"\n{kind}: {MAPS} asked, {bijections} bijective, {found} found")
    assert found >= 0.9 * bijections


def _check_result(case: Nest, result: IterMapResult, points: Points, images: np.ndarray) -> None:
    for item, column in zip(result.indices, images.T, strict=bool(result.indices)):
        assert (points.eval(iter_expr(item)) == column).all(), case
    assert result.told_apart <= set(case.loops)
    distinct = len(np.unique(images, axis=0))
    for var in result.told_apart:  # equal points, equal values
        known = np.column_stack([images, points.values[var]])
        assert len(np.unique(known, axis=0)) == distinct, (case, var.name)


def _check_inverse(case: Nest, points: Points, images: np.ndarray) -> None:
    outputs = [ir.var(f"o{k}", e.dtype) for k, e in enumerate(case.indices)]
    solved = inverse_map(case.indices, case.domains, outputs, analyzer(), case.predicate)
    back = Points({N: points.values[N], **dict(zip(outputs, images.T, strict=True))})
    for var, value in solved.items():
        assert (back.eval(value) == points.values[var]).all(), (case, var.name, expr_text(value))


def _check_division(rng: random.Random, case: Nest, points: Points, images: np.ndarray) -> None:
    """Outer and inner parts make up the index and use the loops they may use."""
    inner = set(rng.sample(list(case.loops), rng.randint(0, len(case.loops))))
    found = subspace_divide(case.indices, case.domains, inner, case.predicate, analyzer())
    for pair, column in zip(
        () if found is None else found.pairs, images.T, strict=found is not None
    ):
        assert not ir.uses_var(pair.outer, inner), case
        assert not ir.uses_var(pair.inner, set(case.loops) - inner), case
        outer, low = points.eval(pair.outer), points.eval(pair.inner)
        extent = points.eval(pair.inner_extent)
        assert (outer * extent + low == column).all(), case
        start = points.eval(pair.inner_start)
        assert ((low >= start) & (low < start + extent)).all(), case
