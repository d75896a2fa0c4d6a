"""The structure of results, and results that are parameters, constants, views, or repeated."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

N = Dim("n", min=1, max=50)


class Nested(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"sum": x.sum(0), "parts": (x * 2, [x + 1, x - 1])}


class One(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return (x * 2,)


class Dictionary(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"only": x * 2}


class Repeated(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        return y, y, y + 1


class Input(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, x + 1, x


class View(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = torch.exp(x)
        return y.reshape(-1, 2), x.reshape(-1), y.sum(), y


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> Any:
        return self.weight, x * self.weight, self.weight.reshape(2, 2), self.weight * 3


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x > 0, x.argmax(-1) if False else x.to(torch.float64), (x * 10).to(torch.int64)


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.sum()


@pytest.mark.parametrize(
    "make", [Nested, One, Dictionary, Repeated, Input, View, Weight, Mixed, Scalar]
)
def test_results_keep_the_models_structure(
    make: Any, compile_torch: Any, compare_with_torch: Any, tmp_path: Any
) -> None:
    import blockwright as bw

    model = make()
    exe = compile_torch(model, (torch.randn(3, 4),), ({0: N},))
    exe.save(tmp_path / "model.bwx")
    loaded = bw.load(tmp_path / "model.bwx")
    for size in (1, 2, 50):
        x = torch.randn(size, 4)
        compare_with_torch(exe, model, [x])
        compare_with_torch(loaded, model, [x])


class Ordered(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return OrderedDict(second=x * 2, first=x + 1)


def test_an_ordered_dict_stays_one(compile_torch: Any) -> None:
    x = torch.arange(4.0)
    found = compile_torch(Ordered(), (x,))(x)
    assert type(found) is OrderedDict
    assert list(found) == ["second", "first"]
    assert torch.equal(found["first"], x + 1)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("rows", torch.tensor([2, 0]))

    def forward(self) -> Any:
        return self.table[self.rows], self.rows + 1


def test_results_without_arguments_are_tensors(compile_torch: Any, tmp_path: Any) -> None:
    import blockwright as bw

    exe = compile_torch(Constant(), ())
    exe.save(tmp_path / "model.bwx")
    for model in (exe, bw.load(tmp_path / "model.bwx")):
        first, second = model()
        assert torch.equal(first, torch.tensor([2.0, 0.0]))
        assert torch.equal(second, torch.tensor([3, 1]))


class Length(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, x.shape[0]


@pytest.mark.parametrize("shapes", [None, ({0: N},)])
def test_results_that_are_no_tensors_are_refused(compile_torch: Any, shapes: Any) -> None:
    import blockwright as bw

    with pytest.raises(bw.ImporterError, match=r"an output of the model is .*tensor") as found:
        compile_torch(Length(), (torch.randn(3, 4),), shapes)
    assert found.value.code == "BW506"


def test_results_are_fresh_memory(compile_torch: Any) -> None:
    """Writing to a result, or to an input afterwards, changes nothing else."""
    exe = compile_torch(Input(), (torch.randn(3, 4),), ({0: N},))
    x = torch.zeros(2, 4)
    first, second, third = exe(x)
    first += 5
    x += 7
    assert torch.equal(third, torch.zeros(2, 4))
    assert torch.equal(second, torch.ones(2, 4))
    before = exe(x)
    exe(x * 0)
    assert torch.equal(before[1], x + 1)


def test_a_result_can_outlive_the_executable(compile_torch: Any) -> None:
    result = compile_torch(One(), (torch.randn(3, 4),), ({0: N},))(torch.ones(2, 4))
    import gc

    gc.collect()
    assert torch.equal(result[0], torch.full((2, 4), 2.0))


class Options(nn.Module):
    """Takes what is no tensor, and tensors inside of containers."""

    def forward(
        self,
        x: torch.Tensor,
        bias: Any = None,
        scale: float = 2.0,
        more: Any = (),
        *,
        named: dict[str, torch.Tensor] | None = None,
    ) -> Any:
        y = x * scale
        for part in more:
            y = y + part
        return y if named is None else y - named["b"] * named["a"]


def test_calls_take_the_arguments_of_the_model(tmp_path: Any) -> None:
    import blockwright as bw

    x, a, b = (torch.randn(3, 4) for _ in range(3))
    model = Options()
    kwargs = {"named": {"b": b, "a": a}}
    exported = torch.export.export(model, (x, None, 3.5, [a, a.clone()]), kwargs, strict=False)
    bw.compile(exported).save(tmp_path / "model.bwx")
    for exe in (bw.compile(exported), bw.load(tmp_path / "model.bwx")):
        want = model(x, None, 3.5, [a, b], **kwargs)
        given = exe(x, None, 3.5, [a, b], **kwargs)
        assert torch.allclose(given, want)
        assert torch.equal(exe(x=x, more=(a, b), scale=3.5, bias=None, **kwargs), given)
        assert torch.equal(
            exe(x, a, b, b, a), given
        )  # the tensors alone, as compiled code has them
        out = torch.empty(3, 4)
        assert torch.equal(exe(x, None, 3.5, [a, b], **kwargs, out=out), given)
        for code, args, named in [
            ("BW702", (x, None, 2.0, [a, b]), kwargs),
            ("BW702", (x, b, 3.5, [a, b]), kwargs),
            ("BW702", (x, None, 3.5, a), kwargs),
            ("BW701", (x, None, 3.5, [a]), kwargs),
            ("BW701", (x, None, 3.5, [a, b]), {"named": {"b": b}}),
            ("BW701", (x, None, 3.5, [a, b], x, x), kwargs),
            ("BW701", (x, None, 3.5), kwargs),
            ("BW701", (x, None, 3.5, [a, b]), {**kwargs, "x": x}),
        ]:
            with pytest.raises(bw.ArgumentError) as found:
                exe(*args, **named)
            assert found.value.code == code


def test_one_tensor_twice_in_an_example_is_two_inputs(compile_torch: Any) -> None:
    x, y, z = (torch.randn(3) for _ in range(3))
    exe = compile_torch(Options(), (x, None, 2.0, [x, x]))
    assert torch.allclose(exe(x, None, 2.0, [y, z]), Options()(x, None, 2.0, [y, z]))
