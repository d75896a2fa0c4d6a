"""What a lowering pass is given besides the program: target, options, and a place for notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from blockwright.arith import Analyzer
from blockwright.ir import PrimFunc, Var, collect, value_variables
from blockwright.support import OptionError
from blockwright.target import Target

SANITIZERS = ("bounds", "nan", "uninit")


@dataclasses.dataclass(frozen=True)
class LowerOptions:
    """Choices of the caller.

    Attributes:
        sanitize: run-time checks to insert, of `SANITIZERS`: element reads and writes inside their
            buffers, no NaN written, no read of what nobody wrote.
        max_lanes: longest vector one loop becomes; longer loops are cut.
        unroll_limit: most copies of a loop body that unrolling may make.
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
    """State of one run of the pipeline. `notes` say where a wish of the schedule was not met."""

    target: Target
    options: LowerOptions = dataclasses.field(default_factory=LowerOptions)
    notes: list[str] = dataclasses.field(default_factory=list[str])

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


Pass = Callable[[PrimFunc, LowerContext], PrimFunc]


def function_analyzer(func: PrimFunc) -> Analyzer:
    """An analyzer that tells the function's values from its indices and knows bounds of its sizes.

    Shapes are never negative; attributes may say more (`tir_var_lower_bound`,
    `tir_var_upper_bound`: name → int).
    """
    analyzer = Analyzer(values=value_variables(func))
    lower: dict[str, int] = func.attrs.get("tir_var_lower_bound", {})
    upper: dict[str, int] = func.attrs.get("tir_var_upper_bound", {})
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
