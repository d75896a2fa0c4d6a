"""The analytic cost model: predict the time of a scheduled program without running it.

`estimate` reads a program as a loop nest (`read`, with index expressions as linear `form`s of loop
counters), counts the instructions of its `kernels` against the ports of a core, and the lines they
fetch into each cache (`footprint`, `traffic`). `estimate_nest` does the same for a nest written
down by hand, so that a strategy can compare plans before it schedules. `target.core` and
`target.caches` describe the machine; nothing is measured.
"""

from blockwright.cost.model import Estimate, KernelTime, estimate, estimate_nest
from blockwright.cost.nest import AccessNode, BufferNode, LoopNode, StatementNode
from blockwright.cost.read import around, share_out

__all__ = [
    "AccessNode",
    "BufferNode",
    "Estimate",
    "KernelTime",
    "LoopNode",
    "StatementNode",
    "around",
    "estimate",
    "estimate_nest",
    "share_out",
]
