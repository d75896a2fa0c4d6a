"""Weights of a few bits, packed in bytes: MatMulNBits, GatherBlockQuantized (`com.microsoft`).

Numbers of 4 bits lie two in a byte, the first in the low half. They are decoded by tensor
operators, as those of DequantizeLinear are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    dtype_of,
    rank_of,
)
from blockwright.frontend.onnx.contrib_fused import CONTRIB
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.sizes import I64

TABLE = Converters()
_UINT8 = ir.dtype_of("uint8")
_BITS = (2, 4, 8)


@TABLE.op("MatMulNBits", domain=CONTRIB)
def _matmul_n_bits(call: Call) -> Value:
    """A · Wᵀ + bias, where W = (numbers - zero) · scale in blocks along the depth."""
    bits, block = call.attr("bits", 4), call.attr("block_size")
    columns, depth = call.attr("N"), call.attr("K")
    if bits not in _BITS or call.has(4) or call.attr("weight_prepacked", 0):
        return NotImplemented
    x, blocks = call.tensor(0), -(-depth // block)
    dtype = dtype_of(x)
    packed = call.reshape(call.tensor(1), (columns, blocks * block * bits // 8))
    numbers = _unpacked(call, packed, bits)
    numbers = call.cast(call.reshape(numbers, (columns, blocks, block)), dtype)
    shape = (columns, blocks, 1)
    if call.has(3):
        zero = _zero_points(call, columns, blocks, bits)
        numbers = call.apply("subtract", numbers, call.reshape(call.cast(zero, dtype), shape))
    else:
        numbers = call.apply("subtract", numbers, call.scalar(1 << bits - 1, dtype))
    scales = call.reshape(call.tensor(2), shape)
    weight = call.apply("multiply", numbers, scales)
    weight = call.reshape(weight, (columns, blocks * block))
    if blocks * block != depth:
        weight = call.apply("slice", weight, axis=1, begin=0, end=depth, step=1)
    bias = (call.tensor(5),) if call.has(5) else ()
    return call.apply("linear", x, weight, *bias)


def _zero_points(call: Call, columns: int, blocks: int, bits: int) -> ir.GraphExpr:
    """One for each block, packed along the blocks of a column unless they are floats."""
    zero = call.tensor(3)
    if dtype_of(zero) is not _UINT8:
        return zero
    rows = call.reshape(zero, (columns, -(-blocks * bits // 8)))
    return call.apply("slice", _unpacked(call, rows, bits), axis=1, begin=0, end=blocks, step=1)


def _unpacked(call: Call, packed: ir.GraphExpr, bits: int) -> ir.GraphExpr:
    """The numbers in the bytes of a tensor, along its last axis; the lowest bits come first."""
    if bits == 8:
        return packed
    *lead, size = dims_of(packed)
    each = 8 // bits
    shifts = call.imp.tensor(np.arange(0, 8, bits, dtype=np.uint8))
    mask = call.scalar((1 << bits) - 1, _UINT8)
    apart = call.reshape(packed, (*lead, size, 1))
    shifted = call.apply("right_shift", apart, shifts)
    numbers = call.apply("bitwise_and", shifted, mask)
    return call.reshape(numbers, (*lead, ir.mul(size, ir.const(each, I64))))


@TABLE.op("GatherBlockQuantized", domain=CONTRIB)
def _gather_block_quantized(call: Call) -> Value:
    """Rows of a table of packed bytes, decoded after they are gathered; 0 beyond the table."""
    table, ids, scales = call.tensor(0), call.tensor(1), call.tensor(2)
    bits, block = call.attr("bits", 4), call.attr("block_size", 128)
    plain = rank_of(table) == 2 and call.attr("gather_axis", 0) == 0
    last = axis_of(call.attr("quantize_axis", 1), rank_of(table)) == 1
    if not (plain and last and dtype_of(table) is _UINT8 and bits in _BITS and block):
        return NotImplemented
    dtype, size = dtype_of(scales), dims_of(table)[0]
    inside = call.apply("less", ids, scalar=size, scalar_side="right")
    least = ir.sub(ir.const(0, I64), size)
    above = call.apply("greater_equal", ids, scalar=least, scalar_side="right")
    inside = call.apply("logical_and", inside, above)
    ids = call.apply("where", inside, ids, call.scalar(0, dtype_of(ids)))
    numbers = _unpacked(call, call.apply("take", table, ids, axis=0), bits)
    factor = call.apply("take", scales, ids, axis=0)
    shape: tuple[Any, ...] = dims_of(numbers)
    apart = (*dims_of(factor), block)
    if not call.imp.builder.analyzer.prove_equal(product(shape), product(apart)):
        return NotImplemented  # the last block is not whole
    value = call.cast(call.reshape(numbers, apart), dtype)
    if call.has(3):
        zero = _unpacked(call, call.apply("take", call.tensor(3), ids, axis=0), bits)
        zero = call.apply("slice", zero, axis=-1, begin=0, end=dims_of(scales)[1], step=1)
        zero = call.reshape(call.cast(zero, dtype), (*dims_of(factor), 1))
    else:
        zero = call.scalar(1 << bits - 1, dtype)
    value = call.apply("subtract", value, zero)
    value = call.apply("multiply", value, call.reshape(factor, (*dims_of(factor), 1)))
    inside = call.reshape(inside, (*dims_of(ids), 1))
    return call.apply("where", inside, call.reshape(value, shape), call.scalar(0, dtype))
