"""FoldScales: fold constant per-channel factors and shifts into the preceding weights and bias.

Before::

    @R.function
    def main(x: R.Tensor(("n", 2), "float32")):
        n = T.int64()
        y = R.matmul(x, R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
        z = R.nn.batch_norm(
            y,
            R.const([4.0, 1.0], "float32"),  # gamma
            R.const([1.0, 0.0], "float32"),  # beta
            R.const([3.0, 5.0], "float32"),  # mean
            R.const([4.0, 1.0], "float32"),  # variance
            epsilon=0.0,
        )
        return z

After::

    @R.function
    def main(x: R.Tensor(("n", 2), "float32")):
        n = T.int64()
        y = R.matmul(x, R.const([[2.0, 2.0], [6.0, 4.0]], "float32"))
        z = R.add(y, R.const([-5.0, -5.0], "float32"))
        return z

Batch norm with constant statistics is y·a + b for every channel, with a = gamma / √(variance + ε)
and b = beta - mean·a. If y is the result of a convolution or matrix product with constant weights
and has no other reader, a is folded into the weights and b into the bias. Constants are combined in
float64 and rounded once: a folded weight carries the one rounding that the product with a would
have made, so the error bound of the sum grows by no more than that of the multiplication it
replaces; b is rounded once, where mean·a has the size of the terms that were summed. Nothing is
folded for integer types, or if a result would not be finite in the weights' type. Batch norm of any
other value becomes (y - mean)·a + beta, which keeps the difference exact if y is close to the mean.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.graph import constant, deduce_call, function_analyzer
from blockwright.ops.table import OPERATORS
from blockwright.passes.context import PassContext, function_pass
from blockwright.passes.rewrite import flat_function, used_vars

Array = np.ndarray[Any, Any]


class Affine(msgspec.Struct, frozen=True):
    """`base`·factor + shift, with constant factor and shift along one axis, in float64.

    None stands for a factor of 1 and a shift of 0.
    """

    base: ir.GraphExpr
    axis: int
    factor: Array | None
    shift: Array | None


@function_pass
def fold_affine(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Fold per-channel constants into the preceding constant weights."""
    return _Folder(function).run()


def _is_op(value: Any, *names: str) -> bool:
    return (
        isinstance(value, ir.GraphCall)
        and isinstance(value.op, ir.OpRef)
        and value.op.name in names
    )


def _name(call: ir.GraphCall) -> str:
    assert isinstance(call.op, ir.OpRef)
    return call.op.name


def _attrs(call: ir.GraphCall) -> dict[str, Any]:
    return {**OPERATORS[_name(call)].attrs, **call.attrs}


class _Folder:
    """Folds one function: visits its bindings in order and records the value of each variable."""

    def __init__(self, function: ir.GraphFunction) -> None:
        self.function = function
        self.values: dict[ir.Node, ir.GraphExpr] = {}
        self.uses = Counter(used_vars(function.body.body))
        for binding in function.bindings:
            if isinstance(binding, (ir.VarBinding, ir.MatchCast)):
                self.uses.update(_operands(binding.value))
        self.bindings: list[ir.Binding] = []
        self.analyzer = function_analyzer(function)
        self.changed = False

    def run(self) -> ir.GraphFunction:
        for binding in self.function.bindings:
            if isinstance(binding, ir.VarBinding):
                folded = self._fold(binding)
                if folded is not None:
                    self.changed = True
                    continue
                self.values[binding.var] = binding.value
            self.bindings.append(binding)
        return flat_function(self.function, self.bindings) if self.changed else self.function

    # ------------------------------------------------------------------------------- recognition
    def _fold(self, binding: ir.VarBinding) -> bool | None:
        """Bind the variable to folded calls; None if there is nothing to fold."""
        result = self._affine(binding.value)
        if result is None:
            return None
        base, bias, previous = self._producer(result)
        if base is None:
            return self._as_arithmetic(binding) if _is_batch_norm(binding.value) else None
        factor, shift = result.factor, result.shift
        if bias is not None:
            scaled = bias if factor is None else bias * factor
            shift = scaled if shift is None else scaled + shift
        if factor is None and bias is None:
            return None  # a plain bias after the product is already in the desired form
        weight = _scaled(base, factor)
        total = None if shift is None else _rounded(shift, binding.var.tensor_info.dtype)
        if weight is None or (shift is not None and total is None):
            return None
        for var in previous:
            self._drop(var)
        self._emit(
            binding.var,
            base.replace(args=(base.args[0], weight, *base.args[2:])),
            total,
            result.axis,
        )
        return True

    def _affine(self, value: ir.GraphExpr) -> Affine | None:
        """Match a call as base·factor + shift along one axis."""
        if _is_batch_norm(value):
            assert isinstance(value, ir.GraphCall)
            return _of_batch_norm(value)
        if not _is_op(value, "add", "subtract", "multiply", "divide"):
            return None
        assert isinstance(value, ir.GraphCall)
        return _of_arithmetic(value)

    def _producer(
        self, found: Affine
    ) -> tuple[ir.GraphCall | None, Array | None, list[ir.GraphVar]]:
        """The product with constant weights behind `found.base`, its bias, variables between."""
        names: list[ir.GraphVar] = []
        bias: Array | None = None
        base = found.base
        while isinstance(base, ir.GraphVar) and self.uses[base] == 1:
            value = self.values.get(base)
            names.append(base)
            if _channel_axis(value) == found.axis and isinstance(value, ir.GraphCall):
                own = value.args[2] if len(value.args) == 3 else None
                if isinstance(own, ir.Constant):
                    bias = _wide(own) if bias is None else bias + _wide(own)
                    value = value.replace(args=value.args[:2])
                return value, bias, names
            inner = self._affine(value) if value is not None and bias is None else None
            if inner is None or inner.factor is not None or inner.axis != found.axis:
                return None, None, []
            bias, base = inner.shift, inner.base
        return None, None, []

    # ------------------------------------------------------------------------------- rewriting
    def _drop(self, var: ir.GraphVar) -> None:
        """Remove a binding whose only reader has been folded."""
        self.bindings = [
            b for b in self.bindings if not (isinstance(b, ir.VarBinding) and b.var is var)
        ]

    def _emit(
        self, var: ir.GraphVar, call: ir.GraphCall, shift: ir.Constant | None, axis: int
    ) -> None:
        """Bind `var` to call + shift; with a shift, the product is bound to a variable first."""
        if shift is None:
            self._bind(var, call)
            return
        product = ir.GraphVar(f"{var.name}_product", True, info=call.info)
        self._bind(product, call)
        after = var.tensor_info.rank - 1 - axis
        self._bind(var, self._call("add", product, _spread(shift, after)))
        self.uses[product] = 1

    def _as_arithmetic(self, binding: ir.VarBinding) -> bool | None:
        """Rewrite batch norm of other values as elementwise operations with constants."""
        call = binding.value
        assert isinstance(call, ir.GraphCall)
        result, attrs, info = _of_batch_norm(call), _attrs(call), binding.var.tensor_info
        factor = None if result.factor is None else _rounded(result.factor, info.dtype)
        _, beta, mean, _ = call.args[1:]
        if factor is None or not isinstance(mean, ir.Constant) or not isinstance(beta, ir.Constant):
            return None
        steps = [("subtract", mean), ("multiply", factor)]
        steps += [("add", beta)] if attrs["center"] else []
        value: ir.GraphExpr = call.args[0]
        for number, (name, vector) in enumerate(steps, 1):
            step = self._call(name, value, _spread(vector, info.rank - 1 - result.axis))
            last = number == len(steps)
            var = (
                binding.var
                if last
                else ir.GraphVar(f"{binding.var.name}_{name}", True, info=step.info)
            )
            self._bind(var, step)
            value = var
            self.uses[var] += 0 if last else 1
        return True

    def _call(self, name: str, *args: ir.GraphExpr) -> ir.GraphCall:
        call = ir.GraphCall(ir.OpRef(name), args, {})
        return call.replace(info=deduce_call(call, self.analyzer, None))

    def _bind(self, var: ir.GraphVar, value: ir.GraphCall) -> None:
        self.values[var] = value
        self.bindings.append(ir.VarBinding(var, value))


def _operands(value: ir.GraphExpr) -> list[ir.GraphVar]:
    """Variables that a value reads, with repetition."""
    if isinstance(value, ir.GraphCall):
        return [v for a in value.args for v in _operands(a)]
    return [value] if isinstance(value, ir.GraphVar) else used_vars(value)


# ------------------------------------------------------------------------------- affine operators
def _is_batch_norm(value: Any) -> bool:
    return _is_op(value, "nn.batch_norm") and all(
        isinstance(a, ir.Constant) for a in value.args[1:]
    )


def _wide(value: ir.Constant) -> Array:
    return value.data.astype(np.float64)


def _of_batch_norm(call: ir.GraphCall) -> Affine:
    attrs = _attrs(call)
    gamma, beta, mean, variance = (_wide(a) for a in call.args[1:] if isinstance(a, ir.Constant))
    with np.errstate(all="ignore"):  # non-finite results are detected later and not folded
        factor = 1.0 / np.sqrt(variance + float(attrs["epsilon"]))
        factor = factor * gamma if attrs["scale"] else factor
        shift = -mean * factor
    rank = call.args[0].tensor_info.rank
    return Affine(
        call.args[0], attrs["axis"] % rank, factor, shift + beta if attrs["center"] else shift
    )


def _of_arithmetic(call: ir.GraphCall) -> Affine | None:
    """Match `x op constant`, where the constant varies along exactly one axis."""
    name, attrs = _name(call), _attrs(call)
    if len(call.args) != 2 or attrs["scalar"] is not None:
        return None
    a, b = call.args
    if isinstance(a, ir.Constant) and name in ("add", "multiply"):
        a, b = b, a
    if not isinstance(b, ir.Constant) or isinstance(a, ir.Constant):
        return None
    rank, dtype = a.tensor_info.rank, a.tensor_info.dtype
    if dtype is None or not dtype.is_float or call.tensor_info.rank != rank or b.data.ndim > rank:
        return None
    long = [k for k, size in enumerate(b.data.shape) if size != 1]
    if len(long) != 1:
        return None
    axis = long[0] + rank - b.data.ndim
    vector = _wide(b).reshape(-1)
    shape = a.tensor_info.shape
    if shape is None or ir.const_int(shape[axis]) != vector.size:
        return None  # the constant broadcasts an axis of size one
    if name in ("add", "subtract"):
        return Affine(a, axis, None, vector if name == "add" else -vector)
    with np.errstate(all="ignore"):
        return Affine(a, axis, vector if name == "multiply" else 1.0 / vector, None)


# ------------------------------------------------------------------------------ products, weights
def _conv_layout(call: ir.GraphCall) -> str:
    attrs = _attrs(call)
    return attrs["out_layout"] or attrs["data_layout"]


def _channel_axis(value: Any) -> int | None:
    """The output-channel axis of a product with constant weights; None for other values."""
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return None
    if not all(isinstance(a, ir.Constant) for a in value.args[1:]) or len(value.args) < 2:
        return None
    dtype = value.tensor_info.dtype
    if dtype is None or dtype is not value.args[1].tensor_info.dtype or not dtype.is_float:
        return None
    if value.op.name.startswith("nn.conv") and len(value.args) == 2:
        return _conv_layout(value).index("C")
    if value.op.name == "linear" or (
        value.op.name == "matmul" and value.args[1].tensor_info.rank == 2
    ):
        return value.tensor_info.rank - 1
    return None


def _scaled(call: ir.GraphCall, factor: Array | None) -> ir.Constant | None:
    """The weights of a product, multiplied by a factor per output channel."""
    weight = call.args[1]
    assert isinstance(weight, ir.Constant)
    if factor is None:
        return weight
    data = _wide(weight)
    if _name(call) == "matmul":
        return _rounded(data * factor, weight.tensor_info.dtype, weight.name)
    if _name(call) == "linear":
        return _rounded(data * factor[:, None], weight.tensor_info.dtype, weight.name)
    layout: str = _attrs(call)["kernel_layout"]
    if _name(call).endswith("_transpose"):
        # Input channel i belongs to group i // (I / groups), whose outputs are O channels each.
        groups: int = _attrs(call)["groups"]
        each = np.repeat(factor.reshape(groups, -1), data.shape[layout.index("I")] // groups, 0)
        order = ("I", "O")
    else:
        each, order = factor[:, None], ("O", "I")
    full = each.reshape(*each.shape, *[1] * (data.ndim - 2))
    letters = [*order, *(letter for letter in layout if letter not in "OI")]
    full = np.transpose(full, [letters.index(letter) for letter in layout])
    return _rounded(data * full, weight.tensor_info.dtype, weight.name)


def _rounded(value: Array, dtype: ir.DType | None, name: str = "") -> ir.Constant | None:
    """A constant of the given type; None if the value is not finite in it."""
    if dtype is None:
        return None
    with np.errstate(all="ignore"):
        data = value.astype(dtype.numpy())
    finite = np.isfinite(data if data.dtype.kind == "f" else data.astype(np.float64))
    return constant(data, name) if finite.all() else None


def _spread(vector: ir.Constant, after: int) -> ir.Constant:
    """Reshape a vector to broadcast along the axis that `after` axes follow."""
    return constant(vector.data.reshape((-1, *[1] * after)), vector.name)
