"""Joint updates of several elements: argmin and argmax, declared reducers.

    taken = x[k] < best[i] or …
    v, p = T.Select(taken, x[k], best[i]), T.Select(taken, k, at[i])
    best[i] = v
    at[i] = p

Each step combines the current elements with new values, `a := f(a, x)`. The order of steps is
irrelevant if `f(f(a, x), y) = f(f(a, y), x)`, and partial results combine like terms if `f` is
associative and starts from an identity. z3 proves these laws over numbers without NaN, as
docs/semantics.md states them. A step without them is outside of the decidable class.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from blockwright import ir
from blockwright.verify.budget import charge
from blockwright.verify.verdict import Unknown

z3: Any = importlib.import_module("z3")  # untyped
RESOURCES = 2_000_000
"""z3's resource limit for one law; deterministic across machines."""
_COUNT = "rlimit count"


class Joint(msgspec.Struct, frozen=True, eq=False):
    """One step on a tuple of elements.

    Attributes:
        key: the combination as text, used as the combiner of its sums.
        buffers: the buffers of the components.
        indices: the element of each component.
        terms: the new values of a step, one per component.
    """

    key: str
    buffers: tuple[ir.Buffer, ...]
    indices: tuple[tuple[ir.Expr, ...], ...]
    terms: tuple[ir.Expr, ...]


def joint_update(
    stores: Sequence[ir.BufferStore], values: Sequence[ir.Expr]
) -> tuple[Joint, Combination] | None:
    """Recognize stores that together form one step; None if they do not.

    Args:
        stores: stores to different buffers.
        values: the stored values, with let variables replaced.
    """
    buffers = tuple(s.buffer for s in stores)
    indices = tuple(s.indices for s in stores)
    if any(s.predicate is not None for s in stores) or len(set(buffers)) != len(buffers):
        return None
    for numbers in (False, True):
        split = _Split(buffers, indices, numbers)
        results = tuple(split(v) for v in values)
        if len(split.terms) == len(buffers):
            break
    else:
        return None
    result = Combination(results, tuple(split.held), tuple(split.given))
    for held, given in zip(result.held, result.given, strict=True):
        if held.type is not given.type:
            return None
    key = "joint " + "; ".join(
        f"{v.type} {' '.join(repr(r).split())}" for v, r in zip(result.held, results, strict=True)
    )
    return Joint(key, buffers, indices, tuple(split.terms)), result


class Combination(msgspec.Struct, frozen=True, eq=False):
    """The combination `f(held, given)`, with one result per component."""

    results: tuple[ir.Expr, ...]
    held: tuple[ir.Var, ...]
    given: tuple[ir.Var, ...]


class _Split(ir.Mutator):
    """Separate a step: current elements become a0, a1, …; new values become x0, x1, …

    Args:
        numbers: whether constants become new values too (along an axis of extent 1 the position is
            the constant 0). A law for all values covers the constant.
    """

    def __init__(
        self,
        buffers: tuple[ir.Buffer, ...],
        indices: tuple[tuple[ir.Expr, ...], ...],
        numbers: bool,
    ) -> None:
        super().__init__()
        self.logic = (
            ir.CompareOp,
            ir.And,
            ir.Or,
            ir.Not,
            ir.Select,
            *(() if numbers else (ir.IntImm, ir.FloatImm)),
        )
        self.buffers, self.indices = buffers, indices
        self.held = [ir.Var(f"a{k}", b.dtype) for k, b in enumerate(buffers)]
        self.given: list[ir.Var] = []
        self.terms: list[ir.Expr] = []

    def __call__(self, node: Any) -> Any:
        if not isinstance(node, ir.Expr):
            raise Unknown("an update of several elements in an unsupported form")
        if isinstance(node, ir.BufferLoad) and node.buffer in self.buffers:
            component = self.buffers.index(node.buffer)
            if not all(map(ir.structural_equal, node.indices, self.indices[component])):
                raise Unknown(
                    f"an update of several elements reads another element of {node.buffer.name}"
                )
            return self.held[component]
        reads = any(n.buffer in self.buffers for n in ir.collect(node, ir.BufferLoad))
        if isinstance(node, self.logic) or reads:
            return node.map_children(self)
        for term, name in zip(self.terms, self.given, strict=True):
            if ir.structural_equal(term, node):
                return name
        self.terms.append(node)
        self.given.append(ir.Var(f"x{len(self.given)}", node.dtype))
        return self.given[-1]


# -------------------------------------------------------------------------------------------- laws
class _Answer(msgspec.Struct, frozen=True):
    """Whether laws hold, and the z3 units spent on the proof."""

    hold: bool
    cost: int


_ANSWERS: dict[str, _Answer] = {}
MOST_KEPT = 500
"""Size of the cache of proved laws."""


def require_laws(key: str, combination: Combination, identity: Sequence[ir.Expr | None]) -> None:
    """Check that the combination is commutative and associative with the given identity.

    A cached answer is charged its original cost, so that no verdict depends on earlier ones.

    Raises:
        Unknown: z3 does not prove the laws, or the budget is used up.
    """
    stated = f"{key} from {[repr(e) for e in identity]}"
    if stated not in _ANSWERS:
        if len(_ANSWERS) >= MOST_KEPT:
            _ANSWERS.clear()
        laws = _Laws(combination)
        _ANSWERS[stated] = _Answer(laws.hold(identity), laws.cost())
    charge(_ANSWERS[stated].cost)
    if not _ANSWERS[stated].hold:
        raise Unknown("the laws of a reducer of several elements are not proved: " + stated)


class _Laws:
    def __init__(self, combination: Combination) -> None:
        self.combination = combination
        self.context = z3.Context()
        self.solver = z3.Solver(ctx=self.context)
        self.solver.set("rlimit", RESOURCES)
        self.solver.set("random_seed", 0)
        self.infinity = z3.Real("infinity", self.context)
        self.solver.add(self.infinity > 0)

    def hold(self, identity: Sequence[ir.Expr | None]) -> bool:
        a, x, y = (self._tuple(name) for name in "axy")
        f = self._apply
        claims = [
            zip(f(f(a, x), y), f(f(a, y), x), strict=True),
            zip(f(a, f(x, y)), f(f(a, x), y), strict=True),
        ]
        if any(e is None for e in identity):
            return False
        start = [self._value(e, {}) for e in identity if e is not None]
        claims.append(zip(f(start, x), x, strict=True))
        return all(self._valid(z3.And(*[p == q for p, q in claim])) for claim in claims)

    def cost(self) -> int:
        """The z3 units spent on all claims."""
        result = self.solver.statistics()
        return int(result.get_key_value(_COUNT)) if _COUNT in result.keys() else 0  # noqa: SIM118

    def _valid(self, claim: Any) -> bool:
        self.solver.push()
        self.solver.add(z3.Not(claim))
        answer = self.solver.check()
        self.solver.pop()
        return answer == z3.unsat

    def _tuple(self, name: str) -> list[Any]:
        """Symbolic values of the component types, within their ranges."""
        result: list[Any] = []
        for k, held in enumerate(self.combination.held):
            if held.type.is_float:
                value = z3.Real(f"{name}{k}", self.context)
                self.solver.add(value <= self.infinity, value >= -self.infinity)
            elif held.type.is_bool:
                value = z3.Bool(f"{name}{k}", self.context)
            else:
                value = z3.Int(f"{name}{k}", self.context)
                self.solver.add(value <= held.type.max_value, value >= held.type.min_value)
            result.append(value)
        return result

    def _apply(self, a: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        known = dict(zip((*self.combination.held, *self.combination.given), (*a, *x), strict=True))
        return [self._value(result, known) for result in self.combination.results]

    def _value(self, expr: ir.Expr, known: dict[ir.Var, Any]) -> Any:
        match expr:
            case ir.Var():
                return known[expr]
            case ir.FloatImm() if math.isinf(expr.value):
                return self.infinity if expr.value > 0 else -self.infinity
            case ir.FloatImm() if math.isfinite(expr.value):
                return z3.RealVal(repr(expr.value), self.context)
            case ir.IntImm():
                if expr.type.is_bool:
                    return z3.BoolVal(bool(expr.value), self.context)
                return z3.IntVal(expr.value, self.context)
            case ir.Not():
                return z3.Not(self._value(expr.a, known))
            case ir.Select():
                return z3.If(
                    *(
                        self._value(e, known)
                        for e in (expr.condition, expr.true_value, expr.false_value)
                    )
                )
            case ir.Call() if expr.op == "if_then_else":
                return z3.If(*(self._value(e, known) for e in expr.args))
            case ir.BinaryOp() | ir.CompareOp() | ir.And() | ir.Or() if type(expr) in _operations():
                a, b = self._value(expr.a, known), self._value(expr.b, known)
                return _operations()[type(expr)](a, b)
            case _:
                raise Unknown(f"a reducer with {type(expr).__name__}, which is not supported")


@cache
def _operations() -> dict[type[ir.Expr], Callable[[Any, Any], Any]]:
    return {
        ir.Add: operator.add, ir.Sub: operator.sub, ir.Mul: operator.mul,
        ir.Min: _least, ir.Max: _greatest, ir.LT: operator.lt, ir.LE: operator.le,
        ir.GT: operator.gt, ir.GE: operator.ge, ir.EQ: operator.eq, ir.NE: operator.ne,
        ir.And: z3.And, ir.Or: z3.Or,
    }  # fmt: skip


def _least(a: Any, b: Any) -> Any:
    return z3.If(a <= b, a, b)


def _greatest(a: Any, b: Any) -> Any:
    return z3.If(a >= b, a, b)
