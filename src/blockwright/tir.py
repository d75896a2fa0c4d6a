"""Tensor programs under their classic address: `bw.tir.Schedule` and its companions."""

from __future__ import annotations

from blockwright.intrin import TensorIntrin
from blockwright.ir import PrimFunc
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

__all__ = ["PrimFunc", "Schedule", "ScheduleError", "TensorIntrin"]
