"""Names of the tensor level as in TVM: `bw.tir.Schedule`, `bw.tir.PrimFunc`, ..."""

from __future__ import annotations

from blockwright.intrin import TensorIntrin
from blockwright.ir import PrimFunc
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

__all__ = ["PrimFunc", "Schedule", "ScheduleError", "TensorIntrin"]
