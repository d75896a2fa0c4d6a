"""Graph functions: construction, deduction of annotations, well-formedness checks."""

from blockwright.graph.builder import (
    GraphBuilder,
    constant,
    function_analyzer,
    function_symbols,
    inherited_bounds,
    shape_value,
    symbol_ranges,
)
from blockwright.graph.check_annotations import Deduced
from blockwright.graph.deduce import deduce_call, function_info
from blockwright.graph.well_formed import check_graph, check_structure

__all__ = [
    "Deduced",
    "GraphBuilder",
    "check_graph",
    "check_structure",
    "constant",
    "deduce_call",
    "function_analyzer",
    "function_info",
    "function_symbols",
    "inherited_bounds",
    "shape_value",
    "symbol_ranges",
]
