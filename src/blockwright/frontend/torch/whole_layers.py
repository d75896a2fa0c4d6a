"""Recurrent layers stay whole in exported programs.

PyTorch's exporter writes a recurrent layer out, one step after the other, so that its length is
part of the program. During an export by `bw.compile` each becomes an operator of ours instead:

    aten.lstm.input(x, (h, c), …)   →   blockwright.lstm.default(x, (h, c), …)

PyTorch also traces programs again to rewrite them, which then meets the same operators. Programs
that were exported before have the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from blockwright.frontend.torch.kernels import replaced_composites

_REST = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_LAYERS = {
    "lstm": f"(Tensor input, Tensor[] hx, {_REST}) -> (Tensor, Tensor, Tensor)",
    **dict.fromkeys(
        ("gru", "rnn_tanh", "rnn_relu"), f"(Tensor input, Tensor hx, {_REST}) -> (Tensor, Tensor)"
    ),
}
"""PyTorch's layers, and the schemas of our operators of the same names."""


@contextmanager
def whole_recurrent_layers() -> Generator[None]:
    """Keep recurrent layers whole in exports and in rewriting of programs, meanwhile."""
    import torch
    from torch import _decomp

    operators = {getattr(torch.ops.aten, name).input: op for name, op in _operators().items()}
    # What computes the sizes of results: the steps, which would fix their number.
    registry: Any = _decomp
    written_out = registry.decomposition_table
    before = {overload: written_out[overload] for overload in operators}
    try:
        written_out.update(operators)
        with replaced_composites(operators):
            yield
    finally:
        written_out.update(before)


@functools.cache
def _operators() -> dict[str, Any]:
    """Our operators by name of PyTorch's."""
    import torch

    register: Any = torch.library
    library = register.Library("blockwright", "DEF")
    _KEPT.append(library)  # its operators end with it
    for name, schema in _LAYERS.items():
        library.define(name + schema)
        library.impl(name, getattr(torch, name), "CompositeExplicitAutograd")
        register.register_fake(f"blockwright::{name}", _shapes, lib=library)
    return {name: getattr(torch.ops.blockwright, name).default for name in _LAYERS}


_KEPT: list[Any] = []


def _shapes(
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """Results without values."""
    states: list[Any] = [*hx] if isinstance(hx, (list, tuple)) else [hx]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    output = input.new_empty((*input.shape[:-1], width))
    return (output, *(state.new_empty(state.shape) for state in states))
