"""Random conditions over unbounded symbols, cross-checked by z3.

The box tests cannot see what happens for large sizes; z3 decides these linear queries for all
integers. What the prover affirms z3 must not refute, and simplified expressions must be equal.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var

z3 = pytest.importorskip("z3")

FULL = os.environ.get("BLOCKWRIGHT_FUZZ") == "1"
SEED = 1000 * int(os.environ.get("BLOCKWRIGHT_FUZZ_SEED", "0"))
QUERIES = 1_500 if FULL else 60

pytestmark = pytest.mark.fuzz

N, M = ir.var("n", "int64"), ir.var("m", "int64")
I0, J = ir.var("i", "int64"), ir.var("j", "int64")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def to_z3(node: Expr, names: dict[Var, Any]) -> Any:
    if isinstance(node, Var):
        return names[node]
    if isinstance(node, ir.IntImm):
        return z3.BoolVal(bool(node.value)) if node.type.is_bool else z3.IntVal(node.value)
    if isinstance(node, ir.Not):
        return z3.Not(to_z3(node.a, names))
    assert isinstance(node, (ir.BinaryOp, ir.CompareOp, ir.And, ir.Or))
    a, b = to_z3(node.a, names), to_z3(node.b, names)
    table = {
        ir.Add: lambda: a + b, ir.Sub: lambda: a - b, ir.Mul: lambda: a * b,
        ir.FloorDiv: lambda: a / b, ir.FloorMod: lambda: a % b,  # floor for positive divisors
        ir.Min: lambda: z3.If(a <= b, a, b), ir.Max: lambda: z3.If(a >= b, a, b),
        ir.EQ: lambda: a == b, ir.NE: lambda: a != b, ir.LT: lambda: a < b, ir.LE: lambda: a <= b,
        ir.GT: lambda: a > b, ir.GE: lambda: a >= b, ir.And: lambda: z3.And(a, b),
        ir.Or: lambda: z3.Or(a, b),
    }  # fmt: skip
    return table[type(node)]()


class Source:
    """Random linear expressions with quotients by constants."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def expr(self, depth: int) -> Expr:
        rng = self.rng
        if depth == 0:
            return rng.choice([I0, J, N, M, const(rng.choice([0, 1, 3, 7, 13, 14, -2]))])
        a, c = self.expr(depth - 1), const(rng.choice([2, 3, 4, 8, 14]))
        pick = rng.randrange(8)
        if pick < 2:
            return a + self.expr(depth - 1)
        simple = [a - self.expr(depth - 1), a * c, a // c, a % c]
        extrema = [ir.minimum(a, self.expr(depth - 1)), ir.maximum(a, self.expr(depth - 1))]
        return (simple + extrema)[pick - 2]

    def condition(self) -> Expr:
        rng = self.rng
        a, b, c = self.expr(rng.randint(1, 2)), self.expr(1), const(rng.choice([2, 3, 4, 8, 14]))
        forms = [
            a <= b,
            a < b,
            ir.EQ(a, b),
            a // c * c <= a,
            (a + c - 1) // c * c >= a,
            a % c < c,
            ir.minimum(a, b) <= a,
            N + b >= I0 * 14 + J,
            I0 * 14 + J < N,
            (a + c) // c > a // c,
            ir.logical_or(a < b, b <= a),
            ir.logical_and(a <= a + 3, I0 * 14 < N),
        ]
        return rng.choice(forms)


def test_z3_confirms_what_is_proved_and_simplified() -> None:
    rng = random.Random(SEED + 5)
    source = Source(rng)
    proved = valid = unknown = 0
    for _ in range(QUERIES):
        known = Analyzer({I0: Range(const(0), ir.ceildiv(N, 14)), J: Range(const(0), const(14))})
        names = {v: z3.Int(v.name) for v in (N, M, I0, J)}
        i, j, n = (names[v] for v in (I0, J, N))
        given = [i >= 0, i < (n + 13) / 14, j >= 0, j < 14]
        assumption = source.condition() if rng.random() < 0.4 else None
        condition, expr = source.condition(), source.expr(rng.randint(1, 3))
        if assumption is None:
            answer, simple = known.prove(condition), known.simplify(expr)
        else:
            given.append(to_z3(assumption, names))
            with known.assume(assumption):
                answer, simple = known.prove(condition), known.simplify(expr)
        verdict = _check([*given, z3.Not(to_z3(condition, names))])
        context = "-" if assumption is None else expr_text(assumption)
        if answer and verdict == z3.sat:
            pytest.fail(f"proved, but z3 refutes {expr_text(condition)} given {context}")
        if _check([*given, to_z3(expr, names) != to_z3(simple, names)]) == z3.sat:
            pytest.fail(f"{expr_text(expr)} became {expr_text(simple)} given {context}")
        proved += answer
        valid += verdict == z3.unsat
        unknown += verdict == z3.unknown
    print(f"\nz3: {QUERIES} asked, {valid} valid by z3, {unknown} undecided there, {proved} proved")
    assert proved >= valid * 0.75


def _check(constraints: list[Any]) -> Any:
    solver = z3.Solver()
    solver.set("timeout", 400)
    solver.add(*constraints)
    return solver.check()
