"""Trace instructions: one record per applied step."""

from __future__ import annotations

import msgspec

from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.record import Primitive


class CompositeCall(msgspec.Struct, frozen=True, eq=False):
    """One call of a composite such as `tile`; shared by the steps that it applied."""

    text: str


class Instruction(msgspec.Struct, frozen=True, eq=False):
    """One step: its record, the handles it returned, and the composite call it is part of."""

    record: Primitive
    outputs: tuple[Handle, ...] = ()
    call: CompositeCall | None = None
