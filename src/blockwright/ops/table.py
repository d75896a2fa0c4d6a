"""The operator table: the rows of all families by name, in alphabetical order."""

from __future__ import annotations

from typing import Any

import msgspec

from blockwright.ops.implementation import DEFAULT
from blockwright.ops.row import Implementation, OpRow
from blockwright.support import GraphError
from blockwright.support.registry import load

_FAMILIES = (
    "activation",
    "adaptive_pool",
    "arg_reduce",
    "attention",
    "cast",
    "channel_norm",
    "compare",
    "conv_transpose",
    "convolution",
    "create",
    "cumulative",
    "deform_conv",
    "device",
    "elementwise_binary",
    "elementwise_special",
    "elementwise_unary",
    "embedding",
    "grid_sample",
    "grouped_matmul",
    "matmul",
    "move",
    "normalize",
    "pad",
    "pool",
    "random_bits",
    "reduce",
    "roi_align",
    "scatter",
    "search",
    "select_elements",
    "shape",
    "softmax",
    "sort",
    "suppression",
    "unique",
    "vector_norm",
)
"""Files with a tuple `ROWS` of operators."""

_ROWS: list[OpRow] = [
    row for family in _FAMILIES for row in load("blockwright.ops", f"{family}.ROWS")[1]
]

OPERATORS: dict[str, OpRow] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}


def row(name: str) -> OpRow:
    """Look up the row of an operator."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise GraphError(
            f"unknown operator {name!r}",
            code="BW405",
            help="operators are rows of blockwright.ops.table",
        ) from None


def register(new: OpRow, *, override: bool = False) -> OpRow:
    """Add an operator from outside. Its PyTorch overloads are not imported.

    Raises: GraphError BW420: its name is taken.
    """
    if new.name in OPERATORS and not override:
        raise GraphError(
            f"there is an operator {new.name!r} already",
            code="BW420",
            help="choose another name; override=True replaces it",
        )
    OPERATORS[new.name] = new
    return new


def register_implementation(
    operator: str, new: Implementation[Any], *, override: bool = False
) -> Implementation[Any]:
    """Add an implementation of an operator from outside.

    Raises: GraphError: BW405 unknown operator, BW420 its name is taken.
    """
    known = row(operator)
    names = [DEFAULT, *(each.name for each in known.implementations)]
    if new.name == DEFAULT or (new.name in names and not override):
        raise GraphError(
            f"{operator} has an implementation {new.name!r} already",
            code="BW420",
            help=f"choose a name other than {', '.join(names)}; override=True replaces one, "
            "except the default",
        )
    others = [each for each in known.implementations if each.name != new.name]
    OPERATORS[operator] = msgspec.structs.replace(known, implementations=(*others, new))
    return new
