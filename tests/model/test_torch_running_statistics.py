"""Norms that update running statistics, which their schemas do not declare, and changed parameters:
both are state, equal to eager mode over calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw

ROWS = {"x": {0: Dim("n", min=2, max=9)}}


class Norm(nn.Module):
    mean: Tensor
    var: Tensor

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def batch(self: Any, x: Tensor) -> Any:
    return F.batch_norm(x, self.mean, self.var, training=True, momentum=0.3)


def instance(self: Any, x: Tensor) -> Any:
    return F.instance_norm(x, self.mean, self.var, None, None, True, 0.3)


def of_parts(self: Any, x: Tensor) -> Any:
    F.batch_norm(x[:, :2], self.mean[1:3], self.var[:2], training=True, momentum=0.3)
    return self.mean * 2


def cast(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return batch(self, x), F.instance_norm(x)


def below(self: Any, x: Tensor) -> Any:
    return torch.native_batch_norm(x, None, None, self.mean, self.var, True, 0.3, 1e-5)[0]


def three_calls(exe: Any, model: Any, *shape: int) -> None:
    for count in (3, 2, 5):
        x = torch.randn(count, *shape)
        with torch.no_grad():
            wanted = copy.deepcopy(model(x))
        torch.testing.assert_close(exe(x), wanted, rtol=1e-4, atol=1e-5)
        held = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        for name, array in exe.state.items():
            torch.testing.assert_close(array, held[name].detach())


@pytest.mark.parametrize("norm", [batch, instance, of_parts, cast, below])
def test_running_statistics_are_state(norm: Any, tmp_path: Path) -> None:
    model, x = Norm(norm), torch.randn(3, 4, 5)
    exe = bw.compile(model, (x,), dynamic_shapes=ROWS)
    assert set(exe.state) == {"mean", "var"}
    exe.save(tmp_path / "norm.bwx")
    three_calls(exe, copy.deepcopy(model), 4, 5)
    three_calls(bw.load(tmp_path / "norm.bwx"), model, 4, 5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # by run_decompositions
@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.BatchNorm1d])
@pytest.mark.parametrize("decomposed", [False, True])
def test_layers_exported_in_training_mode(kind: Any, decomposed: bool) -> None:
    model = kind(4, track_running_stats=True).train()
    program = torch.export.export(
        copy.deepcopy(model), (torch.randn(3, 4, 5),), dynamic_shapes=({0: Dim("n", min=2)},)
    )
    exe = bw.compile(program.run_decompositions() if decomposed else program)
    three_calls(exe, model, 4, 5)
    assert not torch.equal(exe.state["running_mean"], torch.zeros(4))


@pytest.mark.parametrize("function", [F.batch_norm, F.instance_norm])
def test_statistics_that_are_arguments_are_written(function: Any) -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
            return function(x, mean, var, None, None, True, 0.3)

    given = torch.randn(3, 4, 5), torch.zeros(4), torch.ones(4)
    exe = bw.compile(Given(), given)
    wanted, found = copy.deepcopy(given), copy.deepcopy(given)
    for _ in range(2):
        torch.testing.assert_close(exe(*found), Given()(*wanted))
        torch.testing.assert_close(found, wanted)
    assert wanted[1].any()


def test_statistics_that_a_branch_would_lose_are_refused() -> None:
    def branches(self: Any, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: batch(self, x), lambda x: x * 2, (x,))

    with pytest.raises(bw.ImporterError, match=r"BW512.*in a branch or loop"):
        bw.compile(Norm(branches), (torch.randn(3, 4, 5),))


def test_the_framework_is_not_called_for_hidden_writes() -> None:
    def statistics(self: Any, x: Tensor) -> Any:
        return torch.batch_norm_update_stats(x, self.mean, self.var, 0.3)

    with pytest.raises(bw.ImporterError, match="BW501"):
        bw.compile(Norm(statistics), (torch.randn(3, 4, 5),))


class Weights(nn.Module):
    """A parameter, and other names of its memory."""

    row: Tensor

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.change = change
        self.weight = nn.Parameter(torch.arange(4.0))
        if change is not of_the_parameter:
            self.register_buffer("row", self.weight.data)
            self.register_buffer("one", self.weight.data[1])
            self.tied = nn.Parameter(self.row)
            self.plain = self.row[2:]

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.change(self, x)
        return self.weight * 2


def of_the_parameter(self: Any, x: Tensor) -> None:
    self.weight.add_(x[0])


def of_the_buffer(self: Any, x: Tensor) -> None:
    self.row.add_(x[0])


def of_an_element(self: Any, x: Tensor) -> None:
    self.one.sub_(x[0, 0])


def of_another_parameter(self: Any, x: Tensor) -> None:
    self.tied.mul_(x[0])


def of_an_attribute(self: Any, x: Tensor) -> None:
    self.plain.add_(x[0, 0])


CHANGES = [
    of_the_parameter, of_the_buffer, of_an_element, of_another_parameter, of_an_attribute,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_are_state(change: Any) -> None:
    exe = bw.compile(Weights(change), (torch.ones(2, 4),), dynamic_shapes=ROWS)
    three_calls(exe, Weights(change), 4)
    assert set(exe.state) == {"weight"}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # by run_decompositions
def test_changed_parameters_of_a_decomposed_program(tmp_path: Path) -> None:
    with torch.no_grad():
        program = torch.export.export(Weights(of_the_parameter), (torch.ones(2, 4),))
        exe = bw.compile(program.run_decompositions())
    exe.save(tmp_path / "weights.bwx")
    for each in (exe, bw.load(tmp_path / "weights.bwx")):
        found = [each(torch.ones(2, 4)).tolist() for _ in range(2)]
        assert found == [[2, 4, 6, 8], [4, 6, 8, 10]]


@pytest.mark.filterwarnings("ignore:.*BW513")
def test_an_embedding_with_a_largest_norm() -> None:
    model, places = nn.Embedding(5, 4, max_norm=1.0), torch.tensor([1, 2, 1])
    exe = bw.compile(copy.deepcopy(model), (places,))
    for _ in range(2):
        torch.testing.assert_close(exe(places), model(places).detach())
        torch.testing.assert_close(exe.state["weight"], model.weight.detach())


def test_tensors_with_a_negative_bit() -> None:
    class Negative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            pairs = torch.randn(3, dtype=torch.complex64)
            self.register_buffer("imag", pairs.imag)
            self.register_buffer("other", pairs.conj().imag)  # the same elements, negated
            self.register_buffer("sum", torch.Tensor(vars(torch)["_neg_view"](torch.ones(3))))
            self.weight = nn.Parameter(vars(torch)["_neg_view"](torch.ones(3)))

        def forward(self, x: Tensor) -> Any:
            self.sum.add_(x[0])  # type: ignore[operator]
            return self.imag * x, self.other + x, self.sum * self.weight

    exe = bw.compile(Negative(), (torch.ones(2, 3),), dynamic_shapes=ROWS)
    three_calls(exe, Negative(), 3)


def test_an_output_of_another_kind_is_refused() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    from torch.export.graph_signature import OutputKind

    program = torch.export.export(Twice(), (torch.ones(3),))
    program.graph_signature.output_specs[0].kind = OutputKind.TOKEN
    with pytest.raises(bw.ImporterError, match=r"BW506.*TOKEN"):
        bw.compile(program)
