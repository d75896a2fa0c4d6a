"""The operator table: the rows of all families by name, in alphabetical order."""

from __future__ import annotations

from blockwright.ops.row import OpRow
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
    "elementwise_binary",
    "elementwise_unary",
    "embedding",
    "matmul",
    "move",
    "normalize",
    "pad",
    "pool",
    "reduce",
    "search",
    "shape",
    "softmax",
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
