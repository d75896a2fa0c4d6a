"""Thread-pool settings, which may be changed before any compiled code is loaded.

The pool itself is part of the compiled libraries. Earlier settings are stored here and applied
when the first library is loaded.
"""

from __future__ import annotations

import os

from blockwright.runtime.ffi import loaded_function
from blockwright.support import ArgumentError, OptionError
from blockwright.support.kinds import number_text

MAX_THREADS = 512
_MOST_DIGITS = 18  # fits 64 bits, also with leading zeros
ENVIRONMENT = "BLOCKWRIGHT_NUM_THREADS"

_pending: dict[str, int] = {}


def set_num_threads(count: int) -> None:
    """Set how many threads a compiled function may use, including the calling thread.

    With 1, calls run entirely on the calling thread, so the caller controls the number and the
    affinity of threads, and may make concurrent calls. With more, all callers share the pool's
    threads.

    Arguments: `count` from 1 to 512, or 0 for the default: the environment variable
    BLOCKWRIGHT_NUM_THREADS, else the number of processors available to this process.
    Raises: ArgumentError (BW710).
    """
    _set("blockwright.set_num_threads", "count", count, MAX_THREADS)


def set_spin_us(microseconds: int) -> None:
    """Set how long idle threads spin for new work before they sleep; 0 to 1000000, default 50."""
    _set("blockwright.set_spin_us", "microseconds", microseconds, 1_000_000)


def num_threads() -> int:
    """Number of threads that compiled functions use."""
    function = loaded_function("blockwright.num_threads")
    if function is not None:
        return int(function())
    return _pending.get("blockwright.set_num_threads", 0) or default_num_threads()


def _set(function: str, name: str, value: object, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise ArgumentError(
            f"{name} must be an integer from 0 to {limit}, not {number_text(value)}", code="BW710"
        )
    call = loaded_function(function)
    if call is None:
        _pending[function] = value
    else:
        call(value)


def apply_pending() -> None:
    """Apply stored settings to the pool; called after a library was loaded."""
    if not _pending:
        environment_threads()
        return
    for name, value in list(_pending.items()):
        call = loaded_function(name)
        if call is not None:
            call(value)
            _pending.pop(name, None)


def environment_threads() -> int | None:
    """The count in the environment; OptionError (BW903) when it is not a valid count."""
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        return None
    # `isdecimal` alone accepts digits of other scripts, which native code does not read.
    digits = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    if not digits or not 1 <= int(text) <= MAX_THREADS:
        raise OptionError(
            f"{ENVIRONMENT}={text[:40]!r} is not a valid thread count",
            code="BW903",
            help=f"set an integer from 1 to {MAX_THREADS}, or unset it",
        )
    return int(text)


def default_num_threads() -> int:
    """The pool's default: the environment, else the processors available to this process."""
    count = environment_threads()
    if count is not None:
        return count
    return min(allowed_processors(), MAX_THREADS)


def allowed_processors() -> int:
    """Number of processors available: affinity mask, limited by control-group quotas."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(count or 1, _quota()))


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


def _quota() -> int:
    """The smallest processor quota of this process's control groups and their ancestors."""
    best = MAX_THREADS
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return best
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            continue
        while True:
            if not controllers:
                values = _read(f"/sys/fs/cgroup{path}/cpu.max")
            else:
                base = f"/sys/fs/cgroup/cpu{path}/cpu.cfs_"
                values = _read(base + "quota_us") + _read(base + "period_us")
            if len(values) == 2 and values[0].isdecimal() and int(values[1]) > 0:
                best = min(best, max(1, -(-int(values[0]) // int(values[1]))))
            if "/" not in path:
                break
            path = path.rpartition("/")[0]
    return best
