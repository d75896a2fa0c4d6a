"""Signal processing and small linear algebra: Fourier transforms, also of frames; determinants.

Complex numbers are pairs (real part, imaginary part) along the last axis.
"""

from __future__ import annotations

import numpy as np

from blockwright import ir
from blockwright.frontend.fourier import (
    Complex,
    half_of,
    real_inverse,
    reciprocal,
    transformed,
)
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    rank_of,
)
from blockwright.frontend.onnx.model import element_type
from blockwright.frontend.onnx.run_time_sizes import sizes_of
from blockwright.frontend.onnx.sizes import I64

TABLE = Converters()


@TABLE.op("DFT")
def _dft(call: Call) -> Value:
    """A transform along one axis, by products with matrices of cosines and sines."""
    x = call.tensor(0)
    rank = rank_of(x)
    axis = axis_of(int(call.known(2, "the axis").reshape(())) if call.has(2) else -2, rank)
    size = dims_of(x)[axis]
    inverse, onesided = bool(call.attr("inverse", 0)), bool(call.attr("onesided", 0))
    op, parts = call.imp.builder.op, _parts(call, x)
    if call.has(1):
        count = sizes_of(call, 1, "dft_length")[0]
    elif inverse and onesided:
        count = ir.mul(ir.sub(size, ir.const(1, I64)), ir.const(2, I64))
    else:
        count = size
    factor = reciprocal(op, count) if inverse else 1.0
    if inverse and onesided:
        result = Complex(real_inverse(op, parts, axis, count, factor))
    else:
        rows = half_of(count) if onesided else count
        result = transformed(op, parts, axis, count, rows, inverse, factor)
    if result.imaginary is None:
        return call.apply("expand_dims", result.real, axis=rank - 1)
    return _pairs(call, result)


def _parts(call: Call, x: ir.GraphExpr) -> Complex:
    """Real and imaginary parts of pairs, or of real numbers with a last axis of one."""
    last = rank_of(x) - 1
    numbers = ir.const_int(dims_of(x)[last])
    if numbers not in (1, 2):
        raise call.error(
            f"the last axis of the signal has {dims_of(x)[last]} elements, not 1 or 2",
            "declare it as 1 for real numbers, or as 2 for complex ones",
        )

    def part(which: int) -> ir.GraphExpr:
        found = call.apply("slice", x, axis=last, begin=which, end=which + 1, step=1)
        return call.apply("squeeze", found, axis=last)

    return Complex(part(0), part(1) if numbers == 2 else None)


def _pairs(call: Call, x: Complex) -> ir.GraphExpr:
    assert x.imaginary is not None
    axis = rank_of(x.real)
    parts = [call.apply("expand_dims", part, axis=axis) for part in (x.real, x.imaginary)]
    return call.apply("concat", *parts, axis=axis)


@TABLE.op("MelWeightMatrix")
def _mel_weights(call: Call) -> Value:
    """Triangles over the frequencies of a spectrum, at equal distances on the mel scale."""
    names = ("num_mel_bins", "dft_length", "sample_rate")
    count, length, rate = (int(call.known(k, n).reshape(())) for k, n in enumerate(names))
    low, high = (float(call.known(k, "an edge").reshape(())) for k in (3, 4))
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = ends[0] + np.arange(count + 2) * (ends[1] - ends[0]) / (count + 2)
    corners = ((length + 1) * (700 * np.expm1(mel / 2595 * np.log(10))) // rate).astype(int)
    frequency = np.arange(length // 2 + 1)[:, None]
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    rise = np.where(peak > left, (frequency - left) / np.maximum(peak - left, 1), 1)
    fall = (right - frequency) / np.maximum(right - peak, 1)
    inside = (frequency >= left) & (frequency < right)
    weights = np.where(frequency < peak, rise, fall) * inside
    weights = np.where((frequency == peak) & (peak >= left), 1.0, weights)
    dtype = element_type(call.attr("output_datatype"), "the result")
    return weights.astype(dtype.numpy())


@TABLE.op("STFT")
def _stft(call: Call) -> Value:
    """Transforms of overlapping frames of a signal, each weighted by a window."""
    x, window = call.tensor(0), call.optional(2)
    step = int(call.known(1, "frame_step").reshape(()))
    if call.has(3):
        length: int | None = int(call.known(3, "frame_length").reshape(()))
    else:
        length = ir.const_int(dims_of(x)[1] if window is None else dims_of(window)[0])
    if length is None:
        raise call.error("the length of frames is not known", "set frame_length")
    room = ir.sub(dims_of(x)[1], ir.const(length, I64))
    frames = ir.add(ir.floordiv(room, ir.const(step, I64)), ir.const(1, I64))
    first = call.apply("arange", begin=0, end=frames, step=1, dtype="int64")
    first = call.apply("multiply", first, scalar=step, scalar_side="right")
    within = call.imp.tensor(np.arange(length))
    place = call.apply("add", call.reshape(first, (*dims_of(first), 1)), within)
    framed = call.apply("take", x, place, axis=1)
    if window is not None:
        framed = call.apply("multiply", framed, call.reshape(window, (length, 1)))
    parts = _parts(call, framed)
    onesided = call.attr("onesided")
    if onesided and parts.imaginary is not None:
        raise call.error("half of the spectrum of a complex signal is not all", "set onesided to 0")
    rows = length // 2 + 1 if onesided else length
    return _pairs(call, transformed(call.imp.builder.op, parts, 2, length, rows))


@TABLE.op("Det")
def _det(call: Call) -> Value:
    """The determinant of matrices up to 3 × 3, by expansion along the first row."""
    x = call.tensor(0)
    rank, size = rank_of(x), ir.const_int(dims_of(x)[-1])
    if size is None or not 1 <= size <= 3:
        raise call.error("matrices of this size are not supported", "use sizes up to 3")

    def element(i: int, j: int) -> ir.GraphExpr:
        row = call.apply("slice", x, axis=rank - 2, begin=i, end=i + 1, step=1)
        part = call.apply("slice", row, axis=rank - 1, begin=j, end=j + 1, step=1)
        return call.reshape(part, dims_of(x)[:-2])

    def minor(rows: tuple[int, ...], columns: tuple[int, ...]) -> ir.GraphExpr:
        if len(rows) == 1:
            return element(rows[0], columns[0])
        total: ir.GraphExpr | None = None
        for k, column in enumerate(columns):
            rest = tuple(c for c in columns if c != column)
            term = call.apply("multiply", element(rows[0], column), minor(rows[1:], rest))
            if total is None:
                total = term
            else:
                total = call.apply("subtract" if k % 2 else "add", total, term)
        assert total is not None
        return total

    places = tuple(range(size))
    return minor(places, places)
