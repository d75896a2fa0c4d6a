"""The budget of operations of one verdict: counted, so that it ends alike on every machine.

isl counts what it does: memory it takes and pivots of its tableaus. A proof names each *step* that
it begins (`begin_step`), and what the step before has taken is charged then. Long steps cost more
than they count: they are pivots of large tableaus, some thirty times as slow as the operations
of short ones. z3 counts too, in units of about the same time, which are charged as they are
(`charge`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from blockwright.verify import isl
from blockwright.verify.verdict import Exhausted

LONG = 20_000
"""Operations of a step that costs twice what they count."""
DEAR = 3
"""How much more an operation costs where unions of many pieces are compared."""
_LEAST = 1_000
"""The least count that is told apart: steps are charged this much, or twice, four times, ..."""


class Budget:
    """What the attempts of one verdict may spend together, in units of short operations.

    Attributes:
        left: what is left.
        longest: the operations that one step may take.
    """

    def __init__(self, units: int, longest: int) -> None:
        self.left = units
        self.longest = longest


class Meter:
    """Charges one attempt to a budget: at most half of what is left, so that others get a turn.

    Attributes:
        common: whether the present step is the same in attempts on the other road.
    """

    def __init__(self, context: isl.Context, budget: Budget) -> None:
        self.context, self.budget = context, budget
        self.left = budget.left // 2
        self.what = "what is known of sizes"
        self.common = False
        self.dear = 1
        self._begin()

    def step(self, what: str, dear: int = 1) -> None:
        """Charge the step that ends here, and begin another one.

        Args:
            dear: how much more an operation costs.
        """
        self.settle()
        if self.left <= 0:
            raise self.spent()
        self.what, self.dear = what, dear
        self._begin()

    def settle(self) -> None:
        """Charge what was counted since the last step began."""
        cost = price(self._counted()) * self.dear
        self.left -= cost
        self.budget.left -= cost
        self.allowed = 0
        self._allow(0)  # no limit

    def charge(self, units: int) -> None:
        """Charge what the present step took elsewhere than in isl."""
        self.left -= units
        self.budget.left -= units
        if self.left <= 0:
            raise self.spent()

    def spent(self) -> Exhausted:
        """That the present step has taken what was left for it."""
        return Exhausted(f"the budget of operations is spent: {self.what}", self.common)

    def _begin(self) -> None:
        self.allowed = min(self.budget.longest, _affordable(self.left)) // self.dear
        self._allow(self.allowed)

    def _allow(self, operations: int) -> None:
        self.context.set_max_operations(operations)
        self.context.reset_operations()

    def _counted(self) -> int:
        """What isl has counted, from above: isl tells only whether a limit is reached."""
        bound = _LEAST
        while bound < self.allowed:
            if not self.context.reaches(bound):
                return bound
            bound *= 2
        return self.allowed


def price(operations: int) -> int:
    """The units that a step costs."""
    return operations + operations * operations // LONG


def _affordable(units: int) -> int:
    """The most operations that a step may take for so many units, in powers of two."""
    result = _LEAST
    while price(2 * result) <= units:
        result *= 2
    return result


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def begin_step(what: str, dear: int = 1) -> None:
    """Begin a step of the proof that runs; nothing happens outside of one.

    Raises: Exhausted: what came before has spent the budget.
    """
    meter = _METER.get()
    if meter is not None:
        meter.step(what, dear)


def charge(units: int) -> None:
    """Charge what z3 took to the proof that runs; nothing happens outside of one.

    Raises: Exhausted: the budget is spent.
    """
    meter = _METER.get()
    if meter is not None:
        meter.charge(units)


@contextlib.contextmanager
def metered(meter: Meter) -> Generator[None]:
    """The steps inside are charged by a meter."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)
        meter.settle()
