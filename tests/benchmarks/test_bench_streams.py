"""Cases whose data is in no cache: their bytes, and what the table concludes."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from benchmarks.modules import build
from benchmarks.streams import STREAMS, Line, Stream

LARGEST_CACHE = 32 << 20


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.case.name)
def test_bytes_are_those_of_inputs_weights_and_results(stream: Stream) -> None:
    with torch.device("meta"):
        module = build(stream.case)
    inputs = [torch.empty(one.shape, device="meta") for one in stream.case.inputs]
    result = module(*inputs)
    large = [x for x in (*inputs, *module.parameters()) if x.numel() > 1 << 16]
    read = sum(4 * x.numel() for x in large)
    assert stream.written == 4 * math.prod(result.shape)
    assert stream.read == pytest.approx(read, rel=1e-3)
    assert stream.moved >= 4 * LARGEST_CACHE


def line(name: str) -> Line:
    return Line(name, 1 << 28, 20e9, 15e9, 40e9, 18e9, 25e9, 0.01, 0.0)


def test_what_writes_stands_beside_reading_and_beside_the_faster_stores() -> None:
    relu = line("relu 33554432")
    assert relu.share == pytest.approx(0.5)
    assert relu.share_of_moves == pytest.approx(0.8)
    assert "50.0%" in str(relu)
    assert "80.0%" in str(relu)


def test_what_only_reads_stands_beside_reading() -> None:
    sums = line("row_sums 32768x1024")
    assert sums.share == sums.share_of_moves == pytest.approx(0.5)
