"""Models that cannot be compiled: everything that stands in the way is listed at once."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import blockwright as bw
from blockwright.frontend.torch import warn_of_training


class Spectral(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)


class Uncovered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spectral = Spectral()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.igamma(x, x + 1)
        return self.spectral(total).sum() + torch.igamma(total, x).max() + x.exp().sum()


def test_all_uncovered_operators_are_listed_with_their_places() -> None:
    with pytest.raises(bw.ImporterError) as caught:
        bw.compile(Uncovered(), (torch.randn(3, 8),), options={"fallback": "error"})
    error = caught.value
    assert error.code == "BW501"
    text = str(error)
    assert "aten._linalg_svd.default is not covered (1 uses)" in text
    assert "prims.igamma.default is not covered (2 uses)" in text
    assert "aten.exp" not in text
    assert "spectral" in text
    assert "torch.linalg.svdvals(x)" in text
    assert "total = torch.igamma(x, x + 1)" in text
    assert re.search(r"test_torch_uncovered\.py:\d+: total", text)
    assert "help: " in text


class OneStranger(nn.Module):
    """A layer of operators that have rows, and one without a row in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.roll(self.norm(x), 3, 1)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return nn.functional.gelu(self.linear(x)).repeat(1, 2, 1)


def test_an_operator_without_a_row_is_decomposed_alone(compare_with_torch: Any) -> None:
    model, x = OneStranger().eval(), torch.randn(2, 5, 8)
    exe = bw.compile(model, (x,))
    compare_with_torch(exe, model, [x])
    graph = exe.show("graph")
    for whole in ("layer_norm", "attention", "linear", "gelu"):
        assert f"R.{whole}(" in graph


class NestedOutput(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"sum": x.sum(0), "parts": (x * 2, [x + 1])}


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile(Spectral())
    assert caught.value.code == "BW908"


@pytest.mark.parametrize("thing", [None, 3, "model.tflite", object(), lambda x: x, [1, 2]])
def test_other_things_are_no_models(thing: Any) -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile(thing)
    assert caught.value.code == "BW902"


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile(Spectral(), (torch.randn(3),), effort="hard")
    assert caught.value.code == "BW901"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"disabled_rule": ["gemm"]}, "'disabled_strategies'"),
        ({"disabled_strategies": ["elementwize"]}, "'elementwise'"),
        ({"disabled_strategies": "gemm"}, "list"),
        ({"sanitise": ("bounds",)}, "'sanitize'"),
        ({"fallback": "numpy"}, "framework, error"),
    ],
)
def test_options_and_rules_that_there_are_not_are_refused(options: Any, says: str) -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile(Spectral(), (torch.randn(3),), options=options)
    assert caught.value.code == "BW928"
    assert says in str(caught.value)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(bw.TargetError):
        bw.compile(NestedOutput(), (torch.randn(3),), target="x86-65")


def test_training_mode_is_left_before_export(compile_torch: Any, compare_with_torch: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    with pytest.warns(bw.BlockwrightWarning, match=r"Affected: 1 \(Dropout\)") as caught:
        exe = bw.compile(model, (torch.randn(3, 8),))
    assert [getattr(w.message, "code", None) for w in caught] == ["BW511"]
    compare_with_torch(exe, model.eval(), [torch.randn(3, 8)])


def test_parts_that_depend_on_the_mode_are_named() -> None:
    tracked = nn.InstanceNorm1d(4, track_running_stats=True)
    parts = [
        nn.BatchNorm1d(4),
        tracked,
        nn.Dropout2d(0.1),
        nn.RReLU(),
        nn.LSTM(4, 4, 2, dropout=0.1),
    ]
    others = [
        nn.InstanceNorm1d(4),
        nn.Dropout(0.0),
        nn.LSTM(4, 4),
        nn.LayerNorm(4),
        nn.BatchNorm1d(4).eval(),
    ]
    with pytest.warns(bw.BlockwrightWarning, match=r"0 \(BatchNorm1d\), .* and 2 more"):
        warn_of_training(nn.ModuleList([*parts, *others]))
    warn_of_training(nn.ModuleList(others))


def test_one_tensor_given_for_two_inputs_is_two_inputs(compare_with_torch: Any) -> None:
    """The exporter alone would take them for one and ignore the first."""

    class Difference(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - 2 * y

    same = torch.randn(3)
    exe = bw.compile(Difference(), (same, same))
    compare_with_torch(exe, Difference(), [torch.randn(3), torch.randn(3)])


class Changes(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("seen", torch.zeros(4))
        self.plain = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "attribute":
            self.plain.add_(x.sum(0))
        elif self.what == "mode":
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return x + self.seen.to(torch.complex64 if self.what == "type" else x.dtype)


@pytest.mark.parametrize(
    ("what", "code", "line", "help"),
    [
        ("attribute", "BW512", "self.plain.add_(x.sum(0))", "register_buffer"),
        ("mode", "BW507", "dropout_p=0.5", "training=self.training"),
    ],
)
def test_refusals_name_the_line_of_the_model(what: str, code: str, line: str, help: str) -> None:
    with pytest.raises(bw.ImporterError) as found:
        bw.compile(Changes(what), (torch.randn(3, 4),), options={"fallback": "error"})
    assert found.value.code == code
    assert f"{Path(__file__).name}:" in str(found.value)
    assert line in str(found.value)
    assert help in (found.value.help or "")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_an_input_of_a_type_that_there_is_not_is_named() -> None:
    with pytest.raises(bw.ImporterError, match=r"BW504.*the input x: .*half precision"):
        bw.compile(Changes(""), (torch.randn(3, 4, dtype=torch.complex32),))


def test_options_of_another_type_are_refused() -> None:
    x = torch.randn(3, 4)
    for options in ({"winograd": "no"}, {"log_queries": 1}, {"instruments": print}):
        with pytest.raises(bw.OptionError, match="BW928"):
            bw.compile(Changes(""), (x,), options=options)
    with pytest.raises(bw.OptionError, match="BW908"):
        bw.compile(Changes(""), (x.numpy(),))


class BesideSizes(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x, x.shape[0])


def test_results_that_are_not_tensors_are_refused() -> None:
    shapes = ({0: torch.export.Dim("n", min=2, max=99)},)
    for call, what in (
        (lambda x, n: (x, n > 6), "condition on sizes"),
        (lambda x, n: (x, n * 2), "number computed from sizes"),
    ):
        with pytest.raises(bw.ImporterError, match=rf"BW506.*{what}"):
            bw.compile(BesideSizes(call), (torch.randn(6, 5),), dynamic_shapes=shapes)


def test_attributes_that_depend_on_sizes_are_refused() -> None:
    shapes = ({0: torch.export.Dim("n", min=2, max=99)},)
    model = BesideSizes(lambda x, n: nn.functional.elu(x, alpha=n / 3))
    with pytest.raises(bw.ImporterError, match=r"elu: alpha is .* not a number"):
        bw.compile(model, (torch.randn(6, 5),), dynamic_shapes=shapes)


class Stored(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("stored", values)

    def forward(self, x: torch.Tensor) -> Any:
        stored = self.stored
        assert isinstance(stored, torch.Tensor)
        return x * stored.float(), stored


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.bfloat16])
def test_stored_tensors_of_types_that_numpy_lacks(dtype: torch.dtype) -> None:
    x, values = torch.randn(3, 5), torch.tensor([0.0, -0.0, 0.1, -300.0, float("nan")]).to(dtype)
    product, stored = bw.compile(Stored(values), (x,))(x)
    assert stored.dtype is dtype
    torch.testing.assert_close(stored.float(), values.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(product, x * values.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "values",
    [
        torch.empty(5, dtype=vars(torch)["uint4"]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_stored_tensors_of_other_types_are_named(values: torch.Tensor) -> None:
    model = Stored(values)
    model.forward = lambda x: (x, model.stored)
    with pytest.raises(bw.ImporterError, match=r"BW504.*'stored'.*element type") as caught:
        bw.compile(model, (torch.randn(3, 5),), options={"fallback": "error"})
    assert caught.value.help


@pytest.mark.parametrize("fallback", ["error", "framework"])
def test_tensors_of_quantized_types_are_refused(fallback: str) -> None:
    class Quantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()

    with pytest.raises(bw.ImporterError, match=r"BW504.*quint8") as caught:
        bw.compile(Quantized(), (torch.randn(3, 5),), options={"fallback": fallback})
    assert caught.value.help
