"""Linear forms of index expressions: sums of loop counters times constants.

Loops whose variable is divided somewhere have been split into digits (see `read`), so that
`fused // 8` and `fused % 8` are exact. Other nonlinear expressions, such as a clamp or the quotient
of a window, are approximated by a linear function. Data-dependent expressions are `SCATTERED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.cost.nest import LoopNode


class StridedIndex(msgspec.Struct, frozen=True, eq=False):
    """`base` plus a step times the counter of each loop; `scattered`: data-dependent."""

    base: float = 0
    steps: dict[LoopNode, float] = {}
    scattered: bool = False

    def low(self) -> float:
        return self.base + sum(min(0, s * (loop.count - 1)) for loop, s in self.steps.items())

    def high(self) -> float:
        return self.base + sum(max(0, s * (loop.count - 1)) for loop, s in self.steps.items())

    def middle(self) -> float:
        return (self.low() + self.high()) / 2


SCATTERED = StridedIndex(scattered=True)


def add(a: StridedIndex, b: StridedIndex, sign: int = 1) -> StridedIndex:
    if a.scattered or b.scattered:
        return SCATTERED
    steps = dict(a.steps)
    for loop, step in b.steps.items():
        total = steps.get(loop, 0) + sign * step
        if total:
            steps[loop] = total
        else:
            steps.pop(loop, None)
    return StridedIndex(a.base + sign * b.base, steps)


def scale(form: StridedIndex, factor: float) -> StridedIndex:
    if form.scattered:
        return SCATTERED
    steps = {loop: step * factor for loop, step in form.steps.items()} if factor else {}
    return StridedIndex(form.base * factor, steps)


def divide(form: StridedIndex, by: float) -> StridedIndex:
    """The quotient, rounded down; exact if the rest stays between two multiples of the divisor."""
    if form.scattered or not by:
        return SCATTERED
    whole, rest = _parts(form, by)
    if math.floor(rest.low() / by) == math.floor(rest.high() / by):
        return add(scale(whole, 1 / by), StridedIndex(math.floor(rest.low() / by)))
    return scale(form, 1 / by)


def remainder(form: StridedIndex, by: float) -> StridedIndex:
    """The remainder; exact if the rest stays between two multiples of the divisor."""
    if form.scattered or not by:
        return SCATTERED
    _, rest = _parts(form, by)
    if math.floor(rest.low() / by) == math.floor(rest.high() / by):
        return add(rest, StridedIndex(-by * math.floor(rest.low() / by)))
    return rest


def _parts(form: StridedIndex, by: float) -> tuple[StridedIndex, StridedIndex]:
    """Split a form into a part always divisible by the divisor, and the rest."""
    whole = {loop: step for loop, step in form.steps.items() if step % by == 0}
    rest = {loop: step for loop, step in form.steps.items() if step % by}
    base = math.floor(form.base / by) * by
    return StridedIndex(base, whole), StridedIndex(form.base - base, rest)


_PASSED_ON = ("if_then_else", "likely", "as_index", "checked_index", "checked_divisor")


def form_of(expr: ir.Expr, known: Mapping[ir.Var, StridedIndex]) -> StridedIndex:
    """The linear form of an integer expression.

    Args:
        expr: a scalar expression; for a vector, the form of its first lane is returned.
        known: forms of its variables; an unknown variable makes the result scattered.
    """
    if isinstance(expr, ir.IntImm):
        return StridedIndex(expr.value)
    if isinstance(expr, ir.Var):
        return known.get(expr, SCATTERED)
    if isinstance(expr, ir.Cast | ir.Broadcast):
        return form_of(expr.value, known)
    if isinstance(expr, ir.Ramp):
        return form_of(expr.base, known)
    if isinstance(expr, ir.Select):
        return _fuller(form_of(expr.true_value, known), form_of(expr.false_value, known))
    if isinstance(expr, ir.Call) and expr.op in _PASSED_ON:
        return form_of(expr.args[1 if expr.op == "if_then_else" else 0], known)
    if isinstance(expr, ir.BinaryOp):
        return _binary(expr, form_of(expr.a, known), form_of(expr.b, known))
    return SCATTERED


def _binary(expr: ir.BinaryOp, a: StridedIndex, b: StridedIndex) -> StridedIndex:
    if isinstance(expr, ir.Add | ir.Sub):
        return add(a, b, 1 if isinstance(expr, ir.Add) else -1)
    if isinstance(expr, ir.Mul) and not (a.steps and b.steps):
        return SCATTERED if a.scattered or b.scattered else _times(a, b)
    if isinstance(expr, ir.FloorDiv | ir.Div) and not b.steps:
        return divide(a, b.base)
    if isinstance(expr, ir.FloorMod | ir.Mod) and not b.steps:
        return remainder(a, b.base)
    if isinstance(expr, ir.Min | ir.Max):
        if a.scattered or b.scattered:
            return SCATTERED
        smaller, larger = (a, b) if isinstance(expr, ir.Min) else (b, a)
        if smaller.high() <= larger.low():
            return a
        return b if larger.high() <= smaller.low() else _fuller(a, b)
    return SCATTERED


def _times(a: StridedIndex, b: StridedIndex) -> StridedIndex:
    return scale(a, b.base) if not b.steps else scale(b, a.base)


def _fuller(a: StridedIndex, b: StridedIndex) -> StridedIndex:
    """The alternative that depends on loops; the other one is the bound of a clamp."""
    return a if a.steps or not b.steps else b
