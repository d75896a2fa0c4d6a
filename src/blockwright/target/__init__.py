"""Targets: what a machine offers, as frozen records that rules, lowering and code generation read.

`features` holds the tables per instruction set, `core` what a core does in a cycle, `host` reads
this machine, `scopes` the memory and
execution scopes, `target` the record itself. Nothing here loads the code generator's library,
except `host_cpu_name` when it is called.
"""

from blockwright.target.core import Core, core_of
from blockwright.target.host import host_cpu_name
from blockwright.target.scopes import ExecutionScope, LaunchLimits, MemoryScope
from blockwright.target.target import Cache, Target, last_cache_bytes, target_names

__all__ = [
    "Cache",
    "Core",
    "ExecutionScope",
    "LaunchLimits",
    "MemoryScope",
    "Target",
    "core_of",
    "host_cpu_name",
    "last_cache_bytes",
    "target_names",
]
