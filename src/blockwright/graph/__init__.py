"""Graph functions: building them, deducing annotations, checking that they are well formed."""

from blockwright.graph.builder import (
    GraphBuilder,
    constant,
    function_analyzer,
    function_symbols,
    shape_value,
    symbol_ranges,
)
from blockwright.graph.deduce import deduce_call, function_info
from blockwright.graph.well_formed import check_graph

__all__ = [
    "GraphBuilder",
    "check_graph",
    "constant",
    "deduce_call",
    "function_analyzer",
    "function_info",
    "function_symbols",
    "shape_value",
    "symbol_ranges",
]
