"""Descriptions of machines: frozen records that strategies, cost model and code generation read.

`target` holds the record and its names; `isa` vector instruction sets, `units` multiply-accumulate
instructions, `core` figures of a CPU core, `gpu` figures of GPUs, `memory` the memory hierarchy,
`scopes` memory and execution scopes, `features` names of CPU features; `host` reads this machine.
Nothing here loads the code generator's library, except `host_cpu_name` when it is called.
"""

from blockwright.target.core import Core, core_of
from blockwright.target.gpu import Multiprocessors
from blockwright.target.host import host_cpu_name
from blockwright.target.isa import GATHER_STRIDE, VectorISA
from blockwright.target.memory import Cache, MemorySpace
from blockwright.target.of_program import target_of
from blockwright.target.scopes import ExecutionScope, LaunchLimits, MemoryScope
from blockwright.target.target import Target, last_cache_bytes, target_names
from blockwright.target.units import ComputeUnit

__all__ = [
    "GATHER_STRIDE",
    "Cache",
    "ComputeUnit",
    "Core",
    "ExecutionScope",
    "LaunchLimits",
    "MemoryScope",
    "MemorySpace",
    "Multiprocessors",
    "Target",
    "VectorISA",
    "core_of",
    "host_cpu_name",
    "last_cache_bytes",
    "target_names",
    "target_of",
]
