"""Diagnosis of updates that match no builtin reducer, for error messages.

Example: for `M[vi] = Select(X[vi, vk] > M[vi], X[vi, vk], M[vi])` next to
`P[vi] = Select(…, vk, P[vi])`, the condition does not define which of two equal numbers is taken,
as `argmax` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockwright import ir
from blockwright.analysis.reduction.reducer_match import MIRROR
from blockwright.analysis.reduction.reducer_table import builtin_reducer
from blockwright.arith.text import expr_text


def why_no_builtin(
    elements: Sequence[ir.BufferLoad], old: Sequence[ir.Var], values: Sequence[ir.Expr]
) -> str:
    """The part of an update that no builtin reducer matches.

    Args:
        elements, old, values: the updated elements, variables for their old values, and their new
            values in terms of these variables.
    """
    names: dict[ir.Var, ir.Node] = dict(zip(old, elements, strict=True))

    def text(expr: ir.Expr) -> str:
        return expr_text(ir.substitute(expr, names))

    if len(elements) == 1:
        return f"{text(old[0])} becomes {text(values[0])}"
    if len(elements) != 2:
        return f"they update {len(elements)} elements instead of two, a number and its position"
    choices: list[tuple[ir.Expr, ir.Expr]] = []
    for before, value in zip(old, values, strict=True):
        choice = _choice(value, before)
        if choice is None:
            return (
                f"{text(before)} becomes {text(value)}, not a choice between a term free of "
                f"it and {text(before)} as it was"
            )
        choices.append(choice)
    (first, _), (second, _) = choices
    if not ir.structural_equal(first, second):
        return (
            f"{text(old[0])} is chosen by {text(first)}, {text(old[1])} by {text(second)}: "
            "both must be chosen by the same condition (bind it to a variable before the stores)"
        )
    return _condition(old, [term for _, term in choices], first, text)


def _choice(value: ir.Expr, before: ir.Var) -> tuple[ir.Expr, ir.Expr] | None:
    """Condition and new term if a value is a choice between the term and the old value."""
    if isinstance(value, ir.Select):
        parts = value.condition, value.true_value, value.false_value
    elif isinstance(value, ir.Call) and value.op == "if_then_else":
        parts = value.args[0], value.args[1], value.args[2]
    else:
        return None
    condition, yes, no = parts
    if no is before:
        return condition, yes
    return (_negated(condition), no) if yes is before else None


_OPPOSITE: dict[type[ir.Expr], type[ir.CompareOp]] = {
    ir.GE: ir.LT, ir.GT: ir.LE, ir.LE: ir.GT, ir.LT: ir.GE, ir.EQ: ir.NE, ir.NE: ir.EQ,
}  # fmt: skip


def _negated(condition: ir.Expr) -> ir.Expr:
    """Negate a condition; comparisons are inverted, ignoring NaN."""
    opposite = _OPPOSITE.get(type(condition))
    if opposite is not None and isinstance(condition, ir.CompareOp):
        return opposite(condition.a, condition.b)
    return ir.Not(condition)


def _condition(
    old: Sequence[ir.Var],
    terms: Sequence[ir.Expr],
    condition: ir.Expr,
    text: Callable[[ir.Expr], str],
) -> str:
    """Explain why a selection condition does not match argmin or argmax."""
    compared = [k for k, var in enumerate(old) if _direction(condition, var)]
    position = 0 if compared == [1] else 1
    number = 1 - position
    if not old[position].type.is_int:
        return f"{text(old[position])} is not an integer, so it cannot be a position"
    name = _direction(condition, old[number]) or "argmax"
    order = (number, position)
    reducer = builtin_reducer(name, [old[k].type for k in order])
    pairs = (*(old[k] for k in order), *(terms[k] for k in order))
    known = dict(zip((*reducer.lhs, *reducer.rhs), pairs, strict=True))
    wanted = ir.substitute(reducer.result[0], known)
    assert isinstance(wanted, ir.Select)
    parts = _either(wanted.condition)
    have = _either(condition)
    rules = [
        "which number is taken",
        "which of two equal numbers is taken, the one at the lower position",
        "what becomes of NaN, which comes before every number",
    ]
    missing = [
        f"{rule}: {text(part)}"
        for rule, part in zip(rules, parts, strict=False)
        if not any(_same(part, h) for h in have)
    ]
    form = f"{name} takes the new pair where {text(wanted.condition)}"
    if not missing:
        return f"{form}, this update where {text(condition)}"
    return (
        f"the new pair is taken where {text(condition)}, which does not say "
        f"{'; nor '.join(missing)} (add with or what is missing for it to be an {name})"
    )


def _same(a: ir.Expr, b: ir.Expr) -> bool:
    """Whether two comparisons are equal, up to swapped sides."""
    if ir.structural_equal(a, b):
        return True
    return (
        isinstance(a, ir.CompareOp)
        and isinstance(b, ir.CompareOp)
        and MIRROR.get(type(b)) is type(a)
        and ir.structural_equal(a.a, b.b)
        and ir.structural_equal(a.b, b.a)
    )


def _direction(condition: ir.Expr, var: ir.Var) -> str:
    """Reducer name implied by an inequality between an element and another value; "" if none."""
    for node in ir.walk(condition):
        if isinstance(node, (ir.GT, ir.GE, ir.LT, ir.LE)):
            up = isinstance(node, (ir.GT, ir.GE))
            if node.b is var:
                return "argmax" if up else "argmin"
            if node.a is var:
                return "argmin" if up else "argmax"
    return ""


def _either(condition: ir.Expr) -> list[ir.Expr]:
    """The disjuncts of a condition."""
    if isinstance(condition, ir.Or):
        return [*_either(condition.a), *_either(condition.b)]
    return [condition]
