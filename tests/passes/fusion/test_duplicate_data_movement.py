"""Copies that several calls read: which become part of their readers, and which are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import blockwright as bw


def kernels(forward: Any, *shapes: tuple[int, ...], dynamic: bool = False) -> list[str]:
    """Names of the kernels of a compiled function, whose results are compared with PyTorch's."""

    class Module(torch.nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return forward(*inputs)

    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    batch = torch.export.Dim("batch", min=1, max=64)
    axes = (tuple({0: batch} for _ in shapes),) if dynamic else None
    exe = bw.compile(Module(), inputs, dynamic_shapes=axes)
    found, wanted = exe(*inputs), forward(*(one.double() for one in inputs))
    results = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for one, other in results:
        # At most eight products of values of size 1 are added.
        np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=0, atol=1e-5)
    return sorted(exe.context.traces)


def test_halves_that_are_read_twice_are_read_in_place() -> None:
    """Rotary embeddings."""

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        one, other = x[..., :8], x[..., 8:]
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)

    shapes = ((3, 5, 16), (5, 8), (5, 8))
    assert len(kernels(rotated, *shapes)) == 1


def test_a_layer_of_a_cache_goes_to_keys_and_values_without_a_copy_of_its_own() -> None:
    def extended(past: Any, key: Any, value: Any) -> Any:
        keys, values = past[1]  # of the second of three layers
        return torch.cat((keys, key), 1), torch.cat((values, value), 1)

    found = kernels(extended, (3, 2, 4, 7, 8), (4, 1, 8), (4, 1, 8))
    assert len(found) == 2
    assert all(name.endswith("concat") or "concat_" in name for name in found)


def test_the_batch_may_be_unknown() -> None:
    def both(x: Any) -> Any:
        part = x[:, 2:5]
        return torch.relu(part), torch.tanh(part)

    assert len(kernels(both, (3, 7), dynamic=True)) == 2


def test_a_copy_that_is_a_result_is_made_once() -> None:
    def all_three(x: Any) -> Any:
        part = x[:, 2:5] + 0.0
        part = part.reshape(15)[3:12]
        return part, torch.relu(part), torch.tanh(part)

    assert len(kernels(all_three, (5, 7))) == 3


def test_products_read_a_copy() -> None:
    def both(x: Any, w: Any) -> Any:
        part = x[:, 8:]
        return part @ w, torch.relu(part)

    assert "slice" in kernels(both, (5, 16), (8, 8))


def test_what_is_turned_over_is_turned_once() -> None:
    def both(x: Any) -> Any:
        turned = x.transpose(0, 1)
        return torch.relu(turned), torch.tanh(turned)

    assert "permute_dims" in kernels(both, (5, 16))


def test_a_product_writes_merged_heads_for_all_readers() -> None:
    def both(q: Any, k: Any) -> Any:
        merged = (q @ k).transpose(0, 1)
        return torch.relu(merged), torch.tanh(merged)

    found = kernels(both, (2, 5, 8), (2, 8, 4))
    assert any("matmul" in name and "permute_dims" in name for name in found)
