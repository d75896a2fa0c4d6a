"""Instruments: observers of the passes of a compilation, which may also skip passes."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir

AfterPass = Callable[[str, ir.IRModule, ir.IRModule], None]


class Instrument:
    """Observes every pass. Subclass it and override what is needed; all methods do nothing here.

    Instruments are called in the order of `options={"instruments": [...]}`. A plain function
    stands for an instrument with only `after`.
    """

    def should_run(self, name: str, module: ir.IRModule) -> bool:
        """Whether to run the pass; if any instrument says no, the module stays as it is."""
        return True

    def before(self, name: str, module: ir.IRModule) -> None:
        """Called with the name of a pass and the module that it will get."""

    def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        """Called with the name of a pass, the module that it got, and its result."""


AnyInstrument = Instrument | AfterPass


class _AfterOnly(Instrument):
    def __init__(self, function: AfterPass) -> None:
        self.function = function

    def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        self.function(name, before, after)


def as_instrument(given: AnyInstrument) -> Instrument:
    """An instrument for a function that is called after every pass; others are returned."""
    return given if isinstance(given, Instrument) else _AfterOnly(given)
