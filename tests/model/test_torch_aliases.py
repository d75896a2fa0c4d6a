"""Changes in place show through every name of the memory; results keep the model's structure."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import blockwright as bw


def through_dropout(x: torch.Tensor) -> Any:
    y = x * 2
    z = nn.functional.dropout(y, 0.5, training=False)
    z.add_(1)
    return y, z


def through_dropout_of_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    nn.functional.dropout(y[1:], 0.5, training=False).mul_(3)
    return y


def through_type_as(x: torch.Tensor) -> Any:
    y = x * 2
    y[1:].type_as(x).mul_(3)
    return y


def through_einsum(x: torch.Tensor) -> Any:
    y = x * 2
    torch.einsum("ij->ji", y).add_(1)
    return y


def through_meshgrid(x: torch.Tensor) -> Any:
    y = x * 2
    first = torch.meshgrid(y[0], y[1], indexing="ij")[0]
    y.add_(1)
    return first


def through_views_of_views(x: torch.Tensor) -> Any:
    y = x * 2
    view = y[1:].t()[2:]
    view.zero_()
    return y, view


def not_through_a_conversion(x: torch.Tensor) -> Any:
    y = x * 2
    z = y.double()
    z.add_(1)
    return y, z


def results_that_are_inputs(x: torch.Tensor) -> Any:
    return x, x[1:], x


@pytest.mark.parametrize("function", [
    through_dropout, through_dropout_of_a_view, through_type_as, through_einsum, through_meshgrid,
    through_views_of_views, not_through_a_conversion, results_that_are_inputs,
])  # fmt: skip
def test_a_change_shows_where_pytorch_shows_it(function: Any, agrees: Any) -> None:
    agrees(function, torch.randn(3, 4))


@pytest.mark.parametrize(
    ("offset", "axes", "shape"),
    [(0, (0, 1), (3, 4)), (1, (0, 1), (4, 3)), (-1, (-1, 1), (3, 2, 4))],
)
def test_changes_of_diagonals(
    offset: int, axes: tuple[int, int], shape: tuple[int, ...], agrees: Any
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.diagonal(offset, *axes).zero_()
        return y

    agrees(function, torch.randn(*shape))


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((4, 5), lambda y: y.unfold(1, 2, 2)),
        ((4, 5), lambda y: y.unfold(-1, 3, 4)[:, :, 1]),
        ((4, 5), lambda y: y.unfold(0, 2, 2).unfold(1, 2, 2)[1, 0]),
        ((4, 5), lambda y: y.unfold(0, 1, 2)),
        ((6,), lambda y: y.unfold(0, 1, 3)),
    ],
)
def test_changes_of_windows_leave_the_elements_between_them(
    shape: tuple[int, ...], windows: Any, agrees: Any
) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        windows(y).sub_(5)
        return y, windows(x).cos()

    agrees(function, torch.randn(*shape))


@pytest.mark.parametrize(
    "windows",
    [
        lambda y: y.unfold(1, 3, 2),
        lambda y: y.unfold(0, 2, 1)[:, :, 0],
        lambda y: y.unfold(1, 2, 3),
    ],
)
def test_changes_of_other_windows_are_refused(windows: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x * 2
            windows(y).zero_()
            return y

    with pytest.raises(bw.ImporterError, match="windows of `unfold`") as caught:
        bw.compile(Model(), (torch.randn(3, 5),))
    assert caught.value.code == "BW512"


def test_layers_in_place_stay_whole(compile_torch: Any) -> None:
    """Changing the fresh result of a layer needs no rewriting, which would take layers apart."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
    graph = compile_torch(model, (torch.randn(1, 2, 5, 5),)).show("graph")
    assert "R.nn.batch_norm(" in graph


@pytest.mark.parametrize("change", [lambda x: x.resize_(2, 2), lambda x: (x * 2).resize_(2, 2)])
def test_changes_that_do_not_fit_are_refused(change: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return change(x)

    with pytest.raises(bw.ImporterError) as caught:
        bw.compile(Model(), (torch.randn(3, 4),), options={"fallback": "error"})
    assert caught.value.code in ("BW501", "BW509", "BW512")


@pytest.mark.parametrize("change", [
    lambda y: y.expand(3, -1, -1).zero_(), lambda y: y.expand(3, -1, -1)[1].add_(1),
    lambda y: y.expand(3, -1, -1).narrow(0, 1, 1).squeeze(0).fill_(2),
    lambda y: torch.broadcast_tensors(y, torch.zeros(2, 1, 1))[0].zero_(),
])  # fmt: skip
def test_changes_of_elements_that_share_memory_are_refused(change: Any) -> None:
    """PyTorch's functional form adds up the changes of all of them: zeros become 2, 0, -2 here."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x - 1
            change(y)
            return y

    with pytest.raises(bw.ImporterError, match="share memory") as caught:
        bw.compile(Model(), (torch.randn(3, 4),))
    assert caught.value.code == "BW512"


def changed_copies(x: torch.Tensor) -> Any:
    y = x * 2
    copy, whole = y.expand(3, -1, -1).contiguous(), y.expand(3, -1, -1)
    copy[1:].add_(1)
    y[1:].mul_(3)
    return y, copy, whole


def test_copies_of_expanded_tensors_may_be_changed(agrees: Any) -> None:
    agrees(changed_copies, torch.randn(3, 4))


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


@dataclasses.dataclass
class Record:
    first: torch.Tensor
    second: torch.Tensor


torch.export.register_dataclass(Record)


def test_named_tuples_and_dicts_are_kept(agrees: Any) -> None:
    agrees(lambda x: Pair(x + 1, [x * 2, None, {"a": x}]), torch.randn(3))
    agrees(lambda x: torch.ops.aten.max.dim(x, 0), torch.randn(3, 4))


def test_dataclasses_are_kept(tmp_path: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Record:
            return Record(x + 1, x * 2)

    x = torch.randn(3)
    exe = bw.compile(Model(), (x,))
    exe.save(tmp_path / "model.bwx")
    for runnable in (exe, bw.load(tmp_path / "model.bwx")):
        found = runnable(x)
        assert type(found) is Record
        assert torch.equal(found.first, x + 1)
        assert torch.equal(found.second, x * 2)
    memory = Record(torch.empty(3), torch.empty(3))
    exe(x, out=memory)
    assert torch.equal(memory.second, x * 2)


def test_the_mode_of_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    model[0].eval()
    with pytest.warns(bw.BlockwrightWarning, match="training mode"):
        bw.compile(model, (torch.randn(2, 4),))
    assert [m.training for m in model.modules()] == [True, False, True]


def test_dropout_of_eval_mode_and_inputs_that_are_no_tensors() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, k: Any) -> Any:
            return torch.native_dropout(x, 0.5, False)[0] * k

    x = torch.randn(3)
    assert torch.equal(bw.compile(Model(), (x, 2))(x), x * 2)
    with pytest.raises(bw.ImporterError) as caught:
        bw.compile(Model(), (x, 2), dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
    assert caught.value.code == "BW504"
