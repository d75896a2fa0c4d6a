"""Facts about tensor programs: regions, dependence, well-formedness, compute patterns."""

from blockwright.analysis.pattern import Pattern, block_pattern, compute_pattern
from blockwright.analysis.regions import (
    block_access_regions,
    clip_region,
    relax_region,
    stmt_access_regions,
)

__all__ = [
    "Pattern",
    "block_access_regions",
    "block_pattern",
    "clip_region",
    "compute_pattern",
    "relax_region",
    "stmt_access_regions",
]
