"""Measure this machine's peak arithmetic throughput and memory bandwidth."""

from __future__ import annotations

from blockwright.measure.machine import known_roofline, measure_roofline
from blockwright.measure.programs import peak_call, read_call, stream_call

__all__ = ["known_roofline", "measure_roofline", "peak_call", "read_call", "stream_call"]
