"""Rules for values: every simplified expression is equal bit by bit to what was written.

Random expressions over loads, variables that hold values, and indices are checked at the ends of
their types and at random points, and proved by z3 with bit-vectors. 8- and 16-bit types, signed and
unsigned, are evaluated exhaustively.
"""

from __future__ import annotations

import itertools
import operator
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var
from blockwright.ir.dtype import DType
from blockwright.testing.generators.integers import INTEGERS, Integers, ends

FULL = os.environ.get("BLOCKWRIGHT_FUZZ") == "1"
SEED = 1000 * int(os.environ.get("BLOCKWRIGHT_FUZZ_SEED", "0"))
EVALUATED = 20_000 if FULL else 300
PROVED = 1_500 if FULL else 60

pytestmark = pytest.mark.fuzz

Point = dict[Expr, int]


# ------------------------------------------------------------------------------ the meaning
def wrap(value: int, dtype: DType) -> int:
    span = 1 << dtype.bits
    return (value - dtype.min_value) % span + dtype.min_value


def evaluate(node: Expr, point: Point) -> int:
    """The value of a scalar, each operator modulo 2**n, as docs/semantics.md says of values."""
    if node in point:
        return point[node]
    match node:
        case ir.IntImm():
            return wrap(node.value, node.dtype) if node.dtype.is_int else node.value
        case ir.BufferLoad():
            loads = (k for k in point if isinstance(k, ir.BufferLoad))
            return next(point[k] for k in loads if k.buffer is node.buffer)
        case ir.Cast():
            value = evaluate(node.value, point)
            return int(value != 0) if node.type.is_bool else wrap(value, node.type)
        case ir.Not():
            return 1 - evaluate(node.a, point)
        case ir.And() | ir.Or():
            a, b = evaluate(node.a, point), evaluate(node.b, point)
            return a & b if isinstance(node, ir.And) else a | b
        case ir.Select():
            chosen = node.true_value if evaluate(node.condition, point) else node.false_value
            return evaluate(chosen, point)
        case ir.Call():
            return _call(node, [evaluate(a, point) for a in node.args])
        case ir.CompareOp():
            return int(_COMPARE[type(node)](evaluate(node.a, point), evaluate(node.b, point)))
        case ir.BinaryOp():
            a, b = evaluate(node.a, point), evaluate(node.b, point)
            return wrap(_BINARY[type(node)](a, b), node.dtype)
        case _:
            raise AssertionError(type(node).__name__)


def _call(node: ir.Call, args: list[int]) -> int:
    x, bits = args[0], node.dtype.bits
    match node.op:
        case "if_then_else":
            return args[1] if x else args[2]
        case "shift_left":
            return wrap(x << args[1], node.dtype)
        case "shift_right":
            return x >> args[1]
        case "bitwise_and" | "bitwise_or":
            mask = (1 << bits) - 1
            both = x & args[1] if node.op == "bitwise_and" else x | args[1]
            return wrap(both & mask, node.dtype)
        case "bitwise_not":
            return wrap(~x, node.dtype)
        case "abs":
            return wrap(abs(x), node.dtype)
        case _:
            raise AssertionError(node.op)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


_BINARY: dict[type[Any], Any] = {
    ir.Add: operator.add, ir.Sub: operator.sub, ir.Mul: operator.mul, ir.FloorMod: operator.mod,
    ir.FloorDiv: int.__floordiv__, ir.Div: _quotient, ir.Mod: _remainder, ir.Min: min, ir.Max: max,
}  # fmt: skip
_COMPARE: dict[type[Any], Any] = {
    ir.LT: operator.lt, ir.LE: operator.le, ir.GT: operator.gt, ir.GE: operator.ge,
    ir.EQ: operator.eq, ir.NE: operator.ne,
}  # fmt: skip


class World:
    """Leaves of one or two integer types: loads, a variable that holds a value, and an index."""

    def __init__(self, rng: random.Random, types: tuple[str, ...], index: bool) -> None:
        self.rng = rng
        kinds = [ir.dtype_of(rng.choice(types)) for _ in range(2)]
        buffers = [
            ir.Buffer(n, t, (ir.const(4, "int32"),)) for n, t in zip("AB", kinds, strict=True)
        ]
        self.held = Var("v", rng.choice(kinds))
        self.leaves: list[Expr] = [*(ir.load(b, 0) for b in buffers), self.held]
        self.index = Var("i", ir.dtype_of("int32")) if index else None
        if self.index is not None:
            self.leaves.append(self.index)
        self.source = Integers(rng, self.leaves)

    def analyzer(self) -> Analyzer:
        known = {} if self.index is None else {self.index: Range(num(0), num(5))}
        return Analyzer(known, values=[self.held])

    def overflows(self, expr: Expr, point: Point, bits: int = 0) -> bool:
        """Whether an index in the expression leaves its type, of at least so many bits, which index
        arithmetic never does."""
        sorts = ir.Sorts({self.held})
        for node in ir.walk(expr):
            if isinstance(node, ir.BinaryOp) and sorts.is_index(node):
                exact = _BINARY[type(node)](evaluate(node.a, point), evaluate(node.b, point))
            elif isinstance(node, ir.Call) and node.op == "shift_left" and sorts.is_index(node):
                exact = evaluate(node.args[0], point) << evaluate(node.args[1], point)
            else:
                continue
            if node.dtype.bits >= bits and wrap(exact, node.dtype) != exact:
                return True
        return False

    def points(self, count: int) -> Iterator[Point]:
        for _ in range(count):
            point: Point = {}
            for leaf in self.leaves:
                if leaf is self.index:
                    point[leaf] = self.rng.randrange(5)
                elif self.rng.random() < 0.7:
                    point[leaf] = self.rng.choice(ends(leaf.dtype))
                else:
                    point[leaf] = self.rng.randint(leaf.dtype.min_value, leaf.dtype.max_value)
            yield point


def num(value: int) -> Expr:
    return ir.const(value, "int32")


def literals_fit(node: Expr) -> bool:
    found = (n for n in ir.walk(node) if isinstance(n, ir.IntImm) and n.dtype.is_int)
    return all(n.dtype.min_value <= n.value <= n.dtype.max_value for n in found)


# ------------------------------------------------------------------------------ the checks
def test_simplified_values_agree_at_the_ends_of_every_type() -> None:
    rng = random.Random(SEED + 3)
    for _ in range(EVALUATED):
        types = rng.choice([("int32",), ("int64",), ("int32", "int64"), INTEGERS])
        world = World(rng, types, index=rng.random() < 0.3)
        dtype = rng.choice(world.source.types)
        boolean = rng.random() < 0.35
        expr = (
            world.source.condition(2) if boolean else world.source.value(dtype, rng.randint(1, 3))
        )
        assumption = world.source.condition(1) if rng.random() < 0.3 else None
        analyzer = world.analyzer()
        if assumption is not None:
            analyzer.learn(assumption)
        simple = analyzer.simplify(expr)
        given = "-" if assumption is None else expr_text(assumption)
        text = f"{expr_text(expr)} became {expr_text(simple)} given {given}"
        assert simple.dtype is expr.dtype, text
        assert literals_fit(simple), text
        again = analyzer.simplify(simple)
        proved = analyzer.prove(expr) if boolean else False
        for point in world.points(40):
            if assumption is not None and (
                world.overflows(assumption, point) or not evaluate(assumption, point)
            ):
                continue
            if world.overflows(expr, point):  # also of constants alone, which are indices
                continue
            shown = {expr_text(k): v for k, v in point.items()}
            value = evaluate(expr, point)
            assert value == evaluate(simple, point), f"{text} at {shown}"
            assert not world.overflows(simple, point, bits=64), f"index of {text} at {shown}"
            assert value == evaluate(again, point), f"{expr_text(again)}, again: {text} at {shown}"
            assert value or not proved, f"proved, but false: {expr_text(expr)} at {shown}"
            if not boolean and dtype.kind == "int" and dtype.bits >= 32:
                low, high = analyzer.const_bounds(expr)
                assert low is None or low <= value, f"{text} is below {low} at {shown}"
                assert high is None or value <= high, f"{text} is above {high} at {shown}"


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_narrow_types_exhaustively(name: str) -> None:
    """All pairs of 8-bit values; of 16-bit ones all values against those at the ends."""
    rng = random.Random(SEED + 11)
    dtype = ir.dtype_of(name)
    everything = range(dtype.min_value, dtype.max_value + 1)
    world = World(rng, (name,), index=False)
    a, b, held = world.leaves
    for _ in range(12 if FULL else 4):
        expr = world.source.value(dtype, rng.randint(1, 3))
        simple = world.analyzer().simplify(expr)
        pairs = itertools.product(everything, everything if dtype.bits == 8 else ends(dtype))
        steps = 1 if FULL else 13
        for x, y in itertools.islice(pairs, 0, None, steps):
            point = {a: x, b: y, held: wrap(x * 3 + y, dtype)}
            assert evaluate(expr, point) == evaluate(simple, point), (expr_text(expr), x, y)


@pytest.mark.parametrize("name", INTEGERS)
def test_constants_fold_as_numpy_computes(name: str) -> None:
    dtype = ir.dtype_of(name)
    kind = dtype.numpy()
    functions: dict[type[Any], Any] = {
        ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.FloorDiv: np.floor_divide,
        ir.FloorMod: np.mod, ir.Mod: np.fmod, ir.Min: np.minimum, ir.Max: np.maximum,
    }  # fmt: skip
    for x, y in itertools.product(ends(dtype), repeat=2):
        for cls, fn in functions.items():
            if y == 0 and cls in (ir.FloorDiv, ir.FloorMod, ir.Mod):
                continue
            found = ir.binary(cls, ir.const(x, dtype), ir.const(y, dtype))
            if _leaves(
                cls, x, y, dtype
            ):  # an index that int32 does not have, or a value that wraps
                assert isinstance(found, cls)
                continue
            with np.errstate(all="ignore"):
                assert isinstance(found, ir.IntImm)
                assert found.value == int(fn(kind.type(x), kind.type(y))), (cls, x, y)
        if y and not (x == dtype.min_value and y == -1 and dtype.bits >= 32):
            found = ir.binary(ir.Div, ir.const(x, dtype), ir.const(y, dtype))
            assert isinstance(found, ir.IntImm)
            assert found.value == wrap(_quotient(x, y), dtype)


def _leaves(cls: type[Any], x: int, y: int, dtype: ir.DType) -> bool:
    """Whether a result is no number of a type that indices have."""
    exact: dict[type[Any], Any] = {
        ir.Add: int.__add__, ir.Sub: int.__sub__, ir.Mul: int.__mul__, ir.FloorDiv: int.__floordiv__
    }  # fmt: skip
    if cls not in exact or dtype.kind != "int" or dtype.bits < 32:
        return False
    return not dtype.min_value <= exact[cls](x, y) <= dtype.max_value


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_an_index_divided_by_the_least_number(name: str) -> None:
    dtype = ir.dtype_of(name)
    least, i = ir.const(dtype.min_value, dtype), Var("i", dtype)
    load = ir.load(ir.Buffer("A", dtype, (num(4),)), 0)
    analyzer = Analyzer({i: Range(ir.const(0, dtype), ir.const(5, dtype))})
    quotient, rest = ir.floordiv(i, least), ir.floormod(i, least)
    cases = [quotient, rest, ir.compare(ir.EQ, quotient, load), ir.compare(ir.LT, rest, load)]
    for expr, value in itertools.product(cases, range(5)):
        simple = analyzer.simplify(expr)
        for element in (-1, 0, 1):
            point: Point = {i: value, load: element}
            assert evaluate(expr, point) == evaluate(simple, point), expr_text(simple)


# ------------------------------------------------------------------------------ proofs
class Bits:
    """Expressions as bit-vectors."""

    def __init__(self, z3: Any) -> None:
        self.z3 = z3
        self.leaves: dict[str, Any] = {}

    def of(self, node: Expr) -> Any:
        z3, dtype = self.z3, node.dtype
        match node:
            case ir.IntImm():
                if dtype.is_bool:
                    return z3.BoolVal(bool(node.value))
                return z3.BitVecVal(node.value, dtype.bits)
            case Var() | ir.BufferLoad():
                name = expr_text(node)
                return self.leaves.setdefault(name, z3.BitVec(name, dtype.bits))
            case ir.Cast():
                return self._cast(node)
            case ir.Not():
                return z3.Not(self.of(node.a))
            case ir.And():
                return z3.And(self.of(node.a), self.of(node.b))
            case ir.Or():
                return z3.Or(self.of(node.a), self.of(node.b))
            case ir.Select():
                parts = (node.condition, node.true_value, node.false_value)
                return z3.If(*map(self.of, parts))
            case ir.Call():
                return self._call(node)
            case ir.CompareOp():
                return self._compare(node)
            case ir.BinaryOp():
                return self._binary(node)
            case _:
                raise AssertionError(type(node).__name__)

    def _cast(self, node: ir.Cast) -> Any:
        old, new, value = node.value.dtype, node.type, self.of(node.value)
        if old.is_bool:
            one = self.z3.BitVecVal(1, new.bits)
            return self.z3.If(value, one, self.z3.BitVecVal(0, new.bits))
        if new.bits <= old.bits:
            return self.z3.Extract(new.bits - 1, 0, value)
        extend = self.z3.SignExt if old.kind == "int" else self.z3.ZeroExt
        return extend(new.bits - old.bits, value)

    def _call(self, node: ir.Call) -> Any:
        args = [self.of(a) for a in node.args]
        x, signed = args[0], node.dtype.kind == "int"
        match node.op:
            case "if_then_else":
                return self.z3.If(*args)
            case "shift_left":
                return x << args[1]
            case "shift_right":
                return x >> args[1] if signed else self.z3.LShR(x, args[1])
            case "bitwise_and":
                return x & args[1]
            case "bitwise_or":
                return x | args[1]
            case "bitwise_not":
                return ~x
            case "abs":
                return self.z3.If(x < 0, -x, x)
            case _:
                raise AssertionError(node.op)

    def _compare(self, node: ir.CompareOp) -> Any:
        z3, a, b = self.z3, self.of(node.a), self.of(node.b)
        if node.a.dtype.kind == "int":
            return _COMPARE[type(node)](a, b)
        table: dict[type[Any], Any] = {ir.LT: z3.ULT, ir.LE: z3.ULE, ir.GT: z3.UGT, ir.GE: z3.UGE}
        return table.get(type(node), _COMPARE[type(node)])(a, b)

    def _binary(self, node: ir.BinaryOp) -> Any:
        z3, a, b = self.z3, self.of(node.a), self.of(node.b)
        signed = node.dtype.kind == "int"
        less = a < b if signed else z3.ULT(a, b)
        rest = z3.SRem(a, b) if signed else z3.URem(a, b)
        quotient = a / b if signed else z3.UDiv(a, b)
        adjust = z3.And(rest != 0, (rest < 0) != (b < 0)) if signed else z3.BoolVal(False)
        table: dict[type[Any], Any] = {
            ir.Add: lambda: a + b, ir.Sub: lambda: a - b, ir.Mul: lambda: a * b,
            ir.Min: lambda: z3.If(less, a, b), ir.Max: lambda: z3.If(less, b, a),
            ir.Div: lambda: quotient, ir.Mod: lambda: rest,
            ir.FloorDiv: lambda: z3.If(adjust, quotient - 1, quotient),
            ir.FloorMod: lambda: z3.If(adjust, rest + b, rest),
        }  # fmt: skip
        return table[type(node)]()


def test_z3_proves_simplified_values_equal_for_all_bit_patterns() -> None:
    z3 = pytest.importorskip("z3")
    rng = random.Random(SEED + 7)
    outcome = {"unsat": 0, "sat": 0, "unknown": 0}
    for _ in range(PROVED):
        types = rng.choice([("int32",), ("int64",), ("int32", "int64"), INTEGERS])
        world = World(rng, types, index=False)
        boolean = rng.random() < 0.4
        dtype = rng.choice(world.source.types)
        expr = (
            world.source.condition(2) if boolean else world.source.value(dtype, rng.randint(1, 2))
        )
        assumption = world.source.condition(1) if rng.random() < 0.3 else None
        analyzer, bits = world.analyzer(), Bits(z3)
        solver = z3.Solver()
        solver.set("timeout", 400)
        if assumption is not None:
            analyzer.learn(assumption)
            solver.add(bits.of(assumption))
        simple = analyzer.simplify(expr)
        solver.add(bits.of(expr) != bits.of(simple))
        verdict = str(solver.check())
        given = "-" if assumption is None else expr_text(assumption)
        if verdict == "sat":
            pytest.fail(
                f"{expr_text(expr)} became {expr_text(simple)} given {given}, "
                f"refuted by {solver.model()}"
            )
        outcome[verdict] += 1
    print(f"\nz3: {outcome}")
    assert outcome["unsat"] > PROVED * 0.7
