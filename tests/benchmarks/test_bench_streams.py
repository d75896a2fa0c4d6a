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


def test_a_share_is_of_the_faster_stores() -> None:
    line = Line("relu", 1 << 28, 20e9, 15e9, 40e9, 18e9, 25e9, 0.01, 0.0)
    assert line.share == pytest.approx(0.8)
    assert "80.0%" in str(line)
    assert "50.0%" in str(line)  # of reading
