"""Lowering: scheduled tensor programs down to flat loops, one pass per file.

`lower` runs the pipeline; `LOWERING` is its named list of passes.
"""

from blockwright.lower.context import SANITIZERS, LowerContext, LowerOptions, Pass
from blockwright.lower.finalize import check_flat
from blockwright.lower.pipeline import LOWERING, OnPass, lower

__all__ = [
    "LOWERING",
    "SANITIZERS",
    "LowerContext",
    "LowerOptions",
    "OnPass",
    "Pass",
    "check_flat",
    "lower",
]
