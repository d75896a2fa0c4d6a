"""Fewer garbage collections while a great many objects are made that stay.

Python looks for cycles after every few hundred new objects, and from time to time among all objects
of the process. A compilation makes some million nodes, nearly all of which live to its end: without
care, an eighth of its time is spent looking at them, and at the modules of PyTorch, again and
again.
"""

from __future__ import annotations

import gc
import threading
from contextlib import ContextDecorator

_OBJECTS = 1_000_000
"""After so many new objects there is a collection still: memory stays bounded."""


class FewCollections(ContextDecorator):
    """Collections are rare until the last of the blocks under way, in any thread, ends.

    Where the caller has switched collections off, or made them rarer still, this changes nothing.
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
"""The process has one collector, so there is one of these: `with few_collections:`."""
