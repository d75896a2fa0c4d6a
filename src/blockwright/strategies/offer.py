"""Offers: how long the implementations of an operator take on a target.

An operator row lists its implementations (`ops/row.py`). Code that schedules one well knows when it
pays, and registers an offer: a function from a call to the parameters that are worth considering,
each with its predicted time, or to the reason why the implementation is out of the question. The
pass `choose_implementations` compares the offers for a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.ops.row import NoParameters, Parameters
from blockwright.strategies.strategy import Refused
from blockwright.target import Target


class OperatorCall(msgspec.Struct, frozen=True):
    """A call of an operator, as offers see it.

    Attributes:
        infos: annotations of the tensor arguments.
        result: annotation of the result.
        attrs: attributes, with the defaults of the row.
        constants: for each tensor argument, whether it is known at compile time.
        uncached: whether constants are in no cache when the call begins.
    """

    operator: str
    infos: tuple[ir.TensorInfo, ...]
    result: ir.Info
    attrs: dict[str, Any]
    constants: tuple[bool, ...]
    uncached: bool = False

    @property
    def fixed(self) -> bool:
        """Whether the shapes of all arguments are known numbers."""
        shapes = [info.shape for info in self.infos]
        return all(shape is not None and None not in map(ir.const_int, shape) for shape in shapes)


class Candidate(msgspec.Struct, frozen=True):
    """Parameters of an implementation, and the predicted time of the call with them."""

    seconds: float
    parameters: Parameters = NoParameters()


class Offer(msgspec.Struct, frozen=True):
    """Predicts the time of one implementation of an operator.

    Attributes:
        implementation: its name in the row; "default" predicts the time that others must beat.
        predict: candidates for a call, the most accurate first; `Refused` for calls and targets
            that the offer is not for.
        strategy: name of the strategy that schedules it; if that is disabled, so is the offer.
        share: a candidate is chosen if its time is less than this share of the best time so far.
            Less than 1 for implementations that are less accurate.
    """

    operator: str
    implementation: str
    predict: Callable[[OperatorCall, Target], Sequence[Candidate] | Refused]
    strategy: str = ""
    share: float = 1.0
