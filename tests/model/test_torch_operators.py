"""The operator table is the importer's table: every overload a row declares answers like PyTorch.

The calls are made from the samples of the rows: an attribute is given as the argument that sets it.
Rows with a converter of their own have calls written out in `OWN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw
from blockwright.frontend.torch import (
    convert_arithmetic,
    convert_gradients,
    convert_images,
    convert_layers,
    convert_random,
    convert_run_time_sizes,
    convert_shapes,
    convert_sizes,
    converters,
)
from blockwright.ops.row import OpRow, Sample
from blockwright.ops.table import OPERATORS

FAMILIES = (
    converters.TABLE,
    convert_arithmetic.TABLE,
    convert_gradients.TABLE,
    convert_images.TABLE,
    convert_layers.TABLE,
    convert_random.TABLE,
    convert_run_time_sizes.TABLE,
    convert_shapes.TABLE,
    convert_sizes.TABLE,
)
OWN_ROWS = {name for family in FAMILIES for name in family.rows}
DECLARED = [(row, name) for row in OPERATORS.values() for name in row.torch]


def batches(items: Sequence[Any]) -> list[list[Any]]:
    """The items in lists of twelve: what one model computes."""
    return [list(items[start : start + 12]) for start in range(0, len(items), 12)]


def overload(name: str) -> Any:
    """The overload of that name; of some operators there are only some in place."""
    _, operator, which = name.split(".")
    found = getattr(getattr(torch.ops.aten, operator), which, None)
    return getattr(getattr(torch.ops.aten, f"{operator}_"), which) if found is None else found


class Calls(torch.nn.Module):
    """Calls of overloads, each on tensors of its own."""

    def __init__(self, calls: Sequence[tuple[Any, list[Any], dict[str, Any]]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        given = iter(tensors)
        out: list[Any] = []
        for function, args, kwargs in self.calls:
            filled: list[Any] = []
            for value in args:
                if is_tensor_list(value):
                    filled.append([next(given) for _ in value])
                else:
                    filled.append(next(given) if isinstance(value, torch.Tensor) else value)
            out.append(function(*filled, **kwargs))
        return tuple(out)


def is_tensor_list(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, torch.Tensor) for v in listed(value))


def listed(value: Any) -> list[Any]:
    return list(value)


def inputs_of(calls: Sequence[tuple[Any, list[Any], dict[str, Any]]]) -> list[torch.Tensor]:
    found: list[Any] = []
    for _, args, _ in calls:
        for value in args:
            found += value if is_tensor_list(value) else [value]
    return [v for v in found if isinstance(v, torch.Tensor)]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in listed(value) for leaf in leaves(item)]
    return [value]


_NAN_AT_INFINITY = ("aten.i0.default", "aten.special_i0.default", "aten.special_i1.default")
"""Operators that have a value there; PyTorch's kernels multiply infinity by 0."""


def agree(calls: Sequence[tuple[Any, list[Any], dict[str, Any]]]) -> None:
    """Compile all calls as one model and compare with PyTorch, bit by bit up to rounding."""
    model, inputs = Calls(calls), inputs_of(calls)
    found = bw.compile(model, inputs)(*inputs)
    for (function, args, kwargs), ours in zip(calls, found, strict=True):
        theirs = function(*args, **kwargs)
        for got, want in zip(leaves(ours), leaves(theirs), strict=True):
            assert got.dtype == want.dtype, function
            assert got.shape == want.shape, function
            tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(want.dtype, 2e-5)
            close = torch.isclose(got, want, rtol=tolerance, atol=tolerance / 4, equal_nan=True)
            if str(function) in _NAN_AT_INFINITY:
                close |= args[0].isinf() & want.isnan()
            assert close.all(), f"{function} {args} {kwargs}: {got}, not {want}"


def as_tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)


def call_of(row: OpRow, name: str, sample: Sample) -> tuple[Any, list[Any], dict[str, Any]] | None:
    """The sample as a call of the overload; None where the overload cannot say it."""
    rng = np.random.default_rng(0)
    tensors: list[Any] = [as_tensor(a(rng)) for a in sample.args]
    if row.name == "gelu":  # of an infinity, PyTorch's vector code gives NaN
        tensors = [t.clamp(-30, 30) for t in tensors]
    attrs = dict(sample.attrs)
    scalar, side = attrs.pop("scalar", None), attrs.pop("scalar_side", "right")
    if scalar is not None:
        tensors.insert(0 if side == "left" else 1, scalar)
    function = overload(name)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    names: dict[str, str | None] = {"axes": "dim", "axis": "dim", "keepdims": "keepdim"}
    names |= {attribute: given for given, attribute in row.torch_call.attrs.items()}
    for argument in function._schema.arguments:
        matching = [k for k in attrs if argument.name in (k, names.get(k))]
        if matching:
            kwargs[str(argument.name)] = attrs.pop(matching[0])
        elif tensors and not argument.kwarg_only:
            wanted, value = argument.type.kind(), tensors.pop(0)
            if (wanted == "TensorType") != isinstance(value, torch.Tensor):
                return None
            args.append(value)
        elif not argument.has_default_value():
            return None
    return None if attrs or tensors else (function, args, kwargs)


def accepted(call: tuple[Any, list[Any], dict[str, Any]]) -> bool:
    try:
        call[0](*call[1], **call[2])
    except (RuntimeError, IndexError, TypeError):
        return False
    return True


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def i(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(0, high, shape)


OWN: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {
    "aten.add.Tensor": [([f(3, 4), f(4)], {"alpha": 2}), ([i(3), 2.5], {})],
    "aten.add.Scalar": [([f(3), 2], {"alpha": 3})],
    "aten.sub.Tensor": [([f(3, 4), f(4)], {"alpha": 2}), ([i(3), i(3)], {})],
    "aten.sub.Scalar": [([f(3), 2], {})],
    "aten.clamp.default": [([f(3), -0.5, 0.5], {}), ([i(4), 1], {})],
    "aten.clip.default": [([f(3), -0.5, 0.5], {}), ([f(3)], {"max": 0.25})],
    "aten.clamp_min.default": [([f(3), 0.25], {}), ([i(4), 2], {})],
    "aten.clamp_max.default": [([f(3), 0.25], {}), ([i(4), 2], {})],
    "aten.hardtanh.default": [([f(3)], {}), ([f(3), -0.5, 0.5], {})],
    "aten.pow.Tensor_Tensor": [([f(3).abs(), f(3)], {})],
    "aten.pow.Tensor_Scalar": [([f(3), 2], {}), ([f(3).abs(), 0.5], {}), ([i(4), 2.0], {})],
    "aten.pow.Scalar": [([2.0, f(3)], {})],
    "aten.where.self": [([i(3, high=2).bool(), f(3), f(3)], {})],
    "aten.where.ScalarOther": [([i(3, high=2).bool(), f(3), 2.0], {})],
    "aten.where.ScalarSelf": [([i(3, high=2).bool(), 1.0, f(3)], {})],
    "aten.where.Scalar": [([i(3, high=2).bool(), 1.0, 2.0], {})],
    "aten.to.dtype": [([f(3), torch.int32], {})],
    "aten.to.device": [([f(3), torch.device("cpu"), torch.int64], {})],
    "aten.to.dtype_layout": [([f(3)], {"dtype": torch.float64})],
    "aten.to.other": [([f(3), i(2)], {})],
    "aten._to_copy.default": [([f(3)], {"dtype": torch.bool})],
    "aten.type_as.default": [([f(3), i(2)], {})],
    "aten.expand.default": [([f(3, 1), [2, -1, 4]], {})],
    "aten.broadcast_to.default": [([f(3, 1), [2, 3, 4]], {})],
    "aten.expand_as.default": [([f(3, 1), f(3, 4)], {})],
    "aten.cat.default": [([[f(3, 2), f(1, 2)]], {}), ([[f(3), i(2)]], {})],
    "aten.concat.default": [([[f(3, 2), f(3, 1)], -1], {})],
    "aten.unsqueeze.default": [([f(3), -1], {})],
    "aten.flatten.using_ints": [([f(2, 3, 4), 1], {})],
    "aten.squeeze.default": [([f(1, 3, 1)], {})],
    "aten.squeeze.dim": [([f(1, 3, 1), 0], {})],
    "aten.squeeze.dims": [([f(1, 3, 1), [0, 2]], {})],
    "aten.reshape.default": [([f(4, 3), [2, -1]], {})],
    "aten.view.default": [([f(4, 3), [2, -1]], {})],
    "aten._unsafe_view.default": [([f(4, 3), [2, 6]], {})],
    "aten.permute.default": [([f(2, 3, 4), [2, 0, 1]], {})],
    "aten.slice.Tensor": [([f(7), 0, 1, -1, 2], {})],
    "aten.repeat_interleave.self_int": [([f(2, 3), 2], {}), ([f(2, 3), 3, 1], {})],
    "aten.gather.default": [([f(3, 4), 1, i(3, 2, high=4)], {}), ([f(), 0, i(1, high=1)], {}),
                            ([f(3), 0, i(0, 2)], {})],
    "aten.index_select.default": [([f(3, 4), 1, i(2, high=4)], {}), ([f(), 0, i(1, high=1)], {})],
    "aten.index.Tensor": [([f(3, 4), [i(2, high=3)]], {})],
    "aten.matmul.default": [([f(2, 3, 4), f(4, 5)], {})],
    "aten.mm.default": [([f(3, 4), f(4, 5)], {})],
    "aten.bmm.default": [([f(2, 3, 4), f(2, 4, 5)], {})],
    "aten.mv.default": [([f(3, 4), f(4)], {})],
    "aten.linear.default": [([f(2, 4), f(3, 4), f(3)], {})],
    "aten.scaled_dot_product_attention.default": [([f(1, 2, 5, 8), f(1, 2, 6, 8), f(1, 2, 6, 8)],
                                                   {})],
    "aten.layer_norm.default": [([f(2, 8), [8], f(8), f(8)], {})],
    "aten.rms_norm.default": [([f(2, 8), [8], f(8)], {})],
    "aten.softmax.int": [([f(2, 8), -1], {})],
    "aten._softmax.default": [([f(2, 8), 0, False], {})],
    "aten.log_softmax.int": [([f(2, 8), -1], {})],
    "aten._log_softmax.default": [([f(2, 8), 0, False], {})],
    "aten.embedding.default": [([f(5, 3), i(2, 2, high=5)], {})],
    "aten.arange.default": [([7], {}), ([2.5], {}), ([5], {"dtype": torch.float32}),
                            ([3.1], {"dtype": torch.int64}), ([3.1], {"dtype": torch.int32})],
    "aten.arange.start": [([2, 7], {}), ([0.5, 3], {})],
    "aten.arange.start_step": [([7, 0, -2], {}), ([0, 1, 0.25], {}),
                               ([0.1, -7.9, -4.0], {"dtype": torch.int64}),
                               ([0.1, 5, 1.5], {"dtype": torch.int32})],
    "aten.full.default": [([[2, 3], 1.5], {}), ([[2], True], {})],
    "aten.full_like.default": [([f(2), 3], {})],
    "aten.ones.default": [([[2, 3]], {})],
    "aten.ones_like.default": [([i(2)], {})],
    "aten.zeros.default": [([[2, 3]], {"dtype": torch.int32})],
    "aten.zeros_like.default": [([f(2)], {"dtype": torch.bool})],
    "aten.elu.default": [([f(5), 0.5], {})],
    "aten.prelu.default": [([f(2, 3), f(3)], {})],
    "aten.constant_pad_nd.default": [([f(2, 3), [1, -1], 2.0], {}),
                                     ([f(3) > 0, [1, 1]], {}), ([i(3), [2, 1], 1.5], {})],
    "aten.batch_norm.default": [([f(2, 3, 4), f(3), f(3), f(3), f(3).abs(), False, 0.1, 1e-5,
                                  False], {})],
    "aten.grid_sampler_2d.default": [([f(2, 3, 5, 4), f(2, 2, 3, 2), 2, 1, True], {})],
    "aten.grid_sampler_3d.default": [([f(1, 2, 3, 4, 5), f(1, 2, 3, 2, 3), 0, 2, False], {})],
    "aten.group_norm.default": [([f(2, 4, 3), 2, f(4), f(4)], {})],
    "aten.instance_norm.default": [([f(2, 4, 3), f(4), f(4), None, None, True, 0.1, 1e-5, False],
                                    {})],
}  # fmt: skip
for _rank, _x in ((1, (2, 3, 7)), (2, (2, 3, 7, 6)), (3, (1, 2, 5, 6, 4))):
    _kernel = (4, _x[1], *[2] * _rank)
    _transposed = (_x[1], 4, *[2] * _rank)
    _which = "input" if _rank > 1 else "default"
    OWN[f"aten.conv{_rank}d.default"] = [([f(*_x), f(*_kernel), f(4)], {})]
    OWN[f"aten.conv_transpose{_rank}d.{_which}"] = [([f(*_x), f(*_transposed)], {})]
    for _name in ("max_pool", "avg_pool"):
        OWN[f"aten.{_name}{_rank}d.default"] = [([f(*_x), [2] * _rank], {})]
    for _name in ("adaptive_avg_pool", "_adaptive_avg_pool"):
        OWN[f"aten.{_name}{_rank}d.default"] = [([f(*_x), [2] * _rank], {})]


OWN["aten.nonzero.default"] = [([f(3, 4)], {}), ([f(5) > 0], {})]
OWN["aten.masked_select.default"] = [([f(3, 4), f(3, 4) > 0], {}), ([f(3, 4), f(4) > 0], {})]
OWN["aten._unique2.default"] = [([f(3, 4)], {}), ([f(6), True, True, True], {})]


def test_no_operator_is_listed_twice() -> None:
    declared = [name for _, name in DECLARED]
    composed = [name for family in FAMILIES for name in family.overloads]
    assert len(declared) == len(set(declared))
    assert len(composed) == len(set(composed))
    assert not set(declared) & set(composed)
    assert set(declared) <= set(converters.CONVERTERS)


def test_every_name_is_an_overload_of_pytorch() -> None:
    for name in converters.CONVERTERS:
        if name.startswith("aten.") and name.count(".") == 2:  # control flow has no overloads
            assert overload(name)._schema is not None


def test_converters_of_rows_belong_to_rows() -> None:
    assert set(OPERATORS) >= OWN_ROWS
    assert all(OPERATORS[name].torch for name in OWN_ROWS)


GENERIC = [(row, name) for row, name in DECLARED if row.name not in OWN_ROWS]
GROUPS = batches(GENERIC)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g[0][1])
def test_overloads_answer_like_pytorch_on_the_samples_of_their_row(group: Any) -> None:
    calls: list[tuple[Any, list[Any], dict[str, Any]]] = []
    for row, name in group:
        made = [call_of(row, name, sample) for sample in row.samples]
        fitting = [call for call in made if call is not None and accepted(call)]
        assert fitting, name
        calls += fitting
    agree(calls)


@pytest.mark.parametrize("names", batches(sorted(OWN)), ids=lambda g: g[0])
def test_overloads_of_rows_with_converters_answer_like_pytorch(names: list[str]) -> None:
    known = [name for name in names if name in converters.CONVERTERS]
    agree([(overload(name), args, kwargs) for name in known for args, kwargs in OWN[name]])


def test_the_calls_written_out_leave_no_overload_out() -> None:
    wanted = {name for row, name in DECLARED if row.name in OWN_ROWS}
    positions = {f"aten.adaptive_max_pool{rank}d.default" for rank in (1, 2, 3)}
    assert wanted - positions <= set(OWN)
