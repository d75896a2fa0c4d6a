"""The context of a lowering pass: target, options, notes about hints; the registry of passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from blockwright.arith import Analyzer
from blockwright.ir import PrimFunc, Var, collect, value_variables
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import OptionError
from blockwright.support.registry import load
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

_P = TypeVar("_P", bound=Pass)
_REGISTERED: set[Pass] = set()


def lowering_pass(run: _P) -> _P:
    """Decorator: register a function as a lowering pass, which the pipeline may then name."""
    _REGISTERED.add(run)
    return run


def passes(*entries: str) -> list[tuple[str, Pass]]:
    """Names and passes for entries `file.function`, or `file.function as name`."""
    result: list[tuple[str, Pass]] = []
    for entry in entries:
        name, run = load("blockwright.lower", entry)
        if run not in _REGISTERED:
            raise ImportError(f"{entry} is not a lowering pass: decorate it with @lowering_pass")
        result.append((name, run))
    return result


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
