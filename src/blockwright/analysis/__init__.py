"""Analyses of tensor programs: access regions, dependences, validity, compute patterns."""

from blockwright.analysis.access.regions import (
    block_access_regions,
    clip_region,
    relax_region,
    with_one_box_per_buffer,
)
from blockwright.analysis.access.stride_alignment import (
    DIM_ALIGN,
    AlignRow,
    align_rows,
    aligned_strides,
    alignments,
)
from blockwright.analysis.access.tree import Tree, child_stmts, may_return
from blockwright.analysis.dataflow.block_kinds import BlockKind
from blockwright.analysis.dataflow.dataflow import BlockScope
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.analysis.facts import (
    facts_at,
    facts_of_initial,
    facts_of_loop,
    reduced_by,
    symbol_facts,
    symbols_of,
)
from blockwright.analysis.pattern import Pattern, block_pattern, compute_pattern, joined_buffers
from blockwright.analysis.reduction.empty_reductions import define_empty_reductions
from blockwright.analysis.reduction.reducer import (
    REDUCER,
    NoReduction,
    Reduction,
    builtin_name,
    declare_reducer,
    find_reduction,
    find_update,
    law_broken_by,
)
from blockwright.analysis.reduction.reducer_match import match_all
from blockwright.analysis.reduction.reducer_step import step, stores
from blockwright.analysis.reduction.reducer_table import (
    BUILTIN,
    builtin_reducer,
    components,
    make_reducer,
)
from blockwright.analysis.sole_blocks import sole_blocks
from blockwright.analysis.validate.atomics import (
    atomic_mismatch,
    is_atomic_update,
    updated_atomically,
)
from blockwright.analysis.validate.validate import find_violations
from blockwright.analysis.validate.well_formed import check_well_formed, find_problems

__all__ = [
    "BUILTIN",
    "DIM_ALIGN",
    "REDUCER",
    "AlignRow",
    "BlockKind",
    "BlockScope",
    "FlowMemo",
    "NoReduction",
    "Pattern",
    "Reduction",
    "Tree",
    "align_rows",
    "aligned_strides",
    "alignments",
    "atomic_mismatch",
    "block_access_regions",
    "block_pattern",
    "builtin_name",
    "builtin_reducer",
    "check_well_formed",
    "child_stmts",
    "clip_region",
    "components",
    "compute_pattern",
    "declare_reducer",
    "define_empty_reductions",
    "facts_at",
    "facts_of_initial",
    "facts_of_loop",
    "find_problems",
    "find_reduction",
    "find_update",
    "find_violations",
    "is_atomic_update",
    "joined_buffers",
    "law_broken_by",
    "make_reducer",
    "match_all",
    "may_return",
    "reduced_by",
    "relax_region",
    "sole_blocks",
    "step",
    "stores",
    "symbol_facts",
    "symbols_of",
    "updated_atomically",
    "with_one_box_per_buffer",
]
