"""Measure the memory that the code of a library allocates during a call.

`WATCH`, exported by libraries, takes a record of the bytes in use and their peak, and counts into
it until it gets a null pointer (`codegen.rt.memory_count`). Libraries of earlier versions lack it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from blockwright.runtime.library import Library
from blockwright.support import ArtefactError

WATCH = "bw_memory_watch"


def peak_bytes(library: Library, call: Callable[[], Any]) -> int:
    """Run `call`, and return the peak of the bytes that the library took for results and scratch.

    Other calls of the library at the same time are counted, too.

    Raises: ArtefactError (BW807) if the library cannot count.
    """
    loaded = ctypes.CDLL(library.name)
    if not hasattr(loaded, WATCH):
        raise ArtefactError(
            "the artefact was saved by a version whose code does not count its memory",
            code="BW807",
            help="compile and save the model again",
        )
    record = (ctypes.c_int64 * 2)()
    loaded[WATCH](ctypes.byref(record))
    try:
        result = call()  # alive until the counting ends
    finally:
        loaded[WATCH](None)
    del result
    return record[1]
