"""The context of a lowering pass: target, options, and notes about hints that were not met."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from blockwright.arith import Analyzer
from blockwright.ir import PrimFunc, Var, collect, value_variables
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import OptionError
from blockwright.target import Target

SANITIZERS = ("bounds", "nan", "uninit")


@dataclasses.dataclass(frozen=True)
class LowerOptions:
    """Options of lowering.

    Attributes:
        sanitize: run-time checks to insert, from `SANITIZERS`: accesses within bounds, no NaN
            stores, no reads of uninitialized elements.
        max_lanes: largest vector length of one loop; longer loops are strip-mined.
        unroll_limit: largest number of statements that unrolling a loop may produce.
    """

    sanitize: tuple[str, ...] = ()
    max_lanes: int = 96
    unroll_limit: int = 4096

    def __post_init__(self) -> None:
        unknown = [name for name in self.sanitize if name not in SANITIZERS]
        if unknown:
            raise OptionError(
                f"unknown sanitizer {unknown[0]!r}",
                code="BW917",
                help=f"choose from {', '.join(SANITIZERS)}",
            )


@dataclasses.dataclass
class LowerContext:
    """State of one pipeline run. `notes` records schedule annotations that could not be honored."""

    target: Target
    options: LowerOptions = dataclasses.field(default_factory=LowerOptions)
    notes: list[str] = dataclasses.field(default_factory=list[str])

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


Pass = Callable[[PrimFunc, LowerContext], PrimFunc]


def function_analyzer(func: PrimFunc) -> Analyzer:
    """An analyzer that separates values from indices and knows the bounds of symbolic sizes.

    Shapes are never negative; attributes may say more (`tir_var_lower_bound`,
    `tir_var_upper_bound`: name → int).
    """
    analyzer = Analyzer(values=value_variables(func))
    lower: dict[str, int] = func.attrs.get(LOWER_BOUND, {})
    upper: dict[str, int] = func.attrs.get(UPPER_BOUND, {})
    for var in shape_vars(func):
        analyzer.bind_bounds(var, lower.get(var.name, 0), upper.get(var.name))
    return analyzer


def shape_vars(func: PrimFunc) -> list[Var]:
    """Symbolic variables of the parameter buffers' shapes, in order of first occurrence."""
    result: dict[Var, None] = {}
    for buffer in func.buffers:
        for extent in buffer.shape:
            result.update(dict.fromkeys(v for v in collect(extent, Var) if v.dtype.is_int))
    return list(result)
