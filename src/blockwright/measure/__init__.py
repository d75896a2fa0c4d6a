"""What this machine does at most, measured: arithmetic in registers, and streams of memory."""

from __future__ import annotations

from blockwright.measure.machine import known_roofline, measure_roofline
from blockwright.measure.programs import peak_call, read_call, stream_call

__all__ = ["known_roofline", "measure_roofline", "peak_call", "read_call", "stream_call"]
