"""The reference interpreter: what a tensor program means, executed with every check on.

It follows docs/semantics.md and nothing else: schedules, lowering and compiled code are tested
against it. Functions become Python closures once (`expr`, `access`, `stmt`); loops whose iterations
provably touch disjoint memory run as NumPy lanes (`nest`, `lanes`), and so do all threads of a
block (`launch`, `threads`), which may exchange values (`team`, `clock`) and use the operations of
GPUs (`hardware`, `matrices`, `copying`). The arithmetic of each type is in `numeric` and `ops`,
memory with its shadows in `memory`, arguments in `run`.
"""

from blockwright.interp.lanes import Limit
from blockwright.interp.report import BankRow, Report
from blockwright.interp.run import interpret, register_packed

__all__ = ["BankRow", "Limit", "Report", "interpret", "register_packed"]
