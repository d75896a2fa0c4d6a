"""The analytic cost model: how long a scheduled program takes, without running it.

`estimate` reads a program as a nest of loops (`read`, with index expressions as linear `form`s of
loop counters), counts what its `kernels` do per pass against the ports of a core, and the lines
they fetch into each cache (`footprint`, `traffic`). `estimate_nest` does the same for a nest
written down by hand, so that a rule can compare plans before it schedules any. The machine is
`target.core` and `target.caches`; nothing is measured.
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
