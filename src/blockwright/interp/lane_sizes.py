"""Buffers whose sizes differ between the threads of a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.calls import Run
from blockwright.interp.lanes import Env, Fn, compress
from blockwright.ir import Buffer
from blockwright.support import InterpretError


def agreed(env: Env, size: Any, buffer: Buffer) -> Any:
    """A buffer size, which must be the same in all lanes."""
    if type(size) is not np.ndarray:
        return size
    if len(size) and np.all(size == size[0]):
        return int(size[0])
    raise InterpretError(
        f"buffer {buffer.name} has different sizes in different threads, "
        "which is supported only in blocks without nested blocks",
        code="BW757",
        span=buffer.span,
        help="allocate the largest size",
    )


def by_size(sizes: list[Fn], waits: list[Run], steps: list[Run]) -> Run:
    """Run the steps once per group of threads with equal buffer sizes, after a barrier."""

    def body(env: Env) -> None:
        for wait in waits:
            wait(env)
        result = [fn(env) for fn in sizes]
        varied = [n for n in result if type(n) is np.ndarray]
        if not varied or not len(varied[0]):
            groups = [env]
        else:
            _, which = np.unique(np.stack(varied), axis=1, return_inverse=True)
            which = which.reshape(-1)
            count = which.max() > 0
            groups = [compress(env, which == k) for k in np.unique(which)] if count else [env]
        for group in groups:
            for step in steps:
                step(group)

    return body
