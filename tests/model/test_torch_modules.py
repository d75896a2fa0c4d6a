"""Small torch modules, compiled once for all sizes, answer like PyTorch at random sizes."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw
from blockwright.runtime import ffi

N = Dim("n", min=1, max=200)
M = Dim("m", min=2, max=50)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.bare = nn.LayerNorm(24, elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + 2.0 * self.bare(torch.tanh(x))


class Softmaxes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.softmax(-1), x.softmax(0), F.log_softmax(3 * x, dim=1)


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(60, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])
        return self.words(ids) + self.places(places)


class Where(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        smaller = x < y
        return torch.where(smaller, x, 0.5), x.masked_fill(smaller & (y > 0), -1.0)


class Slices(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, 0], x[:, -1], x[1:2], x[:, ::2], x[..., 3:9], x[:, 1:]


class Joins(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, y * 2, x], dim=0), torch.stack([x.sum(0), y.mean(0)], dim=1)


class Shapes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.shape[0]
        heads = x.reshape(n, 6, 4).transpose(1, 2)
        return heads.reshape(n, 24) * n**-0.5 if False else heads.reshape(n, 24), heads.flatten()


class Reductions(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(),
            x.mean(dim=0),
            x.amax(dim=1),
            x.abs().amin(),
            torch.linalg.vector_norm(x, dim=1),
        )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(24, 72)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.reshape(b, s, 4, 6).transpose(1, 2) for t in self.qkv(x).split(24, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(b, s, 24)


class Causal(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.reshape(b, s, 4, 6).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Manual(nn.Module):
    """Attention written out: matmuls of activations, a scale, a mask, a softmax."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = x @ y.transpose(1, 2) / 24**0.5
        return (scores + (scores > 1).to(scores.dtype)).softmax(-1) @ y


class Arithmetic(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            1.0 / (1.0 + torch.exp(-x)),
            (x * x + 1).rsqrt() - x.abs().sqrt(),
            torch.erf(x) ** 3,
            (x * 10).round().to(torch.int32) // 3,
            x.clamp(-0.5, 0.5),
            -x % 0.7,
        )


RANK_1 = ({0: N},)
torch.manual_seed(2024)  # examples are drawn when tests are collected
RANK_2 = (torch.randn(5, 24),)
CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...], Any]] = {
    "mlp": (MLP, RANK_2, RANK_1),
    "norms": (Norms, RANK_2, RANK_1),
    "softmaxes": (Softmaxes, RANK_2, RANK_1),
    "embeddings": (Embeddings, (torch.ones(3, 4, dtype=torch.int64),), ({0: N, 1: M},)),
    "where": (Where, (torch.randn(5, 24), torch.randn(5, 24)), ({0: N}, {0: N})),
    "slices": (Slices, (torch.randn(5, 8, 24),), ({0: M, 1: Dim("p", min=3, max=50)},)),
    "joins": (Joins, (torch.randn(5, 24), torch.randn(6, 24)), ({0: N}, {0: M})),
    "shapes": (Shapes, RANK_2, RANK_1),
    "reductions": (Reductions, RANK_2, RANK_1),
    "attention": (Attention, (torch.randn(2, 5, 24),), ({0: N, 1: M},)),
    "causal": (Causal, (torch.randn(2, 5, 24),), ({0: N, 1: M},)),
    "manual": (Manual, (torch.randn(2, 5, 24), torch.randn(2, 6, 24)), ({0: N, 1: M}, {0: N})),
    "arithmetic": (Arithmetic, RANK_2, RANK_1),
}


def random_inputs(example: tuple[torch.Tensor, ...], shapes: Any, rng: Any) -> list[torch.Tensor]:
    sizes: dict[str, int] = {}
    out: list[torch.Tensor] = []
    for tensor, dims in zip(example, shapes, strict=True):
        shape = list(tensor.shape)
        for axis, dim in dims.items():
            known = sizes.setdefault(dim.__name__, int(rng.integers(dim.min, min(dim.max, 40) + 1)))
            shape[axis] = known
        if tensor.is_floating_point():
            out.append(torch.from_numpy(rng.standard_normal(shape).astype("float32")))
        else:
            out.append(torch.from_numpy(rng.integers(0, 50, shape)))
    return out


@pytest.mark.parametrize("name", CASES)
def test_a_module_answers_like_torch(
    name: str, compile_torch: Any, compare_with_torch: Any, rng: Any
) -> None:
    make, example, shapes = CASES[name]
    torch.manual_seed(1)
    model = make().eval()
    exe = compile_torch(model, example, shapes)
    for _ in range(8):
        compare_with_torch(exe, model, random_inputs(example, shapes, rng))
    smallest = [
        t[tuple(slice(0, dims[a].min if a in dims else None) for a in range(t.dim()))]
        for t, dims in zip(example, shapes, strict=True)
    ]
    compare_with_torch(exe, model, smallest)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


@pytest.mark.parametrize("form", ["by name", "by position", "as tuples", "exported before"])
def test_messages_call_a_dimension_by_the_name_of_its_dim(form: str) -> None:
    rows = Dim("rows", min=2, max=9)
    by_position: tuple[Any, ...] = ({0: rows}, {0: rows})
    shapes: Any = {
        "by name": {"y": {0: rows}, "x": {0: rows}},
        "as tuples": ((rows, None), (rows, None)),
    }.get(form, by_position)
    inputs = (torch.ones(3, 4), torch.ones(3, 4))
    if form == "exported before":
        program = torch.export.export(Pair(), inputs, dynamic_shapes=shapes)
        exe = bw.compile(program, dynamic_shapes=shapes)
    else:
        exe = bw.compile(Pair(), inputs, dynamic_shapes=shapes)
    assert "rows" in exe.show("graph")
    with pytest.raises(bw.ArgumentError, match="rows") as caught:
        exe(torch.ones(3, 4), torch.ones(5, 4))
    assert caught.value.code == "BW709"


def test_threads_compile_at_once() -> None:
    """PyTorch's exporter is not thread-safe; compilations take turns in it."""
    x = torch.randn(3, 4)
    right: list[bool] = []

    def work(width: int) -> None:
        module = nn.Sequential(nn.Linear(4, width), nn.GELU()).eval()
        found = bw.compile(module, (x,))(x)
        right.append(torch.allclose(found, module(x), atol=1e-5))

    threads = [threading.Thread(target=work, args=(width,)) for width in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 3


def test_a_module_that_another_thread_imports_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partial: Any = ModuleType("tvm_ffi")
    partial.__spec__ = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "tvm_ffi", partial)
    whole = ModuleType("tvm_ffi")
    monkeypatch.setattr(ffi.importlib, "import_module", lambda name: whole)
    assert ffi.tvm_ffi() is whole
    partial.__spec__._initializing = False
    assert ffi.tvm_ffi() is partial
