"""Predict the time of an operator call by scheduling its tensor program."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.cost import estimate
from blockwright.ops.implementation import ATTRIBUTE, DEFAULT, lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import row
from blockwright.strategies import CONSTANT_PARAMS, apply_strategies
from blockwright.strategies.offer import OperatorCall
from blockwright.target import Target


def estimated_seconds(
    call: OperatorCall,
    target: Target,
    implementation: str = DEFAULT,
    disabled: Sequence[str] = (),
) -> float:
    """Schedule an implementation of a call, and return the time that the cost model predicts.

    This takes as long as scheduling does. Shapes must be known numbers.

    Arguments: `implementation` as in the attribute; `disabled` names strategies to skip.
    """
    called = row(call.operator)
    attrs = {**call.attrs, ATTRIBUTE: implementation}
    func = lower_call(called, OpContext(called.name), call.infos, attrs)
    constants = tuple(k for k, known in enumerate(call.constants) if known)
    func = func.replace(attrs={**func.attrs, CONSTANT_PARAMS: constants})
    return estimate(apply_strategies(func, target, disabled).func, target).seconds
