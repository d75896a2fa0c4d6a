"""Operation budget of one verdict, counted so that a verdict is the same on every machine.

isl counts its memory allocations and the pivots of its tableaus. A proof names each *step* that it
begins (`begin_step`); the operations of the previous step are charged at that point. Long steps are
charged more than their count: they pivot large tableaus, which is about thirty times as slow as the
operations of short steps. z3 counts its own units, which take about the same time and are charged
unchanged (`charge`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from blockwright.verify import isl
from blockwright.verify.verdict import Exhausted

LONG = 20_000
"""Operations at which a step costs twice its count."""
DEAR = 3
"""Cost factor of an operation when unions of many pieces are compared."""
_LEAST = 1_000
"""Smallest count that is resolved: steps are charged this much, or twice, four times, ..."""


class Budget:
    """Operations that all attempts of one verdict may spend together, in units of short operations.

    Attributes:
        left: the remaining units.
        longest: upper limit of operations for one step.
    """

    def __init__(self, units: int, longest: int) -> None:
        self.left = units
        self.longest = longest


class Meter:
    """Charges one attempt to a budget: at most half of the remainder, to leave some for others.

    Attributes:
        common: whether the present step is the same with the other dataflow method.
    """

    def __init__(self, context: isl.Context, budget: Budget) -> None:
        self.context, self.budget = context, budget
        self.left = budget.left // 2
        self.what = "the constraints on sizes"
        self.common = False
        self.dear = 1
        self._begin()

    def step(self, what: str, dear: int = 1) -> None:
        """Charge the step that ends here and begin the next one.

        Args:
            dear: cost factor of an operation in the new step.
        """
        self.settle()
        if self.left <= 0:
            raise self.spent()
        self.what, self.dear = what, dear
        self._begin()

    def settle(self) -> None:
        """Charge the operations counted since the last step began."""
        cost = price(self._counted()) * self.dear
        self.left -= cost
        self.budget.left -= cost
        self.allowed = 0
        self._allow(0)  # no limit

    def charge(self, units: int) -> None:
        """Charge units that the present step spent outside of isl."""
        self.left -= units
        self.budget.left -= units
        if self.left <= 0:
            raise self.spent()

    def spent(self) -> Exhausted:
        """The exception for a present step that used up its allowance."""
        return Exhausted(f"the budget of operations is spent: {self.what}", self.common)

    def _begin(self) -> None:
        self.allowed = min(self.budget.longest, _affordable(self.left)) // self.dear
        self._allow(self.allowed)

    def _allow(self, operations: int) -> None:
        self.context.set_max_operations(operations)
        self.context.reset_operations()

    def _counted(self) -> int:
        """Upper bound on isl's operation count; isl only reports whether a limit is reached."""
        bound = _LEAST
        while bound < self.allowed:
            if not self.context.reaches(bound):
                return bound
            bound *= 2
        return self.allowed


def price(operations: int) -> int:
    """The units charged for a step."""
    return operations + operations * operations // LONG


def _affordable(units: int) -> int:
    """The largest number of operations, `_LEAST` times a power of two, that `units` can pay for."""
    result = _LEAST
    while price(2 * result) <= units:
        result *= 2
    return result


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def begin_step(what: str, dear: int = 1) -> None:
    """Begin a step of the running proof; no effect outside of a proof.

    Raises: Exhausted: the preceding steps have used up the budget.
    """
    meter = _METER.get()
    if meter is not None:
        meter.step(what, dear)


def charge(units: int) -> None:
    """Charge the units that z3 spent to the running proof; no effect outside of a proof.

    Raises: Exhausted: the budget is used up.
    """
    meter = _METER.get()
    if meter is not None:
        meter.charge(units)


@contextlib.contextmanager
def metered(meter: Meter) -> Generator[None]:
    """Charge the steps inside the context to a meter."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)
        meter.settle()
