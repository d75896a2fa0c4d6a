"""What this machine can do at most, measured: arithmetic in registers, and reading memory.

Arithmetic: as many independent FMA chains as hide the latency of one, nothing loaded or stored
inside the loop. Memory: sums over an array of a given size, read over and over, each thread its own
part; a small array stays in the caches, and the figure is then theirs. The programs are compiled
like every other, so that vector width and instructions are those our kernels use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_CHAINS = 12
_ROUNDS = 1 << 15  # about a millisecond: no longer than what it is compared with
_TASKS = 8  # per thread, so that threads finish together

_PROGRAM = """
@T.prim_func
def peak(x: T.Buffer((LANES,), "float32"), out: T.Buffer((TASKS, LANES), "float32")):
    for task in T.parallel(TASKS):
        with T.block("task"):
            t = T.axis.spatial(TASKS, task)
            acc = T.alloc_buffer((CHAINS, LANES), "float32", scope="local")
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("start"):
                        vc, vl = T.axis.remap("SS", [c, lane])
                        acc[vc, vl] = x[vl]
            for r in range(ROUNDS):
                for c in T.unroll(CHAINS):
                    for lane in T.vectorized(LANES):
                        with T.block("step"):
                            vr = T.axis.opaque(ROUNDS, r)
                            vc, vl = T.axis.remap("SS", [c, lane])
                            acc[vc, vl] = T.fma(acc[vc, vl], x[vl], x[vl])
            for lane in T.vectorized(LANES):
                with T.block("clear"):
                    vl = T.axis.spatial(LANES, lane)
                    out[t, vl] = T.float32(0)
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("keep"):
                        vc = T.axis.reduce(CHAINS, c)
                        vl = T.axis.spatial(LANES, lane)
                        out[t, vl] = out[t, vl] + acc[vc, vl]
"""


def peak_call(threads: int) -> tuple[Callable[[], Any], float]:
    """A call that runs the chains on `threads` threads, and the operations it does."""
    lanes = _lanes()
    tasks = threads * _TASKS
    sizes = {"LANES": lanes, "TASKS": tasks, "CHAINS": _CHAINS, "ROUNDS": _ROUNDS}
    run = _built(_PROGRAM, sizes, "peak", threads)
    x = np.full(lanes, 0.5, "float32")
    out = np.zeros((tasks, lanes), "float32")
    return (lambda: run(x, out)), 2.0 * lanes * tasks * _CHAINS * _ROUNDS


_READ_BYTES = 1 << 26  # read by one call at least, so that starting the threads does not count

_READ_PROGRAM = """
@T.prim_func
def read(
    x: T.Buffer((THREADS, STEPS, CHAINS, LANES), "float32"),
    out: T.Buffer((THREADS, LANES), "float32"),
):
    for thread in T.parallel(THREADS):
        with T.block("thread"):
            t = T.axis.spatial(THREADS, thread)
            acc = T.alloc_buffer((CHAINS, LANES), "float32", scope="local")
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("start"):
                        vc, vl = T.axis.remap("SS", [c, lane])
                        acc[vc, vl] = T.float32(0)
            for p in range(PASSES):
                for s in range(STEPS):
                    for c in T.unroll(CHAINS):
                        for lane in T.vectorized(LANES):
                            with T.block("step"):
                                vp = T.axis.opaque(PASSES, p)
                                vs = T.axis.opaque(STEPS, s)
                                vc, vl = T.axis.remap("SS", [c, lane])
                                acc[vc, vl] = acc[vc, vl] + x[t, vs, vc, vl]
            for lane in T.vectorized(LANES):
                with T.block("clear"):
                    vl = T.axis.spatial(LANES, lane)
                    out[t, vl] = T.float32(0)
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("keep"):
                        vc = T.axis.reduce(CHAINS, c)
                        vl = T.axis.spatial(LANES, lane)
                        out[t, vl] = out[t, vl] + acc[vc, vl]
"""


def read_call(threads: int, size: int) -> tuple[Callable[[], Any], float]:
    """A call that reads about `size` bytes again and again, and the bytes it reads in all."""
    lanes = _lanes()
    steps = max(1, round(size / (4 * lanes * _CHAINS * threads)))
    once = 4 * lanes * _CHAINS * steps * threads
    passes = max(1, round(_READ_BYTES / once))
    sizes = {"LANES": lanes, "THREADS": threads, "CHAINS": _CHAINS, "STEPS": steps,
             "PASSES": passes}  # fmt: skip
    run = _built(_READ_PROGRAM, sizes, "read", threads)
    x = np.ones((threads, steps, _CHAINS, lanes), "float32")
    out = np.zeros((threads, lanes), "float32")
    return (lambda: run(x, out)), float(once * passes)


def _lanes() -> int:
    import blockwright as bw

    return bw.Target("native").vector_bits // 32


def _built(text: str, sizes: dict[str, int], name: str, threads: int) -> Callable[..., Any]:
    import blockwright as bw

    for word, value in sizes.items():
        text = text.replace(word, str(value))
    bw.set_num_threads(threads)
    return bw.build(bw.from_source(text))[name]
