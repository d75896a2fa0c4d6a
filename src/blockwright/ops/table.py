"""The operator table: the rows of all families by name, in alphabetical order."""

from __future__ import annotations

from blockwright.ops import (
    activation,
    adaptive_pool,
    attention,
    cast,
    channel_norm,
    compare,
    conv_transpose,
    convolution,
    create,
    cumulative,
    elementwise_binary,
    elementwise_unary,
    embedding,
    matmul,
    move,
    normalize,
    pad,
    pool,
    reduce,
    shape,
    softmax,
)
from blockwright.ops.row import OpRow
from blockwright.support import GraphError

_FAMILIES = (
    activation.ROWS,
    adaptive_pool.ROWS,
    attention.ROWS,
    cast.ROWS,
    channel_norm.ROWS,
    compare.ROWS,
    conv_transpose.ROWS,
    convolution.ROWS,
    create.ROWS,
    cumulative.ROWS,
    elementwise_binary.ROWS,
    elementwise_unary.ROWS,
    embedding.ROWS,
    matmul.ROWS,
    move.ROWS,
    normalize.ROWS,
    pad.ROWS,
    pool.ROWS,
    reduce.ROWS,
    shape.ROWS,
    softmax.ROWS,
)

OPERATORS: dict[str, OpRow] = {
    found.name: found for found in sorted((r for f in _FAMILIES for r in f), key=lambda r: r.name)
}


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
