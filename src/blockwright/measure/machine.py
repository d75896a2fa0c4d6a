"""Measure the roofline of this machine in about half a second, including compilation."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from blockwright.measure.programs import peak_call, read_call, stream_call
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.threads import num_threads, set_num_threads
from blockwright.target import Target, last_cache_bytes

_CALLS = 8  # per program; the fastest counts, because other load only adds time
_BEYOND = 4  # array size as a multiple of the last-level cache, so that no data stays cached


def measure_roofline(threads: int | None = None) -> Roofline:
    """Measure arithmetic throughput and memory bandwidth with `threads` threads.

    The default is the thread count of compiled functions. The speed of shared or hot machines
    drifts: measure the roofline next to the time that it is compared with.
    """
    before = num_threads()
    count = threads or before
    caches = [cache.size for cache in Target("native").caches]
    private = [size * count for size in caches[:-1]]
    sizes = [size // 2 for size in (*private, caches[-1])] + [_BEYOND * last_cache_bytes()]
    sizes = sorted({size for size in sizes if size > 0})
    beyond = sizes[-1] // 2
    try:
        calls = [peak_call(count), *(read_call(count, size) for size in sizes)]
        calls += [stream_call(count, beyond, beyond, nontemporal=past) for past in (False, True)]
        speeds = _fastest(calls)
    finally:
        set_num_threads(before)
    peak, *reads, plain, past = speeds
    # The time of a copy is that of its reads plus that of its writes; subtract the reads.
    copied = 2.0 / max(plain, past)
    writes = 1.0 / max(copied - 1.0 / reads[-1], 0.1 / reads[-1])
    return Roofline(count, peak, tuple(zip(sizes, reads, strict=True)), writes)


@functools.cache
def known_roofline(threads: int) -> Roofline:
    """Return the roofline for a number of threads, measured once per process."""
    return measure_roofline(threads)


def _fastest(calls: list[tuple[Callable[[], Any], float]]) -> list[float]:
    """Return the amount per second of each call's fastest run. The calls are interleaved."""
    best = [float("inf")] * len(calls)
    for _ in range(_CALLS):
        for place, (call, _amount) in enumerate(calls):
            start = time.perf_counter()
            call()
            best[place] = min(best[place], time.perf_counter() - start)
    return [amount / seconds for (_, amount), seconds in zip(calls, best, strict=True)]
