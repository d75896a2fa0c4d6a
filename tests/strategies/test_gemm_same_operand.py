"""A matrix times its own transpose: one buffer on both sides of the product."""

from __future__ import annotations

import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder


def test_gram_matrix_compiles_and_is_right() -> None:
    b = GraphBuilder()
    y = b.param(
        "y", ir.TensorInfo((ir.const(24, "int64"), ir.const(40, "int64")), ir.dtype_of("float32"))
    )
    gram = b.op("matmul", y, b.op("permute_dims", y, axes=(1, 0)))
    exe = bw.compile(b.finish("main", gram))
    data = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
    np.testing.assert_allclose(exe(data), data @ data.T, rtol=1e-5, atol=1e-5)
