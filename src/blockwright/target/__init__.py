"""Targets: what a machine offers, as frozen records that rules, lowering and code generation read.

`features` holds the tables per instruction set, `host` reads this machine, `scopes` the memory and
execution scopes, `target` the record itself. Nothing here loads the code generator's library,
except `host_cpu_name` when it is called.
"""

from blockwright.target.host import host_cpu_name
from blockwright.target.scopes import ExecutionScope, LaunchLimits, MemoryScope
from blockwright.target.target import Cache, Target, target_names

__all__ = [
    "Cache",
    "ExecutionScope",
    "LaunchLimits",
    "MemoryScope",
    "Target",
    "host_cpu_name",
    "target_names",
]
