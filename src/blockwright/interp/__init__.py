"""Reference interpreter: executes tensor programs on NumPy arrays with every check enabled.

It follows docs/semantics.md only; schedules, lowering and compiled code are tested against it.
Functions are compiled once to Python closures (`expr`, `access`, `stmt`). Loops whose iterations
provably access disjoint memory run as NumPy lanes (`nest`, `lanes`). So do all threads of a GPU
block (`gpu/launch`, `gpu/kernels`), which may exchange values (`gpu/thread_block`,
`gpu/vector_clock`) and use GPU operations (`gpu/hardware`, `gpu/matrices`, `gpu/copying`).
`numeric` and `ops` implement the arithmetic of each type, `memory` the storage and its shadow
memory, `run` the argument checks.
"""

from blockwright.interp.lanes import Limit
from blockwright.interp.report import BankRow, Report
from blockwright.interp.run import interpret, register_packed

__all__ = ["BankRow", "Limit", "Report", "interpret", "register_packed"]
