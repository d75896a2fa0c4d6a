"""A pattern language over graph functions, and rewriting by it; see docs/graph-patterns.md."""

from blockwright.graph.pattern.elementary import (
    COMMUTATIVE,
    CallPattern,
    is_const,
    is_library,
    is_op,
    is_parameter,
    is_program,
    is_tuple,
    wildcard,
)
from blockwright.graph.pattern.matcher import Match
from blockwright.graph.pattern.patterns import Candidate, Explanation, Pattern
from blockwright.graph.pattern.rewrite import call_library, call_op, rewrite, rewrite_module

__all__ = [
    "COMMUTATIVE",
    "CallPattern",
    "Candidate",
    "Explanation",
    "Match",
    "Pattern",
    "call_library",
    "call_op",
    "is_const",
    "is_library",
    "is_op",
    "is_parameter",
    "is_program",
    "is_tuple",
    "rewrite",
    "rewrite_module",
    "wildcard",
]
