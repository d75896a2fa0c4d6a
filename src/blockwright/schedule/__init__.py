"""Schedules: checked rewriting of tensor programs, step by step, with handles and traces."""

from blockwright.arith import IndexMap
from blockwright.schedule.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.schedule import RECORDS, Schedule
from blockwright.schedule.trace import Instruction, Trace
from blockwright.support import ScheduleError

__all__ = [
    "RECORDS",
    "BlockRV",
    "Handle",
    "IndexMap",
    "Instruction",
    "LoopRV",
    "Schedule",
    "ScheduleError",
    "Trace",
]
