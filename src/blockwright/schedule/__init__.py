"""Schedules: checked, step-by-step transformation of tensor programs, with handles and traces."""

from blockwright.arith import IndexMap
from blockwright.schedule.compose import Axes, Zoom, composite
from blockwright.schedule.engine.handle import BlockRV, ExprRV, Handle, LoopRV
from blockwright.schedule.engine.instruction import Instruction
from blockwright.schedule.history import Difference, Stage
from blockwright.schedule.schedule import RECORDS, Schedule
from blockwright.schedule.trace import Trace
from blockwright.support import ScheduleError

__all__ = [
    "RECORDS",
    "Axes",
    "BlockRV",
    "Difference",
    "ExprRV",
    "Handle",
    "IndexMap",
    "Instruction",
    "LoopRV",
    "Schedule",
    "ScheduleError",
    "Stage",
    "Trace",
    "Zoom",
    "composite",
]
