"""The roofline of this machine, from short measurements: about half a second, programs included."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from blockwright.measure.programs import peak_call, read_call, stream_call
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.threads import num_threads, set_num_threads
from blockwright.target import Target, last_cache_bytes

_CALLS = 8  # of each program; the fastest counts, since everything else on the machine only delays
_BEYOND = 4  # times the last-level cache: nothing of so much is left there from the last pass


def measure_roofline(threads: int | None = None) -> Roofline:
    """Measures arithmetic and memory, in turns, with so many threads; by default with as many as
    compiled functions use.

    Machines that are shared or warm drift: a figure that is to be held against the limit needs one
    that was measured beside it.
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
    # A copy takes the time of its reads and that of its writes: what is left is for the writes.
    copied = 2.0 / max(plain, past)
    writes = 1.0 / max(copied - 1.0 / reads[-1], 0.1 / reads[-1])
    return Roofline(count, peak, tuple(zip(sizes, reads, strict=True)), writes)


@functools.cache
def known_roofline(threads: int) -> Roofline:
    """The roofline as measured when this process first asked for so many threads."""
    return measure_roofline(threads)


def _fastest(calls: list[tuple[Callable[[], Any], float]]) -> list[float]:
    """Amount per second of each call's fastest run; all of them take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(_CALLS):
        for place, (call, _amount) in enumerate(calls):
            start = time.perf_counter()
            call()
            best[place] = min(best[place], time.perf_counter() - start)
    return [amount / seconds for (_, amount), seconds in zip(calls, best, strict=True)]
