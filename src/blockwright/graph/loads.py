"""Operators that read sizes and scalars from the elements of a tensor.

    s = R.tensor_to_shape(t)                       # t: int64 (k,) → R.Shape(ndim=k)
    s = R.tensor_to_shape(t, R.shape([n * 4]))     # the caller states that no element exceeds n * 4
    v = R.item(c)                                  # c: an integer tensor of one element → R.Prim

Their values are known only at run time. A `match_cast` of the result binds symbols to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.support import GraphError

LOADS = frozenset({"tensor_to_shape", "item"})
"""Names of the operators."""

_INT64 = ir.dtype_of("int64")


def is_load(value: ir.GraphExpr) -> bool:
    """Whether an expression is a call of one of the operators."""
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return False
    return value.op.name in LOADS


def deduce_load(name: str, infos: Sequence[ir.Info]) -> ir.Info:
    """The annotation of the result. Raises: GraphError BW401 for operands of another kind."""
    x = infos[0] if infos else None
    if not isinstance(x, ir.TensorInfo):
        raise GraphError(f"{name} takes a tensor", code="BW401")
    return _scalar(x, infos) if name == "item" else _shape(x, infos)


def _scalar(x: ir.TensorInfo, infos: Sequence[ir.Info]) -> ir.PrimInfo:
    single = x.shape is None or all(ir.is_const_int(d, 1) for d in x.shape)
    if len(infos) != 1 or not single:
        raise GraphError("item takes one tensor of one element", code="BW401")
    if x.dtype is not None and not x.dtype.is_int:
        raise GraphError(
            f"item: the element is {x.dtype}, not an integer",
            code="BW401",
            help="convert the tensor with astype first",
        )
    return ir.PrimInfo(_INT64)


def _shape(x: ir.TensorInfo, infos: Sequence[ir.Info]) -> ir.ShapeInfo:
    if x.dtype not in (None, _INT64) or x.rank not in (-1, 1):
        raise GraphError(
            f"tensor_to_shape takes an int64 tensor of rank 1, not {x.dtype} of rank {x.rank}",
            code="BW401",
            help="convert it with astype and reshape first",
        )
    count = None if x.shape is None else ir.const_int(x.shape[0])
    most = infos[1] if len(infos) == 2 else ir.ShapeInfo(None)
    given = most.values if isinstance(most, ir.ShapeInfo) else None
    fits = isinstance(most, ir.ShapeInfo) and (given is None or count in (None, len(given)))
    if len(infos) > 2 or not fits:
        raise GraphError(
            "tensor_to_shape: the limits are not a shape with one number for each element",
            code="BW401",
            help="write R.shape([…]) with the largest value of each element",
        )
    return ir.ShapeInfo(None, -1 if count is None else count)
