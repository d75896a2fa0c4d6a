"""Raise the garbage collector's threshold during a compilation.

Python searches for cycles after every few hundred new objects, and occasionally among all objects
of the process. A compilation creates about a million nodes, nearly all of which live until its end.
By default, an eighth of its time is spent scanning these nodes and the modules of PyTorch
repeatedly.
"""

from __future__ import annotations

import gc
import threading
from contextlib import ContextDecorator

_OBJECTS = 1_000_000
"""Collection threshold in new objects; finite, so that memory stays bounded."""


class FewCollections(ContextDecorator):
    """Context manager and decorator that raises the collection threshold.

    The threshold is restored when the last active block, in any thread, ends. If the caller has
    disabled collections or set a higher threshold, nothing changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < _OBJECTS:
                    gc.set_threshold(_OBJECTS, *self._before[1:])
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                gc.set_threshold(*self._before)


few_collections = FewCollections()
"""The only instance, because a process has one collector: `with few_collections:`."""
