"""Index arithmetic: canonical forms, simplifier, prover, regions, iterator maps."""

from blockwright.arith.analyzer import Analyzer, simplify
from blockwright.arith.interval import IntervalSet, eval_set, intersect, union
from blockwright.arith.querylog import Query, query_log
from blockwright.arith.region import bound_region, clip_region, covers

__all__ = [
    "Analyzer",
    "IntervalSet",
    "Query",
    "bound_region",
    "clip_region",
    "covers",
    "eval_set",
    "intersect",
    "query_log",
    "simplify",
    "union",
]
