"""Sorting, non-maximum suppression and shape functions: interpreted, compiled, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis.validate.well_formed import check_well_formed
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.script.ir import from_source
from blockwright.support import BlockwrightError
from examples.programs.nms import nms
from examples.programs.shapes import broadcast_shape, conv2d_shape
from examples.programs.sort import argsort


def both(func: ir.PrimFunc, *arrays: np.ndarray, outputs: int) -> list[np.ndarray]:
    """The outputs, after checking that interpreter and compiled code agree to the bit."""
    check_well_formed(func)
    ir.assert_structural_equal(from_source(repr(func)), func)
    mine, theirs = [a.copy() for a in arrays], [a.copy() for a in arrays]
    interpret(func, *mine)
    build(func)[func.name](*theirs)
    for a, b in zip(mine[-outputs:], theirs[-outputs:], strict=True):
        np.testing.assert_array_equal(a, b)
    return mine[-outputs:]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 2), (2, 7), (4, 16), (2, 33)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_argsort(rows: int, size: int, dtype: str, descending: bool) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(-4, 4, (rows, size)).astype(dtype)  # many equal keys
    if dtype == "float32" and size > 4:
        x[0, [1, 4]] = np.nan
        x[-1, 2] = np.inf
    func = argsort(rows, size, dtype=dtype, descending=descending)
    values, positions = both(func, x, np.zeros_like(x), np.zeros(x.shape, "int32"), outputs=2)
    order = np.argsort(-x if descending else x, axis=1, kind="stable")
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_top_k() -> None:
    x = np.random.default_rng(0).standard_normal((5, 50)).astype("float32")
    func = argsort(5, 50, top=4, descending=True)
    values, positions = both(
        func, x, np.zeros((5, 4), "float32"), np.zeros((5, 4), "int32"), outputs=2
    )
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, :4])
    np.testing.assert_array_equal(np.take_along_axis(x, positions, 1), values)


def suppressed(boxes: np.ndarray, scores: np.ndarray, iou: float, least: float) -> list[int]:
    """The textbook loop, in the same precision."""

    def area(box: np.ndarray) -> np.float32:
        return max(box[2] - box[0], np.float32(0)) * max(box[3] - box[1], np.float32(0))

    taken: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        shares: list[np.float32] = []
        for t in taken:
            low, high = (
                np.maximum(boxes[i, :2], boxes[t, :2]),
                np.minimum(boxes[i, 2:], boxes[t, 2:]),
            )
            common = area(np.concatenate([low, high]))
            shares.append(common / (area(boxes[t]) + area(boxes[i]) - common))
        if scores[i] > least and not any(s > np.float32(iou) for s in shares):
            taken.append(int(i))
    return taken


@pytest.mark.parametrize(("count", "keep"), [(1, 1), (9, 9), (40, 12), (40, 40)])
@pytest.mark.parametrize("seed", range(3))
def test_non_maximum_suppression(count: int, keep: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 8, (count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 4, (count, 2))], 1).astype("float32")
    scores = (rng.integers(0, 10, count) / 10).astype("float32")  # some equal
    func = nms(count, keep, iou=0.3, least_score=0.15)
    selected, found = both(
        func, boxes, scores, np.zeros(keep, "int32"), np.zeros(1, "int32"), outputs=2
    )
    expected = suppressed(boxes, scores, 0.3, 0.15)[:keep]
    assert found[0] == len(expected)
    assert list(selected) == expected + [-1] * (keep - len(expected))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 1), (4,)), ((2, 1, 5), (3, 1)), ((7,), (1, 1, 7)), ((2, 3), (2, 3))]
)
def test_broadcast_shape(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rank = max(len(a), len(b))
    func = broadcast_shape(len(a), len(b))
    arrays = (np.array(a, "int64"), np.array(b, "int64"), np.zeros(rank, "int64"))
    (out,) = both(func, *arrays, outputs=1)
    assert tuple(out) == np.broadcast_shapes(a, b)


def test_shapes_that_do_not_fit_fail_with_their_message() -> None:
    func = broadcast_shape(2, 1)
    arrays = (np.array([2, 3], "int64"), np.array([4], "int64"), np.zeros(2, "int64"))
    for run in (lambda: interpret(func, *arrays), lambda: build(func)["broadcast_shape"](*arrays)):
        with pytest.raises((BlockwrightError, RuntimeError), match="do not broadcast"):
            run()


@pytest.mark.parametrize("pad", [0, 1, 3])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_conv2d_shape(pad: int, stride: int, dilation: int) -> None:
    func = conv2d_shape((pad, 0), (stride, 1), (dilation, 1))
    x, w = (2, 3, 17, 9), (8, 3, 5, 3)
    (out,) = both(func, np.array(x), np.array(w), np.zeros(4, "int64"), outputs=1)
    reach = dilation * (w[2] - 1) + 1
    starts = range(0, x[2] + 2 * pad - reach + 1, stride)
    assert tuple(out) == (2, 8, len(starts), 7)
