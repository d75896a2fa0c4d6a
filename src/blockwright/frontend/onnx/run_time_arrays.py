"""Arrays that the program computes, for formulas that NumPy evaluates where numbers are known.

A formula written with NumPy's operators and functions works for both: `np.floor(x / scale)` is an
array if x and scale are, and adds two operators to the program if one of them is a `RunTimeArray`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from blockwright import ir
from blockwright.frontend.onnx.call import Call
from blockwright.frontend.onnx.sizes import I64, expr, packed

_ROWS = {
    np.add: "add", np.subtract: "subtract", np.multiply: "multiply", np.true_divide: "divide",
    np.floor: "floor", np.ceil: "ceil", np.absolute: "abs", np.maximum: "maximum",
    np.minimum: "minimum", np.less: "less", np.less_equal: "less_equal", np.greater: "greater",
    np.greater_equal: "greater_equal", np.equal: "equal", np.bitwise_or: "logical_or",
}  # fmt: skip


class RunTimeArray(NDArrayOperatorsMixin):
    """A vector of float64 or bools that the program computes; `value` is the tensor."""

    def __init__(self, call: Call, value: ir.GraphExpr) -> None:
        self.call, self.value = call, value

    @classmethod
    def of_size(cls, call: Call, size: Any) -> RunTimeArray:
        """A size as a vector of one element."""
        whole = call.imp.tensor(packed(np.array([expr(size)], dtype=object), I64))
        return cls(call, call.cast(whole, "float64"))

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **kwargs: Any) -> Any:
        row = _ROWS.get(function)
        if row is None or method != "__call__" or kwargs:
            return NotImplemented
        return self._applied(row, operands)

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function is not np.where or kwargs:
            return NotImplemented
        return self._applied("where", args)

    def in_single(self) -> RunTimeArray:
        """The numbers rounded to float32."""
        narrow = self.call.cast(self.value, "float32")
        return RunTimeArray(self.call, self.call.cast(narrow, "float64"))

    def as_integers(self) -> ir.GraphExpr:
        """The tensor, cut off to int64."""
        return self.call.cast(self.value, I64)

    def _applied(self, row: str, operands: Sequence[Any]) -> RunTimeArray:
        tensors = [
            x.value if isinstance(x, RunTimeArray) else self.call.imp.tensor(_array(x))
            for x in operands
        ]
        return RunTimeArray(self.call, self.call.apply(row, *tensors))


def _array(value: Any) -> np.ndarray[Any, Any]:
    array = cast("np.ndarray[Any, Any]", np.asarray(value))
    return array if array.dtype.kind == "b" else array.astype(np.float64)
