"""Index arithmetic: canonical forms, simplifier, prover, regions, iterator maps."""

from blockwright.arith.analyzer import Analyzer, simplify
from blockwright.arith.defined import defined
from blockwright.arith.index_map import IndexMap, inverse_map
from blockwright.arith.interval import IntervalSet, eval_set, hull, intersect, union
from blockwright.arith.itermap import Level, detect_iter_map, is_bijective, require_iter_map
from blockwright.arith.itermark import (
    IterMapError,
    IterMapResult,
    IterMark,
    IterSplit,
    IterSum,
    iter_expr,
)
from blockwright.arith.overlap import leaves_no_gap
from blockwright.arith.querylog import Query, query_log
from blockwright.arith.region import bound_region, clip_region, covers, jointly_cover
from blockwright.arith.subspace import SubspaceDivision, SubspacePair, subspace_divide

__all__ = [
    "Analyzer",
    "IndexMap",
    "IntervalSet",
    "IterMapError",
    "IterMapResult",
    "IterMark",
    "IterSplit",
    "IterSum",
    "Level",
    "Query",
    "SubspaceDivision",
    "SubspacePair",
    "bound_region",
    "clip_region",
    "covers",
    "defined",
    "detect_iter_map",
    "eval_set",
    "hull",
    "intersect",
    "inverse_map",
    "is_bijective",
    "iter_expr",
    "jointly_cover",
    "leaves_no_gap",
    "query_log",
    "require_iter_map",
    "simplify",
    "subspace_divide",
    "union",
]
