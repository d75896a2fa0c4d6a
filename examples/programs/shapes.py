"""Shape functions: programs that compute result shapes from argument shapes.

Each rule is a Python function on expressions; the same rules serve every rank.
"""

from collections.abc import Sequence

from blockwright import ir
from blockwright.script import tir as T


def matching(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """The common size of two broadcast dimensions; emits a check that they match."""
    T.Assert(T.any(T.EQ(a, b), T.EQ(a, 1), T.EQ(b, 1)), "the shapes do not broadcast")
    return T.if_then_else(T.EQ(a, 1), b, a)


def windows(size: ir.Expr, kernel: ir.Expr, pad: int, stride: int, dilation: int) -> ir.Expr:
    """Number of positions of a convolution window."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def broadcast_shape(rank_a: int, rank_b: int) -> ir.PrimFunc:
    """A program with parameters (shape of a, shape of b, shape of the result)."""
    rank = max(rank_a, rank_b)
    dimensions = list(range(1, rank + 1))  # counted from the last

    @T.prim_func
    def broadcast_shape(
        a: T.Buffer((rank_a,), "int64"),
        b: T.Buffer((rank_b,), "int64"),
        out: T.Buffer((rank,), "int64"),
    ):
        for k in dimensions:
            if k > rank_a:
                out[rank - k] = b[rank_b - k]
            elif k > rank_b:
                out[rank - k] = a[rank_a - k]
            else:
                out[rank - k] = matching(a[rank_a - k], b[rank_b - k])

    return broadcast_shape


def conv2d_shape(
    pads: Sequence[int] = (0, 0), strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1)
) -> ir.PrimFunc:
    """A program with parameters (NCHW shape of the data, OIHW shape of the weights, result)."""

    @T.prim_func
    def conv2d_shape(
        x: T.Buffer((4,), "int64"), w: T.Buffer((4,), "int64"), out: T.Buffer((4,), "int64")
    ):
        assert x[1] == w[1], "the channels differ"
        out[0] = x[0]
        out[1] = w[0]
        for d, (pad, stride, dilation) in enumerate(zip(pads, strides, dilations)):
            out[2 + d] = windows(x[2 + d], w[2 + d], pad, stride, dilation)
            T.Assert(out[2 + d] > 0, "the kernel is larger than the padded image")

    return conv2d_shape
